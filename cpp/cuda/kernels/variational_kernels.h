// Bayes by Backprop: weights mean + sd z, sd = softplus(rho), z by address (Blundell et al. 2015,
// section 3.2); the gradients of mean and sd from those of the weights; Adam on mean and rho.
// Formulas and roundings are those of the CPU's. Shapes: P parameters, S weight samples,
// N rows, I steps of a call.
//
// A step is one list of launches with the same arguments every time: what changes from step to step
// is read from device memory, so that steps can be recorded and replayed.
#pragma once

#include "core/permutation_hd.h"
#include "core/prior_hd.h"
#include "core/update_hd.h"
#include "cuda/kernels/block.h"
#include "cuda/kernels/random_kernels.h"

namespace ribbit::cuda {

constexpr double kHalfLogTwoPiE = 1.4189385332046727;  // entropy of a standard normal

// Place of a step in device memory: the seed, the number of the call's first step, and how many
// steps of the call are done.
struct StepClock {
  Word64* words;
  RIBBIT_DEVICE Word64 seed() const { return words[0]; }
  RIBBIT_DEVICE Word64 step() const { return words[1] + words[2]; }
  RIBBIT_DEVICE Word64 done() const { return words[2]; }
  // The stream at this step; without a clock as it is.
  RIBBIT_DEVICE Stream address(const Stream& stream) const {
    if (words == nullptr) return stream;
    return {seed(), step(), stream.purpose_layer, stream.chains};
  }
};

// What each step is told, (I, 4): step size, weight of the divergence, and 1 / (1 - decay^t) for
// both moments of Adam.
struct StepTable {
  const double* values;
  template <class T>
  RIBBIT_DEVICE T value(Word64 step, int column) const {
    return static_cast<T>(values[4 * step + static_cast<Word64>(column)]);
  }
};

// rows (count,) = places begin + 0, 1, .. of the epoch's order, as chain 0 takes them; `batches`
// make an epoch. One thread per place. Grid: (any).
struct VariationalRows {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  StepClock clock;
  Index size;  // N
  Index batches;
  Index count;  // of this one
  Index* rows;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Word64 step = clock.step(), all = static_cast<Word64>(batches);
    const Word64 begin = batch_places(static_cast<Word64>(size), all, step % all).begin;
    block.last([&](int t) {
      if (block.x() * kBlock + t >= count) return;
      const Permutation order =
          make_permutation(static_cast<Word64>(size), clock.seed(), 0, step / all);
      for (Index i = block.x() * kBlock + t; i < count; i += block.width() * kBlock) {
        rows[i] = static_cast<Index>(permute(order, begin + static_cast<Word64>(i)));
      }
    });
  }
};

// out (samples, P) = mean + sd z for samples first, first + 1, ..; FromRho: sd = softplus(scale). A
// thread makes four numbers of `each` samples. N, 4, 2 or 1: how many numbers are moved at once
// (load_at_once), a divisor of P. Grid: (any, samples / each).
template <class T, bool FromRho, int N>
struct Reparameterize {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  RoundKeys keys;  // of the stream's seed
  Stream stream;
  StepClock clock;  // null: the stream's own seed and step
  Index first;
  Index each;
  Index samples;
  const T* mean;
  const T* scale;
  Index n;
  T* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    if (clock.words == nullptr) {
      draw<4>(block, stream, keys);
    } else {
      const Stream at = clock.address(stream);
      draw<1>(block, at, round_keys(at.seed));
    }
  }

 private:
  template <int Unroll>
  RIBBIT_DEVICE void draw(Block& block, const Stream& at, const RoundKeys& own) const {
    const Index begin = block.y() * each;
    const Index left = samples - begin < each ? samples - begin : each;
    const int count = static_cast<int>(left);
    const Word sample = static_cast<Word>(first + begin);
    block.last([&](int t) {
      const Index blocks = (n + 3) / 4;
      for (Index b = block.x() * kBlock + t; b < blocks; b += block.width() * kBlock) {
        bool inside[4];
        T m[4] = {}, sd[4] = {};
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4; i += N) {
          inside[i] = i == 0 || N == 4 || 4 * b + i < n;
          if (!inside[i]) continue;
          load_at_once<N>(m + i, mean + 4 * b + i);
          load_at_once<N>(sd + i, scale + 4 * b + i);
        }
        if (FromRho) {
          RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) sd[i] = softplus<T>(sd[i]);
        }
        T* to = out + begin * n + 4 * b;
        RIBBIT_UNROLL(Unroll) for (int s = 0; s < count; ++s, to += n) {
          T z[4];
          at.template normals<T>(static_cast<Word64>(b), sample + static_cast<Word>(s), own, z);
          RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) z[i] = Ops<T>::fma(sd[i], z[i], m[i]);
          RIBBIT_UNROLL_ALL for (int i = 0; i < 4; i += N) {
            if (inside[i]) store_at_once<N>(to + i, z + i);
          }
        }
      }
    });
  }
};

