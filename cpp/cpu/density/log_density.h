#pragma once
// The log posterior of a network on data: its values and gradients, and what moves along them.

#include "cpu/density/evaluator.h"
#include "cpu/density/isokinetic.h"
#include "cpu/density/leapfrog.h"
#include "cpu/density/stochastic_steps.h"
#include "cpu/density/variational.h"

namespace ribbit::cpu {

template <class T>
class LogDensity {
 public:
  // As Evaluator's: x, y, centre and weights must outlive this object.
  LogDensity(Network network, std::vector<PriorSegment> prior, LikelihoodKind likelihood,
             const LikelihoodParameters& parameters, const Rows<T>& x, const T* y,
             std::int64_t rows, Temperatures temperatures, bool masks = false,
             bool concrete = false, const T* centre = nullptr,
             std::optional<LastLayer> last = std::nullopt, std::vector<ScaleSegment> scales = {},
             const T* weights = nullptr)
      : evaluator_(std::move(network), std::move(prior), likelihood, parameters, x, y, rows,
                   temperatures, masks, concrete, centre, std::move(last), std::move(scales),
                   weights) {}

  // See Evaluator: before the first use.
  void set_shards(std::int64_t shards) { evaluator_.set_shards(shards); }
  bool join(const RowGroup& group, std::int64_t all_rows) {
    return evaluator_.join(group, all_rows);
  }
  const RowGroup* group() const { return evaluator_.group(); }
  const Evaluator<T>& evaluator() const { return evaluator_; }

  std::int64_t dim() const { return evaluator_.dim(); }
  std::int64_t rows() const { return evaluator_.rows(); }
  std::int64_t targets() const { return evaluator_.targets(); }
  const Network& network() const { return evaluator_.network(); }

  // theta: (chains, dim). subset: (count,) row numbers or null for all rows; the likelihood is
  // scaled by N / count. masks: its sample is that of chain 0, chain c takes the next ones.
  // log_likelihood, log_prior: (chains,), untempered; grad: (chains, dim) of
  // the tempered log density, or null. prior: its weight; 0 leaves it out. False when cancelled.
  bool evaluate(const T* theta, std::int64_t chains, const std::int64_t* subset, std::int64_t count,
                double* log_likelihood, double* log_prior, T* grad, Poll* poll,
                const Masks* masks = nullptr, double prior = 1.0) const;

  // theta: (chains, draws, dim), without the layer that is integrated out -> out: (chains, draws,
  // dim + K J), its weights drawn given all else (last_layer.h) before a learned log noise. The
  // normals have the address (seed, last layer, step of the draw, chain, weight). False when
  // cancelled.
  bool complete(const T* theta, std::int64_t chains, std::int64_t draws, std::uint64_t seed,
                const std::uint64_t* steps, const std::uint32_t* chain_ids, T* out,
                Poll* poll) const;
  const LastLayer* last() const { return evaluator_.last(); }
  const Temperatures& temperatures() const { return evaluator_.temperatures(); }

  // See stochastic_steps.h, variational.h, isokinetic.h (in place) and leapfrog.h.
  bool advance(const StochasticSteps& steps, T* theta, T* first, T* second, std::int64_t chains,
               StochasticOutcome* outcomes, Poll* poll, T* kept = nullptr) const {
    return cpu::advance(evaluator_, steps, theta, first, second, chains, outcomes, poll, kept);
  }
  bool advance_variational(const VariationalSteps& steps, const VariationalState<T>& state,
                           StochasticOutcome* outcome, Poll* poll) const {
    return cpu::advance_variational(evaluator_, steps, state, outcome, poll);
  }
  bool leapfrog(const Trajectories<T>& all, Poll* poll) const {
    return cpu::leapfrog(evaluator_, all, poll);
  }
  bool isokinetic(const IsokineticSteps<T>& all, Poll* poll) const {
    return cpu::isokinetic(evaluator_, all, poll);
  }

 private:
  Evaluator<T> evaluator_;
};

extern template class LogDensity<float>;
extern template class LogDensity<double>;

}  // namespace ribbit::cpu
