#pragma once
// The log posterior of a network on data, its gradient, and whole leapfrog trajectories.
//
//   log density = (log likelihood / likelihood_temperature + log prior) / temperature
//
// Rows are cut into at most 16 shards by (N, dim) alone; a shard adds its panels in order and a
// fixed tree adds the shards, so no result depends on the number of threads or chains.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/likelihood_hd.h"
#include "core/network.h"
#include "core/prior_hd.h"
#include "cpu/density/stochastic_steps.h"
#include "cpu/density/variational.h"
#include "cpu/layers/row_blocks.h"
#include "cpu/layers/rows.h"
#include "cpu/network/graph_pass.h"
#include "cpu/network/mlp_pass.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {

// A run of parameters under one prior (kinds and constants of core/prior_hd.h).
struct PriorSegment {
  std::int64_t offset, size;
  PriorKind kind;
  double a, b, c;
};

struct Temperatures {
  double posterior = 1.0;
  double likelihood = 1.0;
};

// num_steps[c] >= 1 leapfrog steps of size step_size[c] of each chain, (chains, dim) arrays. grad:
// at the position; null: it is evaluated first. mass: inverse, (dim,) or (chains, dim) with
// mass_stride = dim, or null for ones. The terms (chains,) are those at the end.
template <class T>
struct Trajectories {
  std::int64_t chains;
  const T *position, *momentum, *grad;
  const T* mass;
  std::int64_t mass_stride;
  const double* step_size;
  const std::int64_t* num_steps;
  T *end_position, *end_momentum, *end_grad;
  double *log_likelihood, *log_prior;
};

class EpochRows;

template <class T>
class LogDensity {
 public:
  // x: rows of network.input_size(), y: (rows, targets()); both must outlive this object. masks:
  // dropout layers are active, and every pass needs to be told which masks. concrete: their rates
  // are learned, the last parameters are their logits, and the prior's segments end before them.
  // A rate p of K units before weights W with prior N(0, sd^2) adds K H(p), H the binary entropy,
  // and makes the prior's part -|W|^2 / (2 (1 - p) sd^2), without the constants (Gal, Hron and
  // Kendall 2017, eq. 3 and 4, with W divided by 1 - p).
  LogDensity(Network network, std::vector<PriorSegment> prior, LikelihoodKind likelihood,
             double scale, const Rows<T>& x, const T* y, std::int64_t rows,
             Temperatures temperatures, bool masks = false, bool concrete = false);
  ~LogDensity();

