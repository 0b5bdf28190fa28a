#include "cpu/network/scales.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace ribbit::cpu {
namespace {

// Calls body(begin, end, j) for runs of weights with one scale, group + j; `at` is the first.
template <class Body>
void for_runs(std::int64_t block, std::int64_t at, std::int64_t begin, std::int64_t end,
              std::int64_t groups, const Body& body) {
  std::int64_t j = 0;
  if (block == 1) {  // neighbours have scales of their own
    for (std::int64_t i = begin; i < end; j = j + 1 == groups ? 0 : j + 1, ++i) body(i, i + 1, j);
    return;
  }
  for (std::int64_t i = begin; i < end; j = j + 1 == groups ? 0 : j + 1) {
    const std::int64_t stop = std::min(end, i + block - (i - at) % block);
    body(i, stop, j);
    i = stop;
  }
}

// In eight partial sums, whatever the instruction set.
template <class T>
double dot(const T* a, const T* b, std::int64_t n) {
  if (n == 1) return static_cast<double>(*a) * static_cast<double>(*b);
  double parts[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int l = 0; l < 8; ++l) {
      parts[l] += static_cast<double>(a[i + l]) * static_cast<double>(b[i + l]);
    }
  }
  for (; i < n; ++i) parts[i % 8] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) +
         ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

}  // namespace

template <class T>
Scales<T>::Scales(std::vector<ScaleSegment> segments, std::int64_t network_dim, std::int64_t dim)
    : segments_(std::move(segments)), dim_(dim) {
  std::int64_t end = 0;
  for (const ScaleSegment& s : segments_) {
    if (s.offset < end || s.size < 1 || s.offset + s.size > network_dim || s.first < 0 ||
        s.block < 1 || s.count < 1 || !(s.factor > 0.0)) {
      throw std::invalid_argument("[Scales] expected runs of weights in order, with their scales");
    }
    end = s.offset + s.size;
    count_ = std::max({count_, s.first + s.count, s.global + 1, s.slab + 1});
  }
  if (count_ < 1 || network_dim + count_ > dim) {
    throw std::invalid_argument("[Scales] expected positions that end with the log scales");
  }
  // What the chunks have of the segments; two sums for each of their scales.
  for (std::int64_t begin = 0; begin < dim; begin += kScaleChunk) {
    of_chunk_.push_back(static_cast<std::int64_t>(pieces_.size()));
    for (const ScaleSegment& s : segments_) {
      Piece p = piece(s, begin, std::min(dim, begin + kScaleChunk));
      if (p.begin >= p.end) continue;
      p.at = sums_;
      sums_ += 2 * p.groups;
      pieces_.push_back(p);
    }
  }
  of_chunk_.push_back(static_cast<std::int64_t>(pieces_.size()));
  std::vector<std::vector<std::int64_t>> terms(static_cast<std::size_t>(count_));
  for (const Piece& p : pieces_) {
    const ScaleSegment& s = *p.segment;
    for (std::int64_t j = 0; j < p.groups; ++j) {
      const std::int64_t at = p.at + 2 * j;
      terms[static_cast<std::size_t>(s.first + (p.group + j) % s.count)].push_back(at);
      if (s.global >= 0) terms[static_cast<std::size_t>(s.global)].push_back(at);
      if (s.slab >= 0) terms[static_cast<std::size_t>(s.slab)].push_back(at + 1);
    }
  }
  for (const std::vector<std::int64_t>& of : terms) {
    of_scale_.push_back(static_cast<std::int64_t>(terms_.size()));
    terms_.insert(terms_.end(), of.begin(), of.end());
  }
  of_scale_.push_back(static_cast<std::int64_t>(terms_.size()));
}

template <class T>
typename Scales<T>::Piece Scales<T>::piece(const ScaleSegment& s, std::int64_t begin,
                                           std::int64_t end) const {
  const std::int64_t b = std::max(begin, s.offset), e = std::min(end, s.offset + s.size);
  if (b >= e) return {&s, b, e, 0, 0, 0};
  const std::int64_t first = (b - s.offset) / s.block, last = (e - 1 - s.offset) / s.block;
  return {&s, b, e, first % s.count, std::min(s.count, last - first + 1), 0};
}

