#include "cpu/density/last_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/math_hd.h"
#include "cpu/layers/layers.h"
#include "cpu/network/mlp_plan.h"
#include "cpu/system/dispatch.h"

namespace ribbit::cpu {
namespace {

std::int64_t whole_vectors(std::int64_t count) {
  const std::int64_t lanes = kernels<double>().lanes;
  return (count + lanes - 1) / lanes * lanes;
}

// In an order that does not wait for one sum after the other.
double dot(const double* a, const double* b, std::int64_t n) {
  constexpr std::int64_t kSums = 8;
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (std::int64_t s = 0; s < kSums; ++s) sums[s] += a[i + s] * b[i + s];
  }
  for (; i < n; ++i) sums[i % kSums] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// The matrices of one set of products.
template <class T>
class Normal {
 public:
  Normal(const LastLayer& layer, const LastLayerNoise& noise, LastLayerSpace<T>& space)
      : layer_(layer),
        terms_(layer.terms()),
        outputs_(layer.outputs),
        width_(layer.width),
        stride_(layer.stride),
        inverse_variance_(std::exp(-2.0 * noise.log_scale) / noise.likelihood),
        products_(space.products.data()),
        matrix_(space.matrix.data()),
        right_(space.right.data()),
        mean_(space.mean.data()) {}

  double inverse_variance() const { return inverse_variance_; }  // 1 / v
  double precision(std::int64_t k) const {                       // D_kk
    return layer_.precision[static_cast<std::size_t>(k)];
  }
  double* row(std::int64_t i) { return matrix_ + i * stride_; }

  // The lower triangle of A and the right sides.
  void fill() {
    for (std::int64_t i = 0; i < terms_; ++i) {
      double* a = row(i);
      for (std::int64_t j = 0; j <= i; ++j) a[j] = product(j, i) * inverse_variance_;
      std::fill(a + i + 1, a + stride_, 0.0);
      const double d = precision(i);
      a[i] += d;
      for (std::int64_t j = 0; j < outputs_; ++j) {
        right_[j * terms_ + i] = product(i, terms_ + j) * inverse_variance_ + d * mu(i, j);
      }
    }
  }

  // The upper triangle from the lower one.
  void mirror() {
    for (std::int64_t i = 0; i < terms_; ++i) {
      for (std::int64_t j = 0; j < i; ++j) matrix_[j * stride_ + i] = row(i)[j];
    }
  }

  // m = A^-1 right, of a whole -A^-1.
  void solve() {
    for (std::int64_t j = 0; j < outputs_; ++j) {
      double* mean = mean_ + j * terms_;
      std::fill_n(mean, terms_, 0.0);
      for (std::int64_t i = 0; i < terms_; ++i) {
        const double *a = row(i), by = right_[j * terms_ + i];
        for (std::int64_t k = 0; k < terms_; ++k) mean[k] -= a[k] * by;
      }
    }
  }

  // |y_j - Phi m_j|^2: what cancels in double leaves far more digits than a float's residuals have.
  double residual_squares(std::int64_t j) const {
    const std::int64_t y = terms_ + j;
    double sum = product(y, y);
    for (std::int64_t k = 0; k < terms_; ++k) {
      const double along = dot(products_ + k * width_ + k + 1, mean_of(j) + k + 1, terms_ - k - 1);
      sum += m(k, j) * (product(k, k) * m(k, j) + 2.0 * (along - product(k, y)));
    }
    return sum;
  }

  // (m_j - mu_j)' D (m_j - mu_j)
  double prior_squares(std::int64_t j) const {
    double sum = 0;
    for (std::int64_t k = 0; k < terms_; ++k) {
      const double away = m(k, j) - mu(k, j);
      sum += precision(k) * away * away;
    }
    return sum;
  }

  const double* mean_of(std::int64_t j) const { return mean_ + j * terms_; }
  double m(std::int64_t k, std::int64_t j) const { return mean_of(j)[k]; }

 private:
  double product(std::int64_t i, std::int64_t j) const { return products_[i * width_ + j]; }
  double mu(std::int64_t k, std::int64_t j) const {
    return layer_.mean[static_cast<std::size_t>(k * outputs_ + j)];
  }

