#pragma once
// Monte Carlo forward: one batch of rows under many weight vectors, or under many masks of one, and
// what the outputs say about y, streamed over the draws.

#include <atomic>
#include <vector>

#include "core/likelihood_hd.h"
#include "cpu/layers/row_blocks.h"
#include "cpu/network/network_pass.h"
#include "cpu/network/scales.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {

// Where the weights and the masks of sample s come from; one of the three.
template <class T>
struct WeightSource {
  std::int64_t dim = 0;  // >= network.dim(); what follows the network's is the log noise

  // Stored: (chains, draws, dim), and sample s is draw s / chains of chain s % chains.
  const T* theta = nullptr;
  std::int64_t chains = 1, draws = 1;

  // Drawn when needed: mean + scale * z, (dim,) each, z the normals of (seed, sample).
  const T *mean = nullptr, *scale = nullptr;
  std::uint64_t seed = 0;

  // Masked: theta is one vector, and there is a mask for each (seed, sample, row, unit), or with
  // `shared` for each (seed, sample, unit). Row 0 of x has number first_row.
  bool masked = false, shared = false;
  std::int64_t first_row = 0;

  // Learned scales: stored or drawn are positions, of which these make weights. Null: none.
  const Scales<T>* scales = nullptr;
};

template <class T>
class Forward {
 public:
  // x: rows of features; all arrays must outlive this object. samples: how many will be asked for.
  // noises: learned log noises, the parameters behind the network's.
  Forward(const Network& network, const WeightSource<T>& source, const Rows<T>& x,
          std::int64_t rows, std::int64_t samples, Poll* poll, std::int64_t noises = 0);

  // Samples first .. first + samples - 1 at rows row .. row + rows - 1, row a multiple of kPanel,
  // into out (samples, rows, outputs), and their log noises (samples, noises). Without masks
  // dropout layers are inactive; with masks, what lies before the first one is computed once. False
  // when cancelled.
  bool run(std::int64_t first, std::int64_t samples, std::int64_t row, std::int64_t rows, T* out,
           T* log_noise);

  // Runs body(thread, piece) for piece = 0..pieces - 1 on the same threads. False when cancelled.
  template <class Body>
  bool on_pieces(std::int64_t pieces, const Body& body);

  // For bodies that take long.
  bool cancelled() { return cancel_.check(); }

  std::int64_t outputs() const { return outputs_; }
  std::int64_t group() const { return group_; }  // panels that travel together
  int threads() const { return crew_.size(); }

 private:
  struct Request {
    std::int64_t first, samples, row, rows;
    T* out;
    T* log_noise;
  };
  struct Space {
    std::unique_ptr<PassSpace> work;
    Buffer<T> theta, packed, start, position;
    std::int64_t loaded = -1;  // the sample whose weights are packed
  };
  // The samples of one panel of lanes.
  struct LaneSamples {
    std::uint64_t number[kPanel];
    const T* theta[kPanel];  // stored weights
  };
  const T* stored(std::int64_t sample) const {
    const std::int64_t chain = sample % source_.chains, draw = sample / source_.chains;
    return source_.theta + (chain * source_.draws + draw) * source_.dim;
  }
  const T* load_sample(Space& space, std::int64_t sample);
  void load_lanes(const LaneSamples& samples, std::int64_t first, std::int64_t count, T* out) const;
  void samples_in_lanes(Space& space, const Request& r, std::int64_t piece);
  void one_sample(Space& space, const Request& r, std::int64_t piece);
  void all_masks(Space& space, const Request& r, std::int64_t piece);
  void masks_in_lanes(Space& space, const Request& r, std::int64_t piece);
  const T* before_masks(Space& space, const T* input, std::int64_t panels);

  const WeightSource<T> source_;
  const std::unique_ptr<const NetworkPass<T>> pass_;
  const std::int64_t group_, outputs_, network_dim_, noises_;
  const std::size_t fixed_;   // stages before the first mask
  const std::int64_t width_;  // of what they give
  BatchRows<T> x_;
  Cancel cancel_;
  Crew crew_;
  std::vector<Space> spaces_;
  Buffer<T> packed_, prefix_;
};

// Running moments over draws of the means or probabilities, relative to the first draw's: first,
// sum, squares (rows, K); extra: summed variance of the noise (rows, K), or for classification the
// summed entropies (rows,). K: outputs, or half of them for a heteroscedastic likelihood.
struct PredictiveMoments {
  double *first, *sum, *squares, *extra;
};

// Over `samples` samples of the source in their order, so that the number of threads changes no
// bit. False when cancelled.
template <class T>
bool predictive_moments(const Network& network, const WeightSource<T>& source, LikelihoodKind kind,
                        const LikelihoodParameters& parameters, std::int64_t samples,
                        const Rows<T>& x, std::int64_t rows, const PredictiveMoments& out,
                        Poll* poll);

extern template class Forward<float>;
extern template class Forward<double>;

}  // namespace ribbit::cpu
