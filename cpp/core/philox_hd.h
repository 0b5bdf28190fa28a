// Counter-based random words: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random
// numbers: as easy as 1, 2, 3", SC11) and the address of every random number of the project.
#pragma once

#include "core/ops_hd.h"

namespace ribbit {

// What a random number is for. A number never changes its meaning: streams of old versions stay.
enum Purpose : Word {
  kPurposeMomentum = 1,
  kPurposeAccept = 2,
  kPurposeJitter = 3,
  kPurposeInit = 4,
  kPurposeWeightNoise = 5,
  kPurposeMask = 6,
  kPurposeBatchOrder = 7,
  kPurposeUpdateNoise = 8,
  kPurposePublic = 9,  // rb.random
  kPurposePredictiveNoise = 10,
  kPurposeReplicate = 11,  // tests
  kPurposeDataset = 12,
  kPurposeFitDraw = 13,         // weights drawn from a fitted approximation
  kPurposePredictiveMask = 14,  // dropout when predicting
  kPurposeRowNoise = 15,        // of a row's activations: local reparameterisation
  kPurposeSigns = 16,           // flipout
  kPurposeRefresh = 17,         // of a direction: microcanonical dynamics
  kPurposeTree = 18,            // of the no-U-turn sampler; layers: no_u_turn_hd.h
  kPurposeLastLayer = 19,       // its weights, drawn anew where it is integrated out
  kPurposeCount
};
#if !defined(__CUDACC__)
constexpr const char* kPurposeNames[] = {nullptr,
                                         "momentum",
                                         "accept",
                                         "jitter",
                                         "init",
                                         "weight_noise",
                                         "mask",
                                         "batch_order",
                                         "update_noise",
                                         "public",
                                         "predictive_noise",
                                         "replicate",
                                         "dataset",
                                         "fit_draw",
                                         "predictive_mask",
                                         "row_noise",
                                         "signs",
                                         "refresh",
                                         "tree",
                                         "last_layer"};
static_assert(sizeof kPurposeNames == kPurposeCount * sizeof *kPurposeNames);
#endif

// Element e of a stream is word (or normal) e % 4 of the block whose counter is
//   c0 = e / 4, c1 = low 32 bits of step, c2 = chain or sample,
//   c3 = purpose << 24 | layer << 8 | bits 32..39 of step; the key is the 64-bit seed.
RIBBIT_HD Word counter_block(Word64 element) {
  return static_cast<Word>(element >> 2);
}
RIBBIT_HD Word counter_step(Word64 step) {
  return static_cast<Word>(step);
}
RIBBIT_HD Word counter_purpose(Word purpose, Word layer, Word64 step) {
  return (purpose << 24) | ((layer & 0xffffu) << 8) | static_cast<Word>((step >> 32) & 0xffu);
}

// A uniform in (0, 1) from two words: 27 + 26 bits and a half, never 0 and never 1.
RIBBIT_HD double uniform_of(Word high, Word low) {
  const double bits = static_cast<double>(high >> 5) * 0x1p26 + static_cast<double>(low >> 6);
  const double u = (bits + 0.5) * 0x1p-53, most = 1.0 - 0x1p-53;
  return u < most ? u : most;
}

// One round on N independent counters c[i][0..3], interleaved for instruction-level parallelism.
// L: 64-bit lanes with one word each in the low half; high halves of the result hold rubbish.
template <int N, class L>
RIBBIT_HD void philox_round(L (&c)[N][4], Word& key0, Word& key1) {
  using O = Lanes64<L>;
  const L k0 = O::set(key0);
  const L k1 = O::set(key1);
  for (int i = 0; i < N; ++i) {
    const L product0 = O::multiply_low32(c[i][0], 0xD2511F53u);
    const L product1 = O::multiply_low32(c[i][2], 0xCD9E8D57u);
    c[i][0] = O::xor3(O::high(product1), c[i][1], k0);
    c[i][2] = O::xor3(O::high_too(product0), c[i][3], k1);
    c[i][1] = product1;
    c[i][3] = product0;
  }
  key0 += 0x9E3779B9u;
  key1 += 0xBB67AE85u;
}

// Ten of them.
constexpr int kPhiloxRounds = 10;
template <int N, class L>
RIBBIT_HD void philox4x32(L (&c)[N][4], Word64 key) {
  Word key0 = static_cast<Word>(key);
  Word key1 = static_cast<Word>(key >> 32);
#if defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC unroll 10
#else
#pragma unroll
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) philox_round<N>(c, key0, key1);
}

}  // namespace ribbit