  std::int64_t dim() const { return dim_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t targets() const { return targets_; }
  const Network& network() const { return network_; }
  // What a thread needs for the values of its rows; a gradient also needs up to 16 partial ones.
  std::int64_t workspace_bytes() const;

  // theta: (chains, dim). subset: (count,) row numbers or null for all rows; the likelihood is
  // scaled by N / count. masks: its sample is that of chain 0, chain c takes the next ones.
  // log_likelihood, log_prior: (chains,), untempered; grad: (chains, dim) of
  // the tempered log density, or null. False when cancelled.
  bool evaluate(const T* theta, std::int64_t chains, const std::int64_t* subset, std::int64_t count,
                double* log_likelihood, double* log_prior, T* grad, Poll* poll,
                const Masks* masks = nullptr) const;

  // Stochastic-gradient steps of every chain, in place. first, second: (chains, dim) velocities or
  // moments, null where the rule has none. outcomes: (chains,). False when cancelled.
  bool advance(const StochasticSteps& steps, T* theta, T* first, T* second, std::int64_t chains,
               StochasticOutcome* outcomes, Poll* poll) const;

  // Steps of a mean-field Gaussian, in place; what each step saw goes to the steps' records. False
  // when cancelled.
  bool advance_variational(const VariationalSteps& steps, const VariationalState<T>& state,
                           StochasticOutcome* outcome, Poll* poll) const;

  // Leapfrog trajectories of every chain. False when cancelled.
  bool leapfrog(const Trajectories<T>& all, Poll* poll) const;

 private:
  struct Batch;
  struct TeamSpace;
  struct CallSpace;
  struct Member;
  struct Pass;
  struct PanelLikelihood;

  struct Wanted {
    bool values, gradient;
    double prior = 1.0;  // weight of the prior's gradient; 0: neither gradient nor value
  };

  const Batch& full_batch() const;
  std::int64_t shard_count(std::int64_t rows) const;
  std::int64_t chunk_count() const;
  std::unique_ptr<CallSpace> acquire(int threads, std::int64_t chains, std::int64_t shards,
                                     std::int64_t rows, bool row_noise = false) const;
  void release(std::unique_ptr<CallSpace> space) const;

  template <class Body>
  bool on_chains(std::int64_t chains, const Batch& batch, double passes, T* grad, Poll* poll,
                 const Body& body) const;  // passes: gradients in all
  bool run_shards(const Member& m, const T* theta, Wanted wanted) const;
  void run_shard(const Member& m, const T* theta, std::int64_t shard, Wanted wanted) const;
  const T* graph_input(const Batch& batch, std::int64_t panel, GraphSpace<T>& space) const;
  void graph_shard(const Member& m, const T* theta, std::int64_t shard, Wanted wanted) const;
  bool packs(const Member& m) const;
  template <class Next>
  void combine(const Member& m, const T* theta, Wanted wanted, const Next& next) const;
  void take_batch(const Member& m, EpochRows& epoch, std::uint64_t step, bool scaled) const;
  std::int64_t pieces(std::int64_t rows, std::int64_t shards) const;
  void prepare_split(TeamSpace& space, std::int64_t rows, int members) const;
  bool split_shard(const Member& m, const T* theta, Wanted wanted) const;
  void closed_values(const Member& m, const T* mean, bool prior) const;
  std::int64_t row_noise_shards(std::int64_t rows) const;
  bool split_row_noise(const Member& m, const RowNoiseWeights<T>& weights) const;
  bool row_noise_gradient(const Member& m, RowNoiseSpace<T>* space, const VariationalSteps& steps,
                          std::int64_t i, std::int64_t sample, const T* mean) const;
  void row_noise_shard(const Member& m, RowNoiseSpace<T>& space, const RowNoiseWeights<T>& weights,
                       std::int64_t shard) const;
  bool move_variational(const Member& m, const VariationalSteps& steps, std::int64_t i,
                        const VariationalState<T>& state) const;
  void prepare(TeamSpace& space, std::int64_t batch_rows) const;
  bool rate_terms(const Member& m, const T* theta, Wanted wanted) const;
  double keep_of(const T* theta, std::int64_t offset) const;
  // Of one gradient.
  double gradient_flops(std::int64_t rows) const {
    return 6.0 * static_cast<double>(rows) *
           static_cast<double>(std::max(dim_, network_.multiplications()));
  }
  std::int64_t noise_at() const { return network_.dim(); }
  std::int64_t logits_at() const { return dim_ - plan_.rates; }
  void sum_terms(const Member& m, double* log_likelihood, double* log_prior) const;

  Network network_;
  bool masked_, concrete_;
  MlpPlan plan_;
  std::unique_ptr<const GraphPlan> graph_;           // of a network that is not plain, else null
  std::unique_ptr<const GraphPlan> row_noise_plan_;  // the same, whose layers work on their own
  std::vector<PriorSegment> prior_;
  LikelihoodKind likelihood_;
  LikelihoodTraits traits_;
  double scale_;
  Rows<T> x_;
  const T* y_;
  std::int64_t rows_, dim_, targets_;
  Temperatures temperatures_;
  // Of each Estimator: parameters that it draws once for all rows: flipout's biases, and all of
  // layers without a second path.
  std::vector<Layer::Array> drawn_[3];
  std::vector<double> row_constant_;  // terms of the log likelihood that depend on y alone, or {}

  mutable std::once_flag packed_once_;
  mutable std::unique_ptr<Batch> full_batch_;  // built on first use
  mutable std::mutex spaces_mutex_;
  mutable std::vector<std::unique_ptr<CallSpace>> spaces_;  // workspaces no call holds
};

extern template class LogDensity<float>;
extern template class LogDensity<double>;

}  // namespace ribbit::cpu
