#pragma once
// Weights with learned scales, non-centred: what moves is z and the logarithms u of the scales, the
// network sees w = m z. A weight's m is its scale exp(u), times one that several share and under a
// slab where there are those (Betancourt and Girolami 2015; Piironen and Vehtari 2017).

#include <cstdint>
#include <vector>

namespace ribbit::cpu {

// A run of weights and their scales, by number from 0.
struct ScaleSegment {
  std::int64_t offset, size;         // of the weights
  std::int64_t first, block, count;  // weight i of the run has the scale first + i / block % count
  std::int64_t global = -1, slab = -1;  // that the run shares; -1: none
  double factor = 1.0;                  // of m
};

template <class T>
class Scales {
 public:
  // Positions of `dim` numbers, `network_dim` of them before the log noise; the last ones are the
  // log scales, as many as the segments name. Throws std::invalid_argument for others.
  Scales(std::vector<ScaleSegment> segments, std::int64_t network_dim, std::int64_t dim);
  Scales(const Scales&) = delete;
  Scales& operator=(const Scales&) = delete;

  std::int64_t count() const { return count_; }
  std::int64_t first() const { return dim_ - count_; }  // where the log scales lie
  // Numbers in the arrays `multipliers` and `sums` of a gradient.
  std::int64_t sums() const { return sums_; }

  // What the network sees of the parameters [begin, end) of theta (dim,): weights, and the rest as
  // it is.
  void weights(const T* theta, std::int64_t begin, std::int64_t end, T* w) const;
  // The same of chunk c, with what chain_rule needs of it.
  void weights(const T* theta, std::int64_t c, T* w, double* multipliers) const;
  // Chunk c of kScaleChunk parameters: the gradient by w becomes that by z, and what each scale
  // gets of it is noted in sums.
  void chain_rule(const T* w, std::int64_t c, const double* multipliers, T* grad,
                  double* sums) const;
  // After chain_rule of all chunks: the gradient by the log scales among the parameters of chunk c,
  // added up in the order of the chunks.
  void gather(const double* sums, std::int64_t c, T* grad) const;

 private:
  // What a segment has in a chunk: weights [begin, end), scales first + (group + j) % count.
  struct Piece {
    const ScaleSegment* segment;
    std::int64_t begin, end, group, groups, at;  // at: place in sums
  };
  // (groups, 2): m without a weight's z, and d log m / d log of its scale; the slab has the rest.
  void multipliers_of(const Piece& p, const T* theta, double* out) const;
  Piece piece(const ScaleSegment& s, std::int64_t begin, std::int64_t end) const;
  void of_piece(const Piece& p, const T* theta, const double* multipliers, T* w) const;

  std::vector<ScaleSegment> segments_;
  std::int64_t dim_, count_ = 0, sums_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> of_chunk_;          // (chunks + 1,) first piece of each chunk
  std::vector<std::int64_t> terms_, of_scale_;  // places in sums; (count + 1,) first of each scale
};

inline constexpr std::int64_t kScaleChunk = 2048;

extern template class Scales<float>;
extern template class Scales<double>;

}  // namespace ribbit::cpu
