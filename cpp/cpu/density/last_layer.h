#pragma once
// The last dense layer of a network integrated out of a Gaussian likelihood with a normal prior.
//
// With features Phi (N, K) of the layers below, a column of ones where there is a bias, weights
// w_j (K,) of output j with prior N(mu_j, S), S = diag(s^2), and noise sigma, the tempered density
//
//   prod_j [ N(y_j; Phi w_j, sigma^2 I)^(1 / T_l) N(w_j; mu_j, S) ]^(1 / T)
//
// is integrated over all w_j (Rasmussen and Williams 2006, section 2.1; with temperatures here).
// With v = sigma^2 T_l T, D = (S T)^-1, A = Phi' Phi / v + D and m_j = A^-1 (Phi' y_j / v + D
// mu_j):
//
//   log density = -N J (log sigma + log(2 pi) / 2) / (T_l T)
//                 - J sum_k ((log s_k + log(2 pi) / 2) / T - log(2 pi) / 2) - J log det A / 2
//                 - sum_j (|y_j - Phi m_j|^2 / v + (m_j - mu_j)' D (m_j - mu_j)) / 2
//   d / d phi_n     = (sum_j (y_nj - phi_n m_j) m_j - J A^-1 phi_n) / v
//   d / d log sigma = -N J / (T_l T) + J (K - tr(A^-1 D)) + sum_j |y_j - Phi m_j|^2 / v
//
// and given all else w_j is N(m_j, A^-1). A is the same for all outputs. Where rows have weights r,
// the density of row n is taken r_n times: products and squares are sums weighted by r, N is their
// sum, and r_n multiplies d / d phi_n.

#include <cstdint>
#include <vector>

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/system/buffer.h"

namespace ribbit::cpu {

// What is integrated out.
struct LastLayer {
  std::int64_t inputs, outputs;  // H, J
  bool bias;
  bool alone;                // no layer lies below: the features are the data
  std::vector<double> sd;    // (K,) s
  std::vector<double> mean;  // (K, J) mu

  // By prepare(T), at posterior temperature T:
  double log_norm = 0;            // sum_k (log(2 pi) / 2 - (log s_k + log(2 pi) / 2) / T)
  std::vector<double> precision;  // (K,) D_kk
  std::int64_t width = 0;         // of the rows of the products
  std::int64_t stride = 0;        // of the rows of A
  void prepare(double temperature);

  std::int64_t terms() const { return inputs + (bias ? 1 : 0); }  // K
  std::int64_t columns() const { return terms() + outputs; }      // of the products: Phi and y
  std::int64_t products() const { return columns() * width; }     // scalars
  bool few() const { return columns() <= kFewColumns; }
  std::int64_t lanes() const {  // scalars of the sums by rows of few columns
    return few() ? columns() * (columns() + 1) / 2 * kGramLanes : 0;
  }
  std::int64_t scratch() const;  // scalars that a member needs for its products
};

// The noise and its temperature.
struct LastLayerNoise {
  double log_scale;
  double likelihood;  // T_l T
};

// What a team works in.
template <class T>
struct LastLayerSpace {
  Buffer<double> shard_products;  // (shards, columns, width)
  Buffer<double> scratch;         // (members, layer.scratch())
  Buffer<double> products;        // (columns, width) of [Phi y]' [Phi y]: above the diagonal
  Buffer<double> matrix;          // (K, stride): A, then -A^-1
  Buffer<double> column, pivots;  // (stride,), (K,)
  Buffer<double> right, mean;     // (J, K) each: Phi' y / v + D mu, then m
  Buffer<double> line;            // (K,) to work in
  // delta = start + phi by_features + y by_targets: (H,), (H, H), (J, H); factors: the last two
  Buffer<T> start, factors, packed;  // packed: those in tiles
  double value = 0, noise_gradient = 0;

  void resize(const LastLayer& layer, std::int64_t shards, std::int64_t members);
};

// From `products`: m, -A^-1, the noise's gradient; where they are wanted the value, which is NaN
// where A is not positive definite, and what a panel's delta needs. rows: N, or the sum of their
// weights.
template <class T>
void integrate(const LastLayer& layer, const LastLayerNoise& noise, double rows, bool value,
               bool gradient, LastLayerSpace<T>& space);

// The deltas (panels, H, kPanel) of features f (panels, H, kPanel), of which `rows` rows count. y:
// (panels, J, kPanel); weights: (panels, kPanel), or null.
template <class T>
void last_layer_delta(const LastLayer& layer, const LastLayerSpace<T>& space, const T* f,
                      const T* y, const T* weights, std::int64_t panels, std::int64_t rows,
                      T* delta);

// From `products`: weights (K, J) m_j + L'^-1 z_j with A = L L' and normals z (K, J). space.matrix
// and the rest are overwritten.
template <class T>
void draw_last_layer(const LastLayer& layer, const LastLayerNoise& noise, const double* z,
                     LastLayerSpace<T>& space, T* weights);

}  // namespace ribbit::cpu
