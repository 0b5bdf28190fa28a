#pragma once
// A network whose dense layers send each row along two paths. With inputs x, means M, sds S:
//   local (Kingma, Salimans and Welling 2015, eq. 6): z = x M + sqrt(x^2 S^2) e, e normal for each
//     row and unit; the second path carries x^2 and S^2.
//   flipout (Wen et al. 2018, eq. 4): z = x M + ((x s) (S e)) t, e normal for each weight, signs s
//     and t for each row; the second path carries x s and S e. Biases have one noise for all rows.

#include <cstddef>
#include <iterator>

#include "cpu/network/mlp_pass.h"

namespace ribbit::cpu {

enum class Estimator : int { kReparam = 0, kLocal = 1, kFlipout = 2, kCount };
inline constexpr const char* kEstimatorNames[] = {"reparam", "local", "flipout"};
static_assert(std::size(kEstimatorNames) == static_cast<std::size_t>(Estimator::kCount));

// Whether a layer has two paths.
bool has_row_noise(const Layer& layer);

// Values, deltas and the second path's of a whole block of panels: of one thread, or of a batch
// that is split over a team.
template <class T>
class RowNoiseSpace : public PassSpace {
 public:
  explicit RowNoiseSpace(const MlpPlan& plan);
  RowNoiseSpace(const MlpPlan& plan, std::int64_t panels);

  // Panels of each of these, of dense stage number d.
  T* second_input(std::size_t d) { return slab_.data() + inputs_[d]; }  // x^2 or x s
  T* signs(std::size_t d) { return slab_.data() + signs_[d]; }          // s
  T* factor(std::size_t d) { return slab_.data() + factors_[d]; }       // dz / d(second path)
  T* second_delta(std::size_t d) { return slab_.data() + deltas_[d]; }
  // Scratch of the block's panels from number `at` on: (panels, widest layer, kPanel).
  T* below(std::int64_t at) { return slab_.data() + below_ + at * widest_ * kPanel; }
  Workspace<T> first;

  std::int64_t block() const { return block_; }  // panels
  std::int64_t bytes() const {
    return first.bytes() + slab_.size() * static_cast<std::int64_t>(sizeof(T));
  }

 private:
  std::int64_t block_;
  std::vector<std::int64_t> inputs_, signs_, factors_, deltas_;
  std::int64_t below_ = 0, widest_ = 0;
  Buffer<T> slab_;
};

// Weights of a step, packed, and where its noise is.
template <class T>
struct RowNoiseWeights {
  Estimator estimator;
  const T* first;   // (dim,) biases of the first path: means, flipout: drawn ones
  const T* second;  // (dim,) variances, flipout: unused
  const T* packed_first;
  const T* packed_second;
  std::uint64_t seed, step;
  std::uint32_t sample;

  MaskStream stream(const Layer& layer, int side) const;
};

// Sends `panels` panels forward, the block's from number `at` on; returns their outputs (panels, K,
// kPanel). input: theirs, (panels, features, kPanel), whose rows have numbers rows[0], rows[1], ..
// (null: first_row, first_row + 1, ..), `count` in all. cancel: as of forward_group.
template <class T>
const T* row_noise_forward(const MlpPlan& plan, const RowNoiseWeights<T>& weights, const T* input,
                           std::int64_t at, std::int64_t panels, const std::int64_t* rows,
                           std::int64_t first_row, std::int64_t count, RowNoiseSpace<T>& space,
                           Cancel* cancel);

// Sends their deltas down from output_delta(plan, at, space.first) to the lowest dense layer.
template <class T>
void row_noise_backward(const MlpPlan& plan, const RowNoiseWeights<T>& weights, std::int64_t at,
                        std::int64_t panels, RowNoiseSpace<T>& space, Cancel* cancel);

// After row_noise_backward: adds a member's part (clear_part) of every dense layer's gradients by
// the weights of the two paths, (dim,) each, what is drawn once in both; over `rows` rows, the
// block's from panel number `at` on. input: of these rows. scratch: like Workspace's.
template <class T>
void row_noise_gradients(const MlpPlan& plan, Estimator estimator, const T* input, std::int64_t at,
                         std::int64_t rows, const Part& part, RowNoiseSpace<T>& space, T* scratch,
                         T* first, T* second, Cancel* cancel);

}  // namespace ribbit::cpu