// Parameters offset .. offset + size - 1: scale = softplus(rho), and for each block of threads the
// part of E log q that depends on it and, where every prior is normal with this precision, that of
// E log prior. squares: null where E log prior has no closed form. centre: (P,) or null, of the
// prior. Grid: (any).
template <class T>
struct VariationalScale {
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  const T* mean;
  const T* rho;
  const T* centre;
  T* scale;
  Index offset;
  Index size;
  double precision;
  double* log_q;    // (blocks,)
  double* squares;  // (blocks,)
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<double, 1> square(block);
    block.phase([&](int t) {
      double logs = 0.0, own = 0.0;
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const T sd = softplus<T>(rho[offset + i]);
        scale[offset + i] = sd;
        const T away = from_centre(mean[offset + i], centre, offset + i);
        const double s = static_cast<double>(sd), m = static_cast<double>(away);
        logs -= log<double>(s) + kHalfLogTwoPiE;
        own += m * m + s * s;
      }
      sum.value[t] = logs;
      square(t)[0] = own;
    });
    sum.reduce(block);
    block.phase([&](int t) {
      if (t == 0) log_q[block.x()] = sum.value[0];
    });
    if (squares == nullptr) return;
    block.phase([&](int t) { sum.value[t] = square(t)[0]; });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) squares[block.x()] = -0.5 * precision * sum.value[0];
    });
  }
};

constexpr int kNoPrior = -1;

// Where NoiseGradient finds the gradient by what was drawn of parameter e, element `at` of (count,
// dim); parts that do not go by it are added to by_mean and by_scale.
template <class T>
struct DrawnGradient {
  const T* grad;
  RIBBIT_DEVICE T drawn(Index, Index at, T, T&, T&) const { return grad[at]; }
};

// Parameters offset .. offset + size - 1: adds the gradients of `count` samples to those of mean
// and sd, sample by sample and in this order whatever the groups of samples are. With a prior:
// weight * score of each weight drawn, less the centre, is part of its gradient, and terms
// (blocks,) become sums of log densities over the samples; sums: one number per thread, kept from
// group to group. Nothing changes once a step has failed. Gradients: DrawnGradient, or one of
// row_noise_kernels.h. Grid: (any).
template <class T, int Kind, class Gradients>
struct NoiseGradient {
  // Asked for two blocks, the assembler spills nothing; left alone, a few bytes for a third.
  static constexpr int kBlock = kThreads, kResident = 2;
  using Shared = BlockSum<kBlock>;
  PriorConstants constants;
  Stream stream;
  StepClock clock;
  StepTable steps;
  const double* failed;
  double temperature;
  const T* theta;   // the weights drawn, (count, dim)
  const T* centre;  // (P,) or null
  Gradients gradients;
  Index dim;  // numbers from sample to sample, of theta and of gradients
  Index offset;
  Index size;
  Index first;
  Index count;
  Index samples;  // S
  T* mean_gradient;
  T* scale_gradient;
  double* sums;   // (blocks kBlock,)
  double* terms;  // (blocks,)
  RIBBIT_DEVICE void operator()(Block& block) const {
    if (failed[0] >= 0.0) return;
    Shared& sum = block.template shared<Shared>();
    const Stream own = clock.address(stream);
    constexpr bool kPrior = Kind != kNoPrior;
    const T weight =
        kPrior ? static_cast<T>(steps.template value<double>(clock.done(), 1) / temperature) : T(0);
    const Index begin = offset / 4, end = (offset + size + 3) / 4;
    const Word begin_sample = static_cast<Word>(first),
               end_sample = static_cast<Word>(first + count);
    block.phase([&](int t) {
      const Index place = block.x() * kBlock + t;
      double logs = kPrior && first > 0 ? sums[place] : 0.0;
      for (Index b = begin + place; b < end; b += block.width() * kBlock) {
        const Index e = 4 * b;
        bool inside[4];
        T by_mean[4], by_scale[4];
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
          inside[i] = e + i >= offset && e + i < offset + size;
          by_mean[i] = inside[i] && first > 0 ? mean_gradient[e + i] : T(0);
          by_scale[i] = inside[i] && first > 0 ? scale_gradient[e + i] : T(0);
        }
        Index at = e;
        for (Word c = begin_sample; c < end_sample; ++c, at += dim) {
          T z[4];
          own.template normals<T>(static_cast<Word64>(b), c, z);
          RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
            if (!inside[i]) continue;
            T g = gradients.drawn(e + i, at + i, z[i], by_mean[i], by_scale[i]);
            if constexpr (kPrior) {
              const T w = from_centre(theta[at + i], centre, e + i);
              using Prior = Priors::At<Kind>;
              g = Ops<T>::fma(weight, Prior::template score<T>(w, constants), g);
              logs += Prior::template log_density<double>(static_cast<double>(w), constants);
            }
            by_mean[i] += g;
            by_scale[i] = Ops<T>::fma(g, z[i], by_scale[i]);
          }
        }
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
          if (!inside[i]) continue;
          mean_gradient[e + i] = by_mean[i];
          scale_gradient[e + i] = by_scale[i];
        }
      }
      if constexpr (kPrior) sums[place] = logs;
      sum.value[t] = logs;
    });
    if (!kPrior || first + count < samples) return;
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) terms[block.x()] = sum.value[0];
    });
  }
};

