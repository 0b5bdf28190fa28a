// Sums of products of the columns of panels, and the inverse of such a matrix, in double: what a
// last layer that is integrated out needs (cpu/density/last_layer.h).
#pragma once

#include "cpu/isa/weight_gradient-inl.h"

namespace ribbit::cpu {
namespace {

RIBBIT_INLINE void widen_row(const double* from, double* to) {
  for (int r = 0; r < kPanel; ++r) to[r] = from[r];
}
RIBBIT_INLINE void widen_row(const float* from, double* to) {
  constexpr int lanes = kLanes<float>;
  RIBBIT_UNROLL for (int r = 0; r < kPanel; r += lanes) {
    const VecF32 v = load<float>(from + r);
    store<double>(to + r, widen_low(v));
    store<double>(to + r + lanes / 2, widen_high(v));
  }
}

// See the table. Products of floats are exact, before they are weighted; a row is added after the
// other.
template <class T>
static void gram_panel(const T* f, std::int64_t features, bool ones, const T* y,
                       std::int64_t targets, int valid, const T* weights, double* scratch,
                       double* gram) {
  constexpr int lanes = kLanes<double>;
  const std::int64_t columns = features + (ones ? 1 : 0) + targets;
  const std::int64_t width = (columns + lanes - 1) / lanes * lanes;
  double *z = scratch, *row = scratch, *transposed = scratch + columns * kPanel;
  for (std::int64_t i = 0; i < features; ++i, row += kPanel) widen_row(f + i * kPanel, row);
  for (int r = 0; ones && r < kPanel; ++r) row[r] = 1.0;
  if (ones) row += kPanel;
  for (std::int64_t j = 0; j < targets; ++j, row += kPanel) widen_row(y + j * kPanel, row);
  transpose_delta<double>(z, 1, columns, columns, output_groups<double>(width, 1), transposed);
  for (std::int64_t i = 0; weights != nullptr && i < columns; ++i) {
    double* column = z + i * kPanel;
    for (int r = 0; r < kPanel; ++r) column[r] *= static_cast<double>(weights[r]);
  }
  const Sites sites{1, 1, 0, 0, 0, 0, valid};
  // Of each vector of columns the rows down to the diagonal.
  for (std::int64_t first = 0; first < width; first += lanes) {
    const std::int64_t end = first + lanes;
    outer_columns<double, 1>(z, transposed + first * kPanel, sites, end < columns ? end : columns,
                             width, first, gram);
  }
}

// Row i of what `gram_lanes` adds to: the products of column i with itself and the count - 1
// columns behind it, over so many blocks of kGramLanes rows. The panels of a column lie `stride`
// apart.
template <int count, bool weighted>
static void gram_row(const double* z, const double* weights, std::int64_t blocks,
                     std::int64_t stride, double* sums) {
  constexpr int lanes = kLanes<double>, groups = kGramLanes / lanes;
  for (int group = 0; group < groups; ++group) {
    const int at = group * lanes;
    VecF64 sum[count];
    RIBBIT_UNROLL for (int j = 0; j < count; ++j) sum[j] = load<double>(sums + j * kGramLanes + at);
    for (std::int64_t b = 0; b < blocks; ++b) {
      constexpr std::int64_t parts = kPanel / kGramLanes;
      const std::int64_t first = b / parts * stride + b % parts * kGramLanes + at;
      VecF64 own = load<double>(z + first);
      if constexpr (weighted) own = own * load<double>(weights + first);
      RIBBIT_UNROLL for (int j = 0; j < count; ++j) {
        sum[j] = mul_add(own, load<double>(z + first + j * kPanel), sum[j]);
      }
    }
    RIBBIT_UNROLL for (int j = 0; j < count; ++j) store<double>(sums + j * kGramLanes + at, sum[j]);
  }
}

template <bool weighted>
static void gram_rows(const double* z, std::int64_t columns, std::int64_t blocks,
                      std::int64_t stride, double* sums) {
  static_assert(kFewColumns == 8);
  const double* const weights = z + columns * kPanel;
  for (std::int64_t i = 0; i < columns; ++i, z += kPanel) {
    const std::int64_t count = columns - i;
    switch (count) {
#define RIBBIT_ROW(n)                                        \
  case n:                                                    \
    gram_row<n, weighted>(z, weights, blocks, stride, sums); \
    break
      RIBBIT_ROW(1);
      RIBBIT_ROW(2);
      RIBBIT_ROW(3);
      RIBBIT_ROW(4);
      RIBBIT_ROW(5);
      RIBBIT_ROW(6);
      RIBBIT_ROW(7);
      RIBBIT_ROW(8);
#undef RIBBIT_ROW
      default:
        break;
    }
    sums += count * kGramLanes;
  }
}

// See the table. Products of floats are exact, before they are weighted.
template <class T>
static void gram_lanes(const T* f, std::int64_t features, bool ones, const T* y,
                       std::int64_t targets, std::int64_t panels, std::int64_t rows,
                       const T* weights, double* scratch, double* sums) {
  const std::int64_t columns = features + (ones ? 1 : 0) + targets;
  const std::int64_t stride = (columns + (weights != nullptr ? 1 : 0)) * kPanel;
  for (std::int64_t p = 0; p < panels; ++p) {
    double *const z = scratch + p * stride, *row = z;
    for (std::int64_t i = 0; i < features; ++i, row += kPanel) {
      widen_row(f + (p * features + i) * kPanel, row);
    }
    for (int r = 0; ones && r < kPanel; ++r) row[r] = 1.0;
    if (ones) row += kPanel;
    for (std::int64_t j = 0; j < targets; ++j, row += kPanel) {
      widen_row(y + (p * targets + j) * kPanel, row);
    }
    if (weights != nullptr) widen_row(weights + p * kPanel, row);
    const std::int64_t valid = rows - p * kPanel;
    for (std::int64_t i = 0; valid < kPanel && i < columns; ++i) {
      for (std::int64_t r = valid; r < kPanel; ++r) z[i * kPanel + r] = 0.0;
    }
  }
  const std::int64_t blocks = (rows + kGramLanes - 1) / kGramLanes;
  if (weights != nullptr) {
    gram_rows<true>(scratch, columns, blocks, stride, sums);
  } else {
    gram_rows<false>(scratch, columns, blocks, stride, sums);
  }
}

static void gram_finish(const double* sums, std::int64_t columns, std::int64_t width,
                        double* gram) {
  for (std::int64_t i = 0; i < columns; ++i) {
    for (std::int64_t j = i; j < columns; ++j, sums += kGramLanes) {
      double half[kGramLanes / 2];
      for (int l = 0; l < kGramLanes / 2; ++l) half[l] = sums[l] + sums[l + kGramLanes / 2];
      gram[i * width + j] = (half[0] + half[2]) + (half[1] + half[3]);
    }
  }
}

// The symmetric sweep operator (Dempster 1969, "Elements of continuous multivariate analysis",
// section 4.3) on every row in turn: the pivots are those of a Cholesky factorisation, squared.
static void sweep_matrix(double* a, std::int64_t n, std::int64_t stride, double* column,
                         double* pivots) {
  constexpr int lanes = kLanes<double>;
  for (std::int64_t j = n; j < stride; ++j) column[j] = 0.0;
  for (std::int64_t k = 0; k < n; ++k) {
    double* own = a + k * stride;
    const double pivot = own[k], inverse = 1.0 / pivot;
    pivots[k] = pivot;
    for (std::int64_t j = 0; j < k; ++j) column[j] = own[j];
    for (std::int64_t j = k; j < n; ++j) column[j] = a[j * stride + k];
    for (std::int64_t i = 0; i < n; ++i) {
      double* row = a + i * stride;
      const VecF64 factor = broadcast(-column[i] * inverse);
      for (std::int64_t j = 0; j <= i; j += lanes) {
        store<double>(row + j, mul_add(factor, load<double>(column + j), load<double>(row + j)));
      }
    }
    for (std::int64_t j = 0; j < k; ++j) own[j] = column[j] * inverse;
    own[k] = -inverse;
    for (std::int64_t i = k + 1; i < n; ++i) a[i * stride + k] = column[i] * inverse;
  }
}

}  // namespace
}  // namespace ribbit::cpu
