// Log likelihood and log prior with their gradients. Shapes: C chains, P parameters, R rows of a
// panel, N rows in all, K outputs, J columns of y.
#pragma once

#include "core/likelihood_hd.h"
#include "core/prior_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// out (R, size) = rows of x (N, size), those that `rows` names or first_row, first_row + 1, ..;
// bytes of images are divided by 255. rows: chain c's at c rows_stride, and its out at c
// out_stride. Grid: (R, 1, C), or (R, 1, 1) for rows that all chains share.
template <class From, class T>
struct GatherRows {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const From* x;
  const Index* rows;
  Index rows_stride;
  Index first_row;
  Index size;
  T* out;
  Index out_stride;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index place = first_row + block.x();
    const Index n = rows != nullptr ? rows[block.z() * rows_stride + place] : place;
    T* to = out + block.z() * out_stride + block.x() * size;
    block.last([&](int t) {
      for (Index i = t; i < size; i += kBlock) {
        const T value = static_cast<T>(x[n * size + i]);
        to[i] = sizeof(From) == 1 ? value / T(255) : value;
      }
    });
  }
};

// a *= b for `size` numbers of every chain. Grid: (any, C).
template <class T>
struct Multiply {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  T* a;
  const T* b;
  Index chain_stride;
  Index size;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index at = block.y() * chain_stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        a[at + i] *= b[at + i];
      }
    });
  }
};

// The log likelihood of one row without constants of y, and weight times its derivatives by the
// outputs. f, delta: K numbers; y: J. Returns the term; noise: d term / d log_noise (learned only).
template <class L, class T>
RIBBIT_DEVICE double likelihood_row(const LikelihoodConstants& constants, const T* f, const T* y,
                                    Index outputs, double parameter, T weight, T* delta,
                                    double& noise) {
  double sum = 0.0;
  if constexpr (L::kShape == LikelihoodShape::kQuadratic) {
    const double precision = L::template precision<OwnFunctions>(parameter);
    const double log_scale = L::template log_scale<OwnFunctions>(parameter);
    const T factor = static_cast<T>(static_cast<double>(weight) * precision);
    for (Index k = 0; k < outputs; ++k) {
      const T residual = y[k] - f[k];
      delta[k] = factor * residual;
      sum += static_cast<double>(residual) * static_cast<double>(residual);
    }
    const double quadratic = precision * sum, count = static_cast<double>(outputs);
    noise = L::noise_derivative(quadratic, count);
    return L::total(quadratic, count, log_scale);
  } else if constexpr (L::kShape == LikelihoodShape::kLocationScale) {
    const double unit = L::template scale<OwnFunctions>(parameter) * L::unit(constants);
    const T factor = static_cast<T>(1.0 / unit);
    const T slope_weight = static_cast<T>(static_cast<double>(weight) / unit);
    const double count = static_cast<double>(outputs);
    noise = -count;
    for (Index k = 0; k < outputs; ++k) {
      const T u = (y[k] - f[k]) * factor;
      T term, slope;
      L::template term<T>(u, constants, term, slope);
      delta[k] = slope_weight * slope;
      sum += static_cast<double>(term);
      noise += static_cast<double>(u * slope);
    }
    return sum + count * (constants.log_norm - L::template log_scale<OwnFunctions>(parameter));
  } else if constexpr (L::kShape == LikelihoodShape::kMeanAndScale) {
    const Index targets = outputs / 2;
    for (Index k = 0; k < targets; ++k) {
      T term, mean, raw;
      L::template term<T>(f[k], f[targets + k], y[k], constants, term, mean, raw);
      delta[k] = weight * mean;
      delta[targets + k] = weight * raw;
      sum += static_cast<double>(term);
    }
    return sum - L::kLogNorm * static_cast<double>(targets);
  } else if constexpr (L::kShape == LikelihoodShape::kSoftmax) {
    // Softmax with the maximum taken off; a NaN reaches the sum.
    const Index label = static_cast<Index>(y[0]);
    T largest = f[0];
    for (Index k = 1; k < outputs; ++k) largest = Ops<T>::max(f[k], largest);
    T total = T(0);
    for (Index k = 0; k < outputs; ++k) {
      const T e = exp_bounded<T>(Ops<T>::max(-T(kExpLimit<T>), f[k] - largest));
      total += e;
      delta[k] = e;
    }
    const T factor = -weight / total;
    for (Index k = 0; k < outputs; ++k) {
      delta[k] = Ops<T>::fma(delta[k], factor, k == label ? weight : T(0));
    }
    return static_cast<double>((f[label] - largest) - log<T>(total));
  } else {
    static_assert(L::kShape == LikelihoodShape::kElementwise);
    for (Index k = 0; k < outputs; ++k) {
      T term, derivative;
      L::template term<T>(f[k], y[k], term, derivative);
      delta[k] = weight * derivative;
      sum += static_cast<double>(term);
    }
    return sum;
  }
}

