// The last dense layer, the likelihood and the way back through both, in one launch.
#pragma once

#include "cuda/kernels/density_kernels.h"
#include "cuda/kernels/trajectory_layout.h"

namespace ribbit::cuda {

// Threads that share out a sum over the inputs of a layer for some rows, and rows of each.
template <int Inputs, int Rows>
struct TailShares {
  static constexpr int kEach = Rows >= 32 ? 2 : 1;         // rows of a thread
  static constexpr int kAcross = kThreads * kEach / Rows;  // threads of a row
};

// Kind: likelihood. Inputs: of the layer, a multiple of 4; Outputs: up to 16, without an
// activation. A block has `Rows` rows and makes, of them, the sum of log likelihoods and of their
// slopes by log noise and, if `backward`, one partial sum of the gradients of the layer's weights
// and bias, row by row, and the delta of its inputs. value, derivative (or null), delta: (R,
// Inputs) per chain, at multiples of 16 bytes. Parts: 1, or 2 where shared memory has room for half
// of the block's inputs only, which are then read twice; with the same bits. Grid: (ceil(R / Rows),
// C).
template <int Kind, int Inputs, int Outputs, int Rows, bool Steps, int Parts = 1>
struct Tail {
  using Likelihood = Likelihoods::At<Kind>;
  using Shares = TailShares<Inputs, Rows>;
  static constexpr int kBlock = kThreads, kResident = Parts == 1 ? 2 : 1;
  static constexpr int kWide = (Outputs + 3) / 4 * 4;  // of outputs: read by fours
  static constexpr int kEach = Shares::kEach, kAcross = Shares::kAcross;
  static constexpr int kPart = Rows / Parts;
  static constexpr int kOwn = Parts == 1 ? kEach : 1, kApart = kPart / kOwn;
  // Inputs, and the bias, of a thread that keeps their gradients from part to part.
  static constexpr int kKept = Parts == 1 ? 1 : kWide * ((Inputs + kThreads) / kThreads);
  // Lines 16 banks apart: of eight neighbours each has its own.
  static constexpr int kLine = Inputs + (16 - Inputs % 32 + 32) % 32;
  static constexpr int kFours = Inputs / 4, kTurns = (kFours + kAcross - 1) / kAcross;
  static_assert(Inputs % 4 == 0 && Outputs <= 16 && kPart % 4 == 0 && Rows % Parts == 0);
  static_assert(Parts == 2 || kThreads % kApart == 0);
  struct Shared {
    alignas(16) float values[kPart][kLine];
    alignas(16) float weights[Inputs][kWide];
    alignas(16) float parts[kAcross][Rows][kWide];  // of outputs
    alignas(16) float outputs[Rows][kWide];
    alignas(16) float deltas[Rows][kWide];  // pads are 0
    BlockSum<kBlock> sum;
  };

  const float* value;
  const float* derivative;
  float* delta;
  Index chain_stride;
  const float* weight;  // (Inputs, Outputs) and (Outputs,) of chain 0; bias or null
  const float* bias;
  Index dim;  // P
  const float* y;
  const Index* rows;  // as in LikelihoodRows, and so are the next six
  Index rows_stride;
  Index first_row;
  Index count;  // R
  Index targets;
  const float* log_noise;
  Index noise_stride;
  LikelihoodConstants constants;
  double likelihood_weight;
  Index backward;
  float* grad;         // of the first block's partial sum, weights first, then the bias
  Index grad_stride;   // from chain to chain
  Index slice_stride;  // from block to block
  Index add;           // to what is there
  double* terms;       // chain c, block b: at c slots + slot + b
  double* noise;
  Index slots;
  Index slot;

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& m = block.template shared<Shared>();
    Registers<double, 1> noises(block);
    const Index chain = block.y(), first = block.x() * Rows;
    const int there = static_cast<int>(count - first < Rows ? count - first : Rows);
    load_weights(block, m, chain);
    RIBBIT_UNROLL(1)
    for (int begin = 0; begin < Rows; begin += kPart) {
      load(block, m, chain, first, there, begin);
      block.phase([&](int t) { multiply(m, t, begin); });
    }
    block.phase([&](int t) {
      for (int e = t; e < Rows * kWide; e += kBlock) {
        const int r = e / kWide, o = e % kWide;
        float sum = bias != nullptr && o < Outputs ? bias[chain * dim + o] : 0.0f;
        RIBBIT_UNROLL_ALL for (int q = 0; q < kAcross; ++q) sum += m.parts[q][r][o];
        m.outputs[r][o] = sum;
        m.deltas[r][o] = 0.0f;
      }
    });
    likelihood(block, m, noises, chain, first, there);
    if (backward == 0) return;
    float* to = grad + (block.x() * slice_stride + chain * grad_stride);
    if constexpr (Parts == 1) {
      block.last([&](int t) { send_back(m, t, chain, first, there, 0); });
      block.last([&](int t) { add_gradient(m, t, to); });
    } else {
      in_parts(block, m, chain, first, there, to);
    }
  }

