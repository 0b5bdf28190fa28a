// How a gradient moves a parameter, uphill, on numbers or SIMD vectors T (see ops_hd.h). Division
// and reciprocal are exact in scalars, and within 1.5 ulp on AVX-512.
#pragma once

#include "core/activation_hd.h"
#include "core/math_hd.h"

namespace ribbit {

// Constants of one step; those that a rule does not have are ignored.
template <class T>
struct UpdateConstants {
  T step;                // factor of the gradient
  T noise;               // sd of the noise
  T keep;                // friction, kinetic: what a step leaves of the velocity
  T decay1, decay2;      // of the running moments
  T rest1, rest2;        // 1 - decay
  T correct1, correct2;  // adam: 1 / (1 - decay^t)
  T epsilon;             // added to the root of the second moment
  T scale;               // preconditioner: of the gradient in the second moment
  bool adapt;            // preconditioner: whether the second moment moves
};

// A rule moves a parameter t by its gradient g and a standard normal z, with two moments of which
// it uses what it says. Returns what must be finite for t to stay so.

// theta += step g + noise z
struct LangevinUpdate {
  static constexpr bool kFirst = false, kSecond = false, kNoise = true;
  template <class T>
  RIBBIT_HD_MEMBER T apply(const UpdateConstants<T>& c, T g, T z, T& t, T&, T&) {
    using O = Ops<T>;
    t = O::fma(c.noise, z, O::fma(c.step, g, t));
    return t;
  }
};

// second = decay2 second + (1 - decay2) (scale g)^2 while adapting; G = 1 / (epsilon + sqrt second)
// theta += step G g + noise sqrt(G) z
struct PreconditionedUpdate {
  static constexpr bool kFirst = false, kSecond = true, kNoise = true;
  template <class T>
  RIBBIT_HD_MEMBER T apply(const UpdateConstants<T>& c, T g, T z, T& t, T&, T& v) {
    using O = Ops<T>;
    if (c.adapt) {
      const T scaled = g * c.scale;
      v = O::fma(c.decay2, v, c.rest2 * scaled * scaled);
    }
    const T metric = O::reciprocal(O::sqrt(v) + c.epsilon);
    t = O::fma(c.step * metric, g, t);
    t = O::fma(c.noise * O::sqrt(metric), z, t);
    return v;
  }
};

// The velocity's sd is the root of the step size: by so much a change of the step size moves it.
// Without it a falling schedule would leave it too wide, and theta after it (cosine over 1,000
// steps of 1e-2, friction 0.01: twice the variance).
RIBBIT_HD double velocity_factor(double step_size, double before) {
  return before > 0.0 ? Ops<double>::sqrt(step_size / before) : 0.0;
}

// velocity = keep velocity + step g + noise z; theta += velocity
struct FrictionUpdate {
  static constexpr bool kFirst = true, kSecond = false, kNoise = true;
  template <class T>
  RIBBIT_HD_MEMBER T apply(const UpdateConstants<T>& c, T g, T z, T& t, T& v, T&) {
    using O = Ops<T>;
    v = c.keep * v;
    v = O::fma(c.noise, z, O::fma(c.step, g, v));
    t = t + v;
    return t;
  }
};

// A step of kinetic Langevin dynamics between two gradients (Leimkuhler and Matthews 2013: BAOAB
// cut at its gradients). Positions are scale times whitened ones, velocities whitened:
//   velocity += step scale g; theta += step/2 scale velocity
//   velocity = keep velocity + noise z; theta += step/2 scale velocity
// The second moment holds the scale and stays.
struct KineticUpdate {
  static constexpr bool kFirst = true, kSecond = true, kNoise = true;
  template <class T>
  RIBBIT_HD_MEMBER T apply(const UpdateConstants<T>& c, T g, T z, T& t, T& u, T& scale) {
    using O = Ops<T>;
    const T kick = c.step * scale, drift = O::set(0.5) * kick;
    u = O::fma(kick, g, u);
    t = O::fma(drift, u, t);
    u = O::fma(c.noise, z, c.keep * u);
    t = O::fma(drift, u, t);
    return t;
  }
};

// Adam (Kingma and Ba 2015, algorithm 1).
struct AdamUpdate {
  static constexpr bool kFirst = true, kSecond = true, kNoise = false;
  template <class T>
  RIBBIT_HD_MEMBER T apply(const UpdateConstants<T>& c, T g, T, T& t, T& m, T& v) {
    using O = Ops<T>;
    m = O::fma(c.decay1, m, c.rest1 * g);
    v = O::fma(c.decay2, v, c.rest2 * g * g);
    const T below = O::sqrt(v * c.correct2) + c.epsilon;
    t = O::fma(c.step, O::divide(m * c.correct1, below), t);
    return below;
  }
};

// Of a mean-field Gaussian with sd = softplus(rho): the ascent on
//   weight * (gradients by mean and sd) + entropy * log sd - shrink / 2 * (away^2 + sd^2)
// by mean and rho, away = mean less the prior's centre. slope / sd, slope = sigmoid(rho), keeps its
// digits where both vanish: with e = exp(-|rho|), sd = e log1p_ratio(e) for rho < 0.
template <class T>
RIBBIT_HD void mean_field_ascent(T away, T rho, T by_mean, T by_sd, T weight, T entropy, T shrink,
                                 T& mean_gradient, T& rho_gradient) {
  using O = Ops<T>;
  const T zero = O::set(0.0), one = O::set(1.0);
  T sd, slope;
  activation<kSoftplus, false, T>(rho, sd, slope);
  const T e = exp_minus_abs<T>(rho);
  const T below = (one + e) * log1p_ratio<T>(e);
  const T ratio = O::select(rho < zero, O::divide(one, below), O::divide(slope, sd));
  mean_gradient = O::fma(-shrink, away, by_mean * weight);
  rho_gradient = O::fma(O::fma(-shrink, sd, by_sd * weight), slope, entropy * ratio);
}

}  // namespace ribbit