// One thread per row. Chain c, block b of the panel: terms[c slots + slot + b], and noise (C,
// noises, slots) likewise (learned only), are sums over the block's rows. y (N, J), rows as in
// GatherRows; scales (noises,) of the noise: chain c's at c noise_stride, the logarithms where they
// are learned; of a single known one null. f, delta: (R, K) per chain.
// Grid: (ceil(R / kBlock), C).
template <class T, int Kind>
struct LikelihoodRows {
  using Likelihood = Likelihoods::At<Kind>;
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  const T* f;
  const T* y;
  const Index* rows;
  Index rows_stride;
  Index first_row;
  Index count;  // R
  Index outputs;
  Index targets;
  Index chain_stride;  // of f and delta
  const T* scales;
  Index noise_stride;
  Index noises;  // 1, or one for each output
  LikelihoodConstants constants;
  double weight;
  T* delta;
  double* terms;
  double* noise;
  Index slots;
  Index slot;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<double, 1> likelihoods(block);
    const Index chain = block.y(), width = outputs / noises;  // outputs of one scale
    for (Index k = 0; k < noises; ++k) {
      const double parameter = scales != nullptr
                                   ? static_cast<double>(scales[chain * noise_stride + k])
                                   : constants.scale;
      block.phase([&](int t) {
        const Index r = block.x() * kBlock + t;
        double own = 0.0, own_noise = 0.0;
        if (r < count) {
          const Index place = first_row + r;
          const Index n = rows != nullptr ? rows[chain * rows_stride + place] : place;
          const Index at = chain * chain_stride + r * outputs + k * width;
          own = likelihood_row<Likelihood, T>(constants, f + at, y + n * targets + k * width, width,
                                              parameter, static_cast<T>(weight), delta + at,
                                              own_noise);
        }
        likelihoods(t)[0] = k == 0 ? own : likelihoods(t)[0] + own;
        if constexpr (Likelihood::kLearnsNoise) sum.value[t] = own_noise;
      });
      if constexpr (Likelihood::kLearnsNoise) {
        sum.reduce(block);
        block.phase([&](int t) {
          if (t == 0) noise[(chain * noises + k) * slots + slot + block.x()] = sum.value[0];
        });
      }
    }
    block.phase([&](int t) { sum.value[t] = likelihoods(t)[0]; });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) terms[chain * slots + slot + block.x()] = sum.value[0];
    });
  }
};

// out[c out_stride + k] = factor (sum of slots + constant) of terms (C, n, slots); also, where grad
// is not null, grad[c grad_stride + k] = that, rounded: the gradient of learned noises.
// Grid: (n, C).
template <class T>
struct SumTerms {
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  const double* terms;
  Index slots;
  double constant;
  double factor;
  double* out;
  Index out_stride;
  T* grad;
  Index grad_stride;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    block.phase([&](int t) {
      double own = 0.0;
      const double* from = terms + (block.y() * block.width() + block.x()) * slots;
      for (Index i = t; i < slots; i += kBlock) own += from[i];
      sum.value[t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t != 0) return;
      const double value = factor * (sum.value[0] + constant);
      if (out != nullptr) out[block.y() * out_stride + block.x()] = value;
      if (grad != nullptr) grad[block.y() * grad_stride + block.x()] = static_cast<T>(value);
    });
  }
};

}  // namespace ribbit::cuda