// Parameters offset .. offset + size - 1 of state (6, P): mean, rho, and both moments of each,
// moved along the gradients of a step. precision: that of the normal priors, divided by the
// temperature; 0 where the prior is in the gradients already. centre: (P,) or null, of the prior.
// bad (blocks,): 0 where all that a block moved is finite, else NaN. Nothing moves once a step has
// failed. Grid: (any).
template <class T>
struct VariationalUpdate {
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  StepClock clock;
  StepTable steps;
  const double* failed;
  T* state;
  const T* centre;
  const T* mean_gradient;
  const T* scale_gradient;
  Index dim;
  Index offset;
  Index size;
  double precision;
  double per_sample;  // 1 / S
  double decay1;
  double decay2;
  double epsilon;
  double* bad;
  RIBBIT_DEVICE void operator()(Block& block) const {
    if (failed[0] >= 0.0) return;
    Shared& sum = block.template shared<Shared>();
    const Word64 at = clock.done();
    const double kl = steps.template value<double>(at, 1);
    UpdateConstants<T> c{};
    c.step = steps.template value<T>(at, 0);
    c.decay1 = static_cast<T>(decay1);
    c.decay2 = static_cast<T>(decay2);
    c.rest1 = T(1) - c.decay1;
    c.rest2 = T(1) - c.decay2;
    c.correct1 = steps.template value<T>(at, 2);
    c.correct2 = steps.template value<T>(at, 3);
    c.epsilon = static_cast<T>(epsilon);
    const T entropy = static_cast<T>(kl), shrink = static_cast<T>(kl * precision);
    const T weight = static_cast<T>(per_sample);
    block.phase([&](int t) {
      double lost = 0.0;
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        T *mean = state + offset + i, *rho = mean + dim;
        T by_mean, by_rho;
        const T away = from_centre(*mean, centre, offset + i);
        mean_field_ascent<T>(away, *rho, mean_gradient[offset + i], scale_gradient[offset + i],
                             weight, entropy, shrink, by_mean, by_rho);
        AdamUpdate::apply<T>(c, by_mean, T(0), *mean, mean[2 * dim], mean[3 * dim]);
        AdamUpdate::apply<T>(c, by_rho, T(0), *rho, rho[3 * dim], rho[4 * dim]);
        const T m = *mean, r = *rho;
        lost += static_cast<double>((m - m) + (r - r));  // 0 for what is finite, else NaN
      }
      sum.value[t] = lost;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) bad[block.x()] = sum.value[0];
    });
  }
};

// Ends a step: writes its records, notes the first step that failed, and moves the clock. records:
// (3, capacity), log likelihood of the batch, E log q and E log prior at the parameters before the
// step. Grid: (1).
struct VariationalRecord {
  static constexpr int kBlock = kThreads;
  struct Shared {
    BlockSum<kBlock> sum;
    double kept[4];
  };
  StepClock clock;
  const double* likelihoods;  // (S,)
  Index samples;
  const double* log_q;
  Index scale_blocks;
  const double* log_prior;  // (prior_blocks,)
  Index prior_blocks;
  double prior_factor;
  double prior_constant;
  const double* bad;
  Index bad_blocks;
  double* failed;
  double* records;
  Index capacity;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& own = block.template shared<Shared>();
    const double* parts[4] = {likelihoods, log_q, log_prior, bad};
    const Index lengths[4] = {samples, scale_blocks, prior_blocks, bad_blocks};
    RIBBIT_UNROLL_ALL for (int k = 0; k < 4; ++k) {
      block.phase([&](int t) {
        double total = 0.0;
        for (Index i = t; i < lengths[k]; i += kBlock) total += parts[k][i];
        own.sum.value[t] = total;
      });
      own.sum.reduce(block);
      block.phase([&](int t) {
        if (t == 0) own.kept[k] = own.sum.value[0];
      });
    }
    block.last([&](int t) {
      if (t != 0) return;
      const Word64 done = clock.done();
      const double factor = 1.0 / static_cast<double>(samples);
      records[done] = own.kept[0] * factor;
      records[capacity + static_cast<Index>(done)] = own.kept[1];
      records[2 * capacity + static_cast<Index>(done)] =
          prior_factor * own.kept[2] + prior_constant;
      if (failed[0] < 0.0 && own.kept[3] != 0.0) failed[0] = static_cast<double>(done);
      clock.words[2] = done + 1;
    });
  }
};

}  // namespace ribbit::cuda
