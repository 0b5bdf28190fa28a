// Steps along stochastic gradients: SGLD, SGHMC, BAOAB and Adam, with the noise made in registers.
// Shapes: C chains, P parameters, N rows, n steps of a recording.
//
// What changes from step to step lies in device memory, so that one recorded step is every step: a
// table made on the host has a row per step, and each chain counts the steps it has begun.
#pragma once

#include "core/permutation_hd.h"
#include "core/update_hd.h"
#include "cuda/kernels/block.h"
#include "cuda/kernels/random_kernels.h"

namespace ribbit::cuda {

// One row of the table of steps; the constants are rounded to T where they are used, as on the CPU.
struct StepRow {
  double number;              // address of batch and noise; below zero: no step, the table ends
  double step;                // factor of the gradient
  double noise;               // sd of the noise; 0: none is drawn
  double correct1, correct2;  // Adam: 1 / (1 - decay^t); friction, kinetic: what a step leaves of
                              // the velocity
  double adapt;               // preconditioner: whether the second moment moves
};

// Where a chain is. All (C,).
struct ChainRecords {
  Index* begun;     // steps begun in this table; the last one's row is begun - 1
  Index* bad;       // not zero: the last step left a parameter that is not finite
  double* outcome;  // (C, 2): number of the first such step or -1, largest |gradient| there
  // outcome >= 0; it is never -0 or NaN
  RIBBIT_DEVICE bool stopped(Index chain) const {
    return Ops<double>::bits(outcome[2 * chain]) >> 63 == 0;
  }
};

// Moves one parameter by a rule of core/update_hd.h. The result is 0, and NaN when anything is not
// finite any more.
template <class T, class By>
struct MovedBy {
  static constexpr bool kFirst = By::kFirst, kSecond = By::kSecond, kNoise = By::kNoise;
  RIBBIT_DEVICE static T apply(const UpdateConstants<T>& c, T g, T z, T& t, T& m, T& v) {
    const T also = By::template apply<T>(c, g, z, t, m, v);
    return (t - t) + (also - also);
  }
};
template <class T>
struct LangevinRule : MovedBy<T, LangevinUpdate> {};
template <class T>
struct PreconditionedRule : MovedBy<T, PreconditionedUpdate> {};
template <class T>
struct FrictionRule : MovedBy<T, FrictionUpdate> {};
template <class T>
struct AdamRule : MovedBy<T, AdamUpdate> {};
template <class T>
struct KineticRule : MovedBy<T, KineticUpdate> {};

// Four neighbours, moved by wide loads and stores where rows of P allow it.
template <class T>
struct alignas(16) Four {
  T v[4];
};

template <class T>
RIBBIT_DEVICE Four<T> load_four(const T* p, Index left, bool aligned) {
  if (aligned) return *reinterpret_cast<const Four<T>*>(p);
  Four<T> out;
  RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) out.v[i] = i < left ? p[i] : T(0);
  return out;
}

template <class T>
RIBBIT_DEVICE void store_four(T* p, const Four<T>& from, Index left, bool aligned) {
  if (aligned) {
    *reinterpret_cast<Four<T>*>(p) = from;
    return;
  }
  RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
    if (i < left) p[i] = from.v[i];
  }
}

// What moves the four parameters of a block of the counter. theta, first, second, grad (C, P)
// aligned to 16 bytes, null where the rule has none.
template <class T, class Rule>
struct Mover {
  Stream stream;  // its step is that of the table
  const StepRow* table;
  ChainRecords records;
  Index dim;
  T* grad;
  T* theta;
  T* first;
  T* second;
  double decay1, decay2, epsilon, scale;

  // What all parameters of a chain have in common.
  struct Step {
    UpdateConstants<T> constants;
    Stream noise;
    Word id;
    bool draws;
  };
  RIBBIT_DEVICE Step begin(Index chain) const {
    const StepRow& row = table[records.begun[chain] - 1];
    Step made{};
    UpdateConstants<T>& c = made.constants;
    c.step = static_cast<T>(row.step);
    c.noise = static_cast<T>(row.noise);
    c.keep = static_cast<T>(row.correct1);
    c.decay1 = static_cast<T>(decay1);
    c.decay2 = static_cast<T>(decay2);
    c.rest1 = T(1) - c.decay1;
    c.rest2 = T(1) - c.decay2;
    c.correct1 = static_cast<T>(row.correct1);
    c.correct2 = static_cast<T>(row.correct2);
    c.epsilon = static_cast<T>(epsilon);
    c.scale = static_cast<T>(scale);
    c.adapt = row.adapt != 0.0;
    made.noise = stream;
    made.noise.step = static_cast<Word64>(row.number);
    made.id = stream.chain(chain);
    made.draws = Ops<double>::bits(row.noise) << 1 != 0;
    return made;
  }
  RIBBIT_DEVICE bool aligned() const { return dim % 4 == 0; }