// A slab c bounds the product t of the scales: m = t / sqrt(1 + (t / c)^2).
template <class T>
void Scales<T>::multipliers_of(const Piece& p, const T* theta, double* out) const {
  constexpr double kMost = 1e100;  // of t / c, whose square is finite
  const ScaleSegment& s = *p.segment;
  const T* u = theta + first();
  const auto scale = [u](std::int64_t number) { return std::exp(static_cast<double>(u[number])); };
  const double shared = s.global >= 0 ? scale(s.global) : 1.0;
  const double slab = s.slab >= 0 ? scale(s.slab) : 0.0;
  for (std::int64_t j = 0, k = p.group; j < p.groups; ++j) {
    double m = shared * scale(s.first + k), share = 1.0;
    if (s.slab >= 0) {
      const double ratio = m / slab, some = ratio > kMost ? kMost : ratio;
      share = 1.0 / (1.0 + some * some);
      m = slab * (some * std::sqrt(share));
    }
    out[2 * j] = s.factor * m;
    out[2 * j + 1] = share;
    if (++k == s.count) k = 0;
  }
}

template <class T>
void Scales<T>::of_piece(const Piece& p, const T* theta, const double* multipliers, T* w) const {
  const ScaleSegment& s = *p.segment;
  for_runs(s.block, s.offset, p.begin, p.end, p.groups,
           [&](std::int64_t b, std::int64_t e, std::int64_t j) {
             const T m = static_cast<T>(multipliers[2 * j]);
             for (std::int64_t i = b; i < e; ++i) w[i] = m * theta[i];
           });
}

template <class T>
void Scales<T>::weights(const T* theta, std::int64_t begin, std::int64_t end, T* w) const {
  double multipliers[2 * kScaleChunk];
  for (std::int64_t at = begin; at < end; at += kScaleChunk) {
    const std::int64_t stop = std::min(end, at + kScaleChunk);
    std::copy(theta + at, theta + stop, w + at);
    for (const ScaleSegment& s : segments_) {
      const Piece p = piece(s, at, stop);
      if (p.begin >= p.end) continue;
      multipliers_of(p, theta, multipliers);
      of_piece(p, theta, multipliers, w);
    }
  }
}

template <class T>
void Scales<T>::weights(const T* theta, std::int64_t c, T* w, double* multipliers) const {
  const std::int64_t begin = c * kScaleChunk, end = std::min(dim_, begin + kScaleChunk);
  std::copy(theta + begin, theta + end, w + begin);
  const auto chunk = static_cast<std::size_t>(c);
  for (std::int64_t number = of_chunk_[chunk]; number < of_chunk_[chunk + 1]; ++number) {
    const Piece& p = pieces_[static_cast<std::size_t>(number)];
    multipliers_of(p, theta, multipliers + p.at);
    of_piece(p, theta, multipliers + p.at, w);
  }
}

template <class T>
void Scales<T>::chain_rule(const T* w, std::int64_t c, const double* multipliers, T* grad,
                           double* sums) const {
  const auto chunk = static_cast<std::size_t>(c);
  for (std::int64_t number = of_chunk_[chunk]; number < of_chunk_[chunk + 1]; ++number) {
    const Piece& p = pieces_[static_cast<std::size_t>(number)];
    const ScaleSegment& s = *p.segment;
    const double* of = multipliers + p.at;
    double* sum = sums + p.at;
    std::fill_n(sum, 2 * p.groups, 0.0);
    for_runs(s.block, s.offset, p.begin, p.end, p.groups,
             [&](std::int64_t b, std::int64_t e, std::int64_t j) {
               sum[2 * j] += dot(grad + b, w + b, e - b);
               const T m = static_cast<T>(of[2 * j]);
               for (std::int64_t i = b; i < e; ++i) grad[i] *= m;
             });
    for (std::int64_t j = 0; j < p.groups; ++j) {
      sum[2 * j + 1] = (1.0 - of[2 * j + 1]) * sum[2 * j];
      sum[2 * j] *= of[2 * j + 1];
    }
  }
}

template <class T>
void Scales<T>::gather(const double* sums, std::int64_t c, T* grad) const {
  const std::int64_t begin = std::max(first(), c * kScaleChunk);
  const std::int64_t end = std::min(dim_, (c + 1) * kScaleChunk);
  for (std::int64_t i = begin; i < end; ++i) {
    const auto scale = static_cast<std::size_t>(i - first());
    double sum = 0;
    for (std::int64_t k = of_scale_[scale]; k < of_scale_[scale + 1]; ++k) {
      sum += sums[terms_[static_cast<std::size_t>(k)]];
    }
    grad[i] = static_cast<T>(sum);
  }
}

template class Scales<float>;
template class Scales<double>;

}  // namespace ribbit::cpu