  const LastLayer& layer_;
  const std::int64_t terms_, outputs_, width_, stride_;
  const double inverse_variance_;
  const double* products_;
  double *matrix_, *right_, *mean_;
};

// What last_layer_delta multiplies with, of a whole -A^-1.
template <class T>
void weigh_deltas(const LastLayer& layer, Normal<T>& normal, LastLayerSpace<T>& space) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t H = layer.inputs, J = layer.outputs;
  const double weight = normal.inverse_variance();
  const auto count = static_cast<double>(J);
  // One tile of outputs is the factors as they lie.
  const bool whole = H <= k.tile_outputs;
  T* const packed = space.packed.data();
  T* const by_features = whole ? packed : space.factors.data();  // (H, H)
  T* const by_targets = by_features + H * H;                     // (J, H)
  for (std::int64_t i = 0; i < layer.terms(); ++i) {
    const double* a = normal.row(i);
    T* to = i < H ? by_features + i * H : space.start.data();
    double* line = space.line.data();
    for (std::int64_t o = 0; o < H; ++o) line[o] = count * a[o];
    for (std::int64_t j = 0; j < J; ++j) {
      const double *m = normal.mean_of(j), by = m[i];
      for (std::int64_t o = 0; o < H; ++o) line[o] -= by * m[o];
    }
    for (std::int64_t o = 0; o < H; ++o) to[o] = static_cast<T>(weight * line[o]);
  }
  if (!layer.bias) std::fill_n(space.start.data(), H, T(0));
  for (std::int64_t j = 0; j < J; ++j) {
    for (std::int64_t o = 0; o < H; ++o) {
      by_targets[j * H + o] = static_cast<T>(weight * normal.m(o, j));
    }
  }
  if (whole) return;
  const std::int64_t tiles = dense_tiles(H, k.tile_outputs);
  k.pack_tiles(by_features, H, H, false, 0, tiles, H, 0, packed);
  k.pack_tiles(by_targets, J, H, false, 0, tiles, J, 0, packed + H * H);
}

// Of the lower triangle of A (K, stride), in its place; false where it is not positive definite.
bool cholesky(double* a, std::int64_t n, std::int64_t stride) {
  for (std::int64_t j = 0; j < n; ++j) {
    double* row = a + j * stride;
    for (std::int64_t i = 0; i <= j; ++i) {
      const double* other = a + i * stride;
      double sum = row[i];
      for (std::int64_t k = 0; k < i; ++k) sum -= row[k] * other[k];
      if (i < j) {
        row[i] = sum / other[i];
      } else if (sum > 0) {
        row[i] = std::sqrt(sum);
      } else {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

void LastLayer::prepare(double temperature) {
  log_norm = 0;
  precision.clear();
  for (const double s : sd) {
    log_norm += kHalfLogTwoPi - (std::log(s) + kHalfLogTwoPi) / temperature;
    precision.push_back(1.0 / (s * s * temperature));
  }
  width = whole_vectors(columns());
  stride = whole_vectors(terms());
}

std::int64_t LastLayer::scratch() const {
  return few() ? lanes() + kGroupPanels * (columns() + 1) * kPanel : (columns() + width) * kPanel;
}

template <class T>
void LastLayerSpace<T>::resize(const LastLayer& layer, std::int64_t shards, std::int64_t members) {
  const std::int64_t K = layer.terms(), H = layer.inputs, J = layer.outputs;
  shard_products.resize(shards * layer.products());
  scratch.resize(members * layer.scratch());
  products.resize(layer.products());
  matrix.resize(K * layer.stride);
  column.resize(layer.stride);
  pivots.resize(K);
  line.resize(K);
  right.resize(K * J);
  mean.resize(K * J);
  if (layer.alone) return;
  factors.resize(H * H + J * H);
  start.resize(H);
  packed.resize(H * H + J * H);
}

template <class T>
void integrate(const LastLayer& layer, const LastLayerNoise& noise, double rows, bool value,
               bool gradient, LastLayerSpace<T>& space) {
  const std::int64_t K = layer.terms(), J = layer.outputs;
  Normal<T> normal(layer, noise, space);
  normal.fill();
  kernels<double>().sweep(space.matrix.data(), K, layer.stride, space.column.data(),
                          space.pivots.data());
  normal.mirror();
  normal.solve();

  const auto count = static_cast<double>(J), all = rows * count;
  double inside = static_cast<double>(K), residuals = 0;
  for (std::int64_t k = 0; k < K; ++k) inside += normal.row(k)[k] * normal.precision(k);
  // inside: K - tr(A^-1 D)
  double squares = 0;
  for (std::int64_t j = 0; j < J; ++j) {
    const double own = normal.inverse_variance() * normal.residual_squares(j);
    residuals += own;
    if (value) squares += own + normal.prior_squares(j);
  }
  space.noise_gradient = count * inside + residuals - all / noise.likelihood;
  if (value) {
    double log_det = 0;
    bool good = true;
    for (std::int64_t k = 0; k < K; ++k) {
      const double pivot = space.pivots.data()[k];
      good = good && pivot > 0.0;
      log_det += good ? std::log(pivot) : 0.0;
    }
    const double found = count * (layer.log_norm - 0.5 * log_det) - 0.5 * squares -
                         all * (noise.log_scale + kHalfLogTwoPi) / noise.likelihood;
    space.value = good ? found : std::numeric_limits<double>::quiet_NaN();
  }
  if (gradient && !layer.alone) weigh_deltas(layer, normal, space);
}

template <class T>
void last_layer_delta(const LastLayer& layer, const LastLayerSpace<T>& space, const T* f,
                      const T* y, const T* weights, std::int64_t panels, std::int64_t rows,
                      T* delta) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t H = layer.inputs, J = layer.outputs;
  const T* packed = space.packed.data();
  k.multiply(packed, space.start.data(), f, delta, nullptr, kFinishPlain, H, H, panels);
  k.multiply(packed + H * H, nullptr, y, delta, nullptr, kFinishAdd, J, H, panels);
  for (std::int64_t p = rows / kPanel; p < panels; ++p) {
    const std::int64_t valid = std::max<std::int64_t>(0, rows - p * kPanel);
    for (std::int64_t o = 0; o < H; ++o) {
      T* row = delta + (p * H + o) * kPanel;
      std::fill(row + valid, row + kPanel, T(0));
    }
  }
  for (std::int64_t p = 0; weights != nullptr && p < panels; ++p) {
    for (std::int64_t o = 0; o < H; ++o) {
      k.product(delta + (p * H + o) * kPanel, weights + p * kPanel, kPanel,
                delta + (p * H + o) * kPanel);
    }
  }
}

template <class T>
void draw_last_layer(const LastLayer& layer, const LastLayerNoise& noise, const double* z,
                     LastLayerSpace<T>& space, T* weights) {
  const std::int64_t K = layer.terms(), J = layer.outputs, stride = layer.stride;
  Normal<T> normal(layer, noise, space);
  normal.fill();
  const double* l = space.matrix.data();
  if (!cholesky(space.matrix.data(), K, stride)) {
    std::fill_n(weights, K * J, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  for (std::int64_t j = 0; j < J; ++j) {
    double* w = space.mean.data();
    for (std::int64_t i = 0; i < K; ++i) {  // L u = right
      double sum = space.right.data()[j * K + i];
      for (std::int64_t k = 0; k < i; ++k) sum -= l[i * stride + k] * w[k];
      w[i] = sum / l[i * stride + i];
    }
    for (std::int64_t i = K; i-- > 0;) {  // L' w = u + z
      double sum = w[i] + z[i * J + j];
      for (std::int64_t k = i + 1; k < K; ++k) sum -= l[k * stride + i] * w[k];
      w[i] = sum / l[i * stride + i];
    }
    for (std::int64_t k = 0; k < K; ++k) weights[k * J + j] = static_cast<T>(w[k]);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                    \
  template struct LastLayerSpace<T>;                                                             \
  template void integrate(const LastLayer&, const LastLayerNoise&, double, bool, bool,           \
                          LastLayerSpace<T>&);                                                   \
  template void last_layer_delta(const LastLayer&, const LastLayerSpace<T>&, const T*, const T*, \
                                 const T*, std::int64_t, std::int64_t, T*);                      \
  template void draw_last_layer(const LastLayer&, const LastLayerNoise&, const double*,          \
                                LastLayerSpace<T>&, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