 private:
  RIBBIT_DEVICE void load_weights(Block& block, Shared& m, Index chain) const {
    const float* w = weight + chain * dim;
    block.last([&](int t) {
      for (int e = t; e < Inputs * kWide; e += kBlock) {
        const int i = e / kWide, o = e % kWide;
        m.weights[i][o] = o < Outputs ? w[i * Outputs + o] : 0.0f;
      }
    });
  }
  // Inputs of the part whose first row is `begin`.
  RIBBIT_DEVICE void load(Block& block, Shared& m, Index chain, Index first, int there,
                          int begin) const {
    const float* from = value + (chain * chain_stride + (first + begin) * Inputs);
    block.last([&](int t) {
      for (int e = t; e < kPart * kFours; e += kBlock) {
        const int r = e / kFours, i = e % kFours * 4;
        const bool inside = begin + r < there;
        block.template copy<4>(&m.values[r][i], inside ? from + 4 * e : value, inside);
      }
    });
    block.commit();
    block.template wait<0>();
    block.phase([](int) {});
  }

  // Sums over every kAcross-th four of the inputs, of rows r and r + kApart.
  RIBBIT_DEVICE void multiply(Shared& m, int t, int begin) const {
    const int q = t % kAcross, r = t / kAcross;
    if (Parts > 1 && r >= kPart) return;
    float sum[kOwn][kWide];
    RIBBIT_UNROLL_ALL for (int a = 0; a < kOwn; ++a) {
      RIBBIT_UNROLL_ALL for (int o = 0; o < kWide; ++o) sum[a][o] = 0.0f;
    }
    RIBBIT_UNROLL(2)
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = 4 * (q + turn * kAcross);
      if (kFours % kAcross != 0 && i >= Inputs) break;
      float left[kOwn][4];
      RIBBIT_UNROLL_ALL for (int a = 0; a < kOwn; ++a) {
        load4(left[a], &m.values[r + a * kApart][i]);
      }
      RIBBIT_UNROLL_ALL for (int k = 0; k < 4; ++k) {
        float right[kWide];
        fours(right, m.weights[i + k]);
        RIBBIT_UNROLL_ALL for (int a = 0; a < kOwn; ++a) {
          RIBBIT_UNROLL_ALL for (int o = 0; o < kWide; ++o) {
            sum[a][o] = Ops<float>::fma(left[a][k], right[o], sum[a][o]);
          }
        }
      }
    }
    RIBBIT_UNROLL_ALL for (int a = 0; a < kOwn; ++a) {
      RIBBIT_UNROLL_ALL for (int o = 0; o < kWide; o += 4) {
        write4(&m.parts[q][begin + r + a * kApart][o], sum[a] + o);
      }
    }
  }

  RIBBIT_DEVICE void likelihood(Block& block, Shared& m, Registers<double, 1>& noises, Index chain,
                                Index first, int there) const {
    const double parameter = Likelihood::kLearnsNoise
                                 ? static_cast<double>(log_noise[chain * noise_stride])
                                 : constants.scale;
    block.phase([&](int t) {
      double own = 0.0, own_noise = 0.0;
      if (t < there) {
        const Index place = first_row + first + t;
        const Index n = rows != nullptr ? rows[chain * rows_stride + place] : place;
        own = likelihood_row<Likelihood, float>(constants, m.outputs[t], y + n * targets, Outputs,
                                                parameter, static_cast<float>(likelihood_weight),
                                                m.deltas[t], own_noise);
      }
      m.sum.value[t] = own;
      noises(t)[0] = own_noise;
    });
    store(block, m, terms + (chain * slots + slot));
    if constexpr (Likelihood::kLearnsNoise) {
      block.phase([&](int t) { m.sum.value[t] = noises(t)[0]; });
      store(block, m, noise + (chain * slots + slot));
    }
  }
  RIBBIT_DEVICE void store(Block& block, Shared& m, double* to) const {
    m.sum.reduce(block);
    block.phase([&](int t) {
      if (t == 0) to[block.x()] = m.sum.value[0];
    });
  }

  // The way back of a block that has room for some of its rows at a time.
  RIBBIT_DEVICE void in_parts(Block& block, Shared& m, Index chain, Index first, int there,
                              float* to) const {
    Registers<float, kKept> kept(block);
    block.last([&](int t) { RIBBIT_UNROLL_ALL for (int i = 0; i < kKept; ++i) kept(t)[i] = 0.0f; });
    RIBBIT_UNROLL(1)
    for (int begin = 0; begin < Rows; begin += kPart) {
      if (begin > 0) block.phase([](int) {});  // the part before is read
      load(block, m, chain, first, there, begin);
      block.last([&](int t) {
        send_back(m, t, chain, first, there, begin);
        add_part(m, t, kept(t), begin);
      });
    }
    block.last([&](int t) {
      RIBBIT_UNROLL_ALL for (int k = 0; k < kKept / kWide; ++k) {
        const int i = t + k * kBlock;
        if (i < terms_of_output()) put(to, i, kept(t) + k * kWide);
      }
    });
  }

  // Of the part whose first row is `begin`: four inputs and kBack rows of a thread.
  RIBBIT_DEVICE void send_back(Shared& m, int t, Index chain, Index first, int there,
                               int begin) const {
    constexpr int kBack = kPart / 4;
    const Index at = chain * chain_stride + first * Inputs;
    for (int e = t; e < kFours * 4; e += kBlock) {
      const int i = e % kFours * 4, from = begin + e / kFours * kBack;
      float w[4][kWide];
      RIBBIT_UNROLL_ALL for (int k = 0; k < 4; ++k) fours(w[k], m.weights[i + k]);
      RIBBIT_UNROLL(4)
      for (int r = from; r < from + kBack; ++r) {
        if (r >= there) break;
        float of[kWide], sum[4], slope[4];
        fours(of, m.deltas[r]);
        RIBBIT_UNROLL_ALL for (int k = 0; k < 4; ++k) {
          sum[k] = 0.0f;
          RIBBIT_UNROLL_ALL for (int o = 0; o < Outputs; ++o) {
            sum[k] = Ops<float>::fma(of[o], w[k][o], sum[k]);
          }
        }
        const Index to = at + r * Inputs + i;
        if constexpr (Steps) {
          load4(slope, &m.values[r - begin][i]);
          RIBBIT_UNROLL_ALL for (int k = 0; k < 4; ++k) sum[k] *= slope[k] > 0.0f ? 1.0f : 0.0f;
        } else if (derivative != nullptr) {
          load4(slope, derivative + to);
          RIBBIT_UNROLL_ALL for (int k = 0; k < 4; ++k) sum[k] *= slope[k];
        }
        write4(delta + to, sum);
      }
    }
  }

  // Inputs, and the bias, whose gradients are sums over the rows.
  RIBBIT_DEVICE int terms_of_output() const { return Inputs + (bias != nullptr ? 1 : 0); }
  RIBBIT_DEVICE void add_gradient(Shared& m, int t, float* to) const {
    for (int i = t; i < terms_of_output(); i += kBlock) {
      float sum[kWide];
      RIBBIT_UNROLL_ALL for (int o = 0; o < kWide; ++o) sum[o] = 0.0f;
      add_rows(m, i, sum, 0);
      put(to, i, sum);
    }
  }
  RIBBIT_DEVICE void add_part(Shared& m, int t, float (&kept)[kKept], int begin) const {
    RIBBIT_UNROLL_ALL for (int k = 0; k < kKept / kWide; ++k) {
      const int i = t + k * kBlock;
      if (i < terms_of_output()) add_rows(m, i, kept + k * kWide, begin);
    }
  }
  // Adds the gradients of input i by the rows of a part, row by row.
  RIBBIT_DEVICE void add_rows(Shared& m, int i, float* sum, int begin) const {
    RIBBIT_UNROLL(4)
    for (int r = 0; r < kPart; ++r) {
      float of[kWide];
      fours(of, m.deltas[begin + r]);
      const float left = i < Inputs ? m.values[r][i] : 1.0f;
      RIBBIT_UNROLL_ALL for (int o = 0; o < Outputs; ++o) {
        sum[o] = Ops<float>::fma(left, of[o], sum[o]);
      }
    }
  }
  RIBBIT_DEVICE void put(float* to, int i, const float* sum) const {
    RIBBIT_UNROLL_ALL for (int o = 0; o < Outputs; ++o) {
      float* place = to + (i * Outputs + o);
      *place = add != 0 ? *place + sum[o] : sum[o];
    }
  }

  static RIBBIT_DEVICE void fours(float (&to)[kWide], const float* from) {
    RIBBIT_UNROLL_ALL for (int o = 0; o < kWide; o += 4) load4(to + o, from + o);
  }
};

}  // namespace ribbit::cuda