  // Parameters 4 b to 4 b + 3, which are at q; returns what is 0, or NaN.
  RIBBIT_DEVICE T move(const Step& step, Index chain, Index b, const Four<T>& g, Four<T>& q) const {
    const Index e = chain * dim + 4 * b, left = dim - 4 * b;
    T z[4] = {};
    if constexpr (Rule::kNoise) {
      if (step.draws) step.noise.template normals<T>(static_cast<Word64>(b), step.id, z);
    }
    Four<T> m{}, v{};
    if constexpr (Rule::kFirst) m = load_four(first + e, left, aligned());
    if constexpr (Rule::kSecond) v = load_four(second + e, left, aligned());
    T bad = T(0);
    RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
      const T result = Rule::apply(step.constants, g.v[i], z[i], q.v[i], m.v[i], v.v[i]);
      if (i < left) bad += result;
    }
    store_four(theta + e, q, left, aligned());
    if constexpr (Rule::kFirst) store_four(first + e, m, left, aligned());
    if constexpr (Rule::kSecond) store_four(second + e, v, left, aligned());
    return bad;
  }
  // Nobody reads it before the next kernel, and all who write it write the same.
  RIBBIT_DEVICE void note(Index chain, T bad) const {
    if (bad != T(0)) records.bad[chain] = 1;
  }
};

// One step of every chain that has not stopped. Grid: (any, C).
template <class T, class Rule>
struct Update {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  Mover<T, Rule> mover;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index chain = block.y(), dim = mover.dim;
    if (mover.records.stopped(chain)) return;
    const auto step = mover.begin(chain);
    block.last([&](int t) {
      const Index blocks = (dim + 3) / 4;
      T bad = T(0);
      for (Index b = block.x() * kBlock + t; b < blocks; b += block.width() * kBlock) {
        const Index e = chain * dim + 4 * b, left = dim - 4 * b;
        const Four<T> g = load_four(mover.grad + e, left, mover.aligned());
        Four<T> q = load_four(mover.theta + e, left, mover.aligned());
        bad += mover.move(step, chain, b, g, q);
      }
      mover.note(chain, bad);
    });
  }
};

// Ends the step before and begins the next one. A chain whose last step left a parameter that is
// not finite stops, and the largest finite |gradient| of that step is noted, infinity where there
// is none. Then the rows of the next step's batch are written: places of the epoch's order. grad
// (C, P), rows (C, batch_rows) or null: all N rows in their own order. masks: where dropout masks
// are told their address, or null; ids of chains then follow each other. Grid: (1, C).
template <class T>
struct NextStep {
  static constexpr int kBlock = kThreads;
  struct Shared {
    double size[kBlock];
    Permutation order;
  };
  Word64 seed;
  const Word* chains;  // (C,) ids
  const StepRow* table;
  ChainRecords records;
  Index dim;
  const T* grad;
  Index num_rows;  // N
  Index batch_rows;
  Index* rows;
  Word64* masks;   // (3,): seed, step and the sample of chain 0
  Index and_back;  // not zero: through the batches of an order, and back
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const Index chain = block.y();
    const Index begun = records.begun[chain];
    const double number = table[begun].number;
    const bool failed = records.bad[chain] != 0 && !records.stopped(chain);
    block.phase([&](int) {});  // everybody has read what is written below
    if (failed) note(block, shared, chain, table[begun - 1].number);
    const Word64 step = number < 0.0 ? 0 : static_cast<Word64>(number);
    const Word64 batches = static_cast<Word64>((num_rows + batch_rows - 1) / batch_rows);
    const BatchTurn turn = batch_turn(step, batches, and_back != 0);
    const BatchPlaces places = batch_places(static_cast<Word64>(num_rows), batches, turn.number);
    block.phase([&](int t) {
      if (t != 0 || number < 0.0) return;
      records.begun[chain] = begun + 1;
      if (masks != nullptr && chain == 0) {
        masks[0] = seed;
        masks[1] = step;
        masks[2] = chains[0];
      }
      if (rows == nullptr) return;
      shared.order =
          make_permutation(static_cast<Word64>(num_rows), seed, chains[chain], turn.epoch);
    });
    if (number < 0.0 || rows == nullptr) return;
    block.last([&](int t) {
      for (Index r = t; r < static_cast<Index>(places.count); r += kBlock) {
        rows[chain * batch_rows + r] =
            static_cast<Index>(permute(shared.order, places.begin + static_cast<Word64>(r)));
      }
    });
  }

 private:
  RIBBIT_DEVICE void note(Block& block, Shared& shared, Index chain, double number) const {
    block.phase([&](int t) {
      double own = -1.0;
      for (Index i = t; i < dim; i += kBlock) {
        const double size = Ops<double>::abs(static_cast<double>(grad[chain * dim + i]));
        if (size - size == 0.0 && size > own) own = size;
      }
      shared.size[t] = own;
    });
    for (int half = kBlock / 2; half > 0; half /= 2) {
      block.phase([&](int t) {
        if (t < half && shared.size[t + half] > shared.size[t]) {
          shared.size[t] = shared.size[t + half];
        }
      });
    }
    block.phase([&](int t) {
      if (t != 0) return;
      const double infinity = Ops<double>::from_bits(0x7ff0000000000000ull);
      records.outcome[2 * chain] = number;
      records.outcome[2 * chain + 1] = shared.size[0] < 0.0 ? infinity : shared.size[0];
    });
  }
};

}  // namespace ribbit::cuda
