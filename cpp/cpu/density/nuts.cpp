// A tree of 2^depth states is the first half of one twice as large. Each half is made state by
// state, as a binary counter counts: a state that completes parts of 2, 4, .. states joins them at
// once, so that 3 vectors for every depth are all that is kept. Every member of a team goes through
// the same control flow on the same sums; its own chunks of the vectors are all that it touches.

#include "cpu/density/nuts.h"

#include <cmath>
#include <limits>

#include "core/no_u_turn_hd.h"
#include "core/philox_hd.h"
#include "cpu/density/chains.h"
#include "cpu/system/dispatch.h"
#include "cpu/system/faults.h"
#include "cpu/system/memory.h"

namespace ribbit::cpu {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();  // log of no weight

// Uniforms of one layer of an address, made in blocks.
class Uniforms {
 public:
  Uniforms(std::uint64_t seed, std::uint64_t step, std::uint32_t chain, TreeLayer layer)
      : seed_(seed),
        c1_(counter_step(step)),
        c2_(chain),
        c3_(counter_purpose(kPurposeTree, layer, step)) {}
  double operator()(std::uint64_t element) {
    const std::uint64_t first = element / kBlock * kBlock;
    if (first != first_) {
      first_ = first;
      instruction_set().fill_words(words_, 2 * kBlock, 2 * first, seed_, c1_, c2_, c3_);
    }
    const std::uint32_t* pair = words_ + 2 * (element - first);
    return uniform_of(pair[0], pair[1]);
  }

 private:
  static constexpr int kBlock = 32;
  std::uint64_t seed_;
  std::uint32_t c1_, c2_, c3_;
  std::uint64_t first_ = ~std::uint64_t{0};
  std::uint32_t words_[2 * kBlock];
};

// Of a chain's vectors (dim,), by number: the ends of the trajectory, two candidates, and those of
// the parts that wait for their other half.
constexpr std::int64_t kEndVectors = 6, kCandidateVectors = 4;
std::int64_t part_vectors(int max_depth) {
  return 3 * (static_cast<std::int64_t>(max_depth) + 2);
}
std::int64_t tree_vectors(int max_depth) {
  return kEndVectors + kCandidateVectors + part_vectors(max_depth);
}
// Sums of a chunk: the kinetic energy, and those of the parts that a state completes.
std::int64_t sums_per_chunk(int max_depth) {
  return 1 + kTurnSums * (static_cast<std::int64_t>(max_depth) + 1);
}

// A state of which only what a transition returns is kept.
template <class T>
struct Candidate {
  T *position, *grad;
  double likelihood, prior, kinetic, error;
};

template <class T>
struct End {
  T *position, *momentum, *grad;
};

// The growth of one chain's tree, as one member of its team sees it.
template <class T>
class Growth {
 public:
  Growth(const Evaluator<T>& evaluator, const Trees<T>& all, const Member<T>& m, std::int64_t chain)
      : k_(kernels<T>()),
        evaluator_(evaluator),
        all_(all),
        m_(m),
        chain_(chain),
        stride_(sums_per_chunk(all.max_depth)),
        mass_(all.mass != nullptr ? all.mass + chain * all.mass_stride : nullptr),
        direction_(all.seed, all.step, all.chain_ids[chain], kTreeDirection),
        leaf_(all.seed, all.step, all.chain_ids[chain], kTreeLeaf),
        doubling_(all.seed, all.step, all.chain_ids[chain], kTreeDoubling) {
    share();
    T* next = m.shared.tree.data();
    const auto take = [&] {
      T* vector = next;
      next += evaluator.dim();
      return vector;
    };
    for (End<T>& end : ends_) end = {take(), take(), take()};
    for (Candidate<T>* c : {&drawn_, &proposal_}) *c = {take(), take(), 0, 0, 0, 0};
    for (std::int64_t i = 0; i < part_vectors(all.max_depth); ++i) free_[free_count_++] = take();
  }

  // False when cancelled.
  bool run() {
    if (!start()) return false;
    double weight = 0.0;  // log of the summed exp(-energy error) of the tree
    while (outcome_.depth < all_.max_depth) {
      double added = kNothing;
      if (!grow(static_cast<int>(outcome_.depth), added)) return false;
      if (outcome_.diverging != 0 || turned_) break;
      // Biased to the new half, which is farther away.
      if (std::log(doubling_(static_cast<std::uint64_t>(outcome_.depth))) < added - weight ||
          planted(Fault::kNewSubtree)) {
        std::swap(drawn_, proposal_);
      }
      weight = log_add_exp(weight, added);
      ++outcome_.depth;
      if (tree_turned_) break;
    }
    finish();
    return true;
  }

 private:
  // A part that a state completes: `a`, which waited, with what was made after it.
  struct Join {
    TurnPart<T> a, b;
    T* rho;       // of both
    bool leaves;  // single states
  };

  void share() {
    const std::int64_t dim = evaluator_.dim(), chunks = evaluator_.chunk_count();
    begin_ = std::min(dim, m_.first(chunks) * kChunk);
    size_ = std::min(dim, m_.last(chunks) * kChunk) - begin_;
  }

  T* take() { return free_[--free_count_]; }
  void give_back(T* vector) { free_[free_count_++] = vector; }
  void copy(const T* from, T* to) const { std::copy_n(from + begin_, size_, to + begin_); }

  // Fills both ends, the tree and what is drawn, with the start.
  bool start() {
    const std::int64_t at = chain_ * evaluator_.dim();
    T* momentum = take();
    copy(all_.momentum + at, momentum);
    for (const End<T>& end : ends_) {
      copy(all_.position + at, end.position);
      copy(all_.momentum + at, end.momentum);
      copy(all_.grad + at, end.grad);
    }
    tree_ = {momentum, momentum, momentum};
    copy(all_.position + at, drawn_.position);
    copy(all_.grad + at, drawn_.grad);
    for (std::int64_t c = m_.first(evaluator_.chunk_count()); c < m_.last(evaluator_.chunk_count());
         ++c) {
      const std::int64_t b = c * kChunk, e = std::min(evaluator_.dim(), b + kChunk);
      sums(c)[0] = k_.dot_weighted(momentum + b, mass_ != nullptr ? mass_ + b : nullptr, e - b);
    }
    if (!m_.barrier()) return false;
    kinetic_ = fault_factor(Fault::kNoKinetic, 0.0) * 0.5 * total(0);
    drawn_.likelihood = all_.terms[2 * chain_];
    drawn_.prior = all_.terms[2 * chain_ + 1];
    drawn_.kinetic = kinetic_;
    likelihood_ = drawn_.likelihood;
    prior_ = drawn_.prior;
    return true;
  }

  // As many states again as the tree of that depth has, at one of its ends; weight: log of their
  // sum. Ends early where one diverges or a part turns. False when cancelled.
  bool grow(int depth, double& weight) {
    const bool forward = direction_(static_cast<std::uint64_t>(depth)) < 0.5;
    if (forward != forward_) std::swap(tree_.first, tree_.last);  // the last is where it grows
    forward_ = forward;
    const End<T>& end = ends_[forward ? 1 : 0];
    const T step = static_cast<T>(forward ? all_.step_size[chain_] : -all_.step_size[chain_]);
    Member<T> m = m_;
    m.grad = end.grad;
    const std::uint64_t count = std::uint64_t{1} << depth;
    for (std::uint64_t n = 0; n < count; ++n) {
      if (!m_.settle()) return false;
      share();
      T* momentum = take();
      plan(n, n + 1 == count, momentum);
      if (!leapfrog(m, end, momentum, step)) return false;
      const Candidate<T> state = weigh(m);
      if (outcome_.diverging != 0) return true;
      const double log_weight = planted(Fault::kEqualWeights) ? 0.0 : -state.error;
      weight = log_add_exp(weight, log_weight);
      if (n == 0 || std::log(leaf_(count - 1 + n)) < log_weight - weight ||
          planted(Fault::kLastState)) {
        copy(end.position, proposal_.position);
        copy(end.grad, proposal_.grad);
        proposal_ = {proposal_.position, proposal_.grad, state.likelihood,
                     state.prior,        state.kinetic,  state.error};
      }
      const int inner = join_count_ - (n + 1 == count ? 1 : 0);
      for (int j = 0; j < inner; ++j) turned_ = turned_ || !joins(j);
      if (planted(Fault::kNoInnerCheck)) turned_ = false;
      if (turned_) return true;
      if (inner < join_count_) tree_turned_ = !joins(inner);
    }
    return true;
  }

  // What state n, with that momentum, completes: a part for every trailing one of n, and in the end
  // the tree. The joins are made chunk by chunk, with the gradient in the cache.
  void plan(std::uint64_t n, bool last, T* momentum) {
    TurnPart<T> part{momentum, momentum, momentum};
    join_count_ = 0;
    int level = 0;
    for (; (n >> level & 1) != 0; ++level) part = join(waiting_[level], part);
    if (last)
      tree_ = join(tree_, part);
    else
      waiting_[level] = part;
  }
  TurnPart<T> join(const TurnPart<T>& a, const TurnPart<T>& b) {
    const bool leaves = a.rho == a.first;
    T* rho = leaves ? take() : a.rho;
    joins_[join_count_++] = {a, b, rho, leaves};
    if (!leaves) {
      give_back(b.rho);
      give_back(a.last);
      give_back(b.first);
    }
    return {rho, a.first, b.last};
  }

  static T half_kick(T step) {
    return static_cast<T>(fault_factor(Fault::kGradientSign, -1.0)) *
           (planted(Fault::kFullKicks) ? step : step / 2);
  }

  // One step of an end; then the sums of its chunks.
  bool leapfrog(const Member<T>& m, const End<T>& end, T* momentum, T step) {
    const auto mass_at = [&](std::int64_t b) { return mass_ != nullptr ? mass_ + b : nullptr; };
    k_.kick_drift(end.position + begin_, end.momentum + begin_, end.grad + begin_, mass_at(begin_),
                  size_, half_kick(step), step);
    if (!evaluator_.run_shards(m, end.position, {true, true})) return false;
    evaluator_.combine(m, end.position, {true, true}, [&](std::int64_t b, std::int64_t e) {
      k_.kick_drift(end.position + b, end.momentum + b, end.grad + b, mass_at(b), e - b,
                    half_kick(step), T(0));
      std::copy(end.momentum + b, end.momentum + e, momentum + b);
      double* sum = sums(b / kChunk);
      sum[0] = k_.dot_weighted(momentum + b, mass_at(b), e - b);
      for (int j = 0; j < join_count_; ++j) {
        const Join& join = joins_[j];
        double* products = sum + 1 + kTurnSums * j;
        std::fill_n(products, kTurnSums, 0.0);
        if (join.leaves) {
          k_.leaf_turn_products(join.a.first + b, join.b.first + b, mass_at(b), e - b, join.rho + b,
                                products);
        } else {
          const TurnPart<T>&a_ = join.a, &b_ = join.b;
          k_.turn_products({a_.rho + b, a_.first + b, a_.last + b},
                           {b_.rho + b, b_.first + b, b_.last + b}, mass_at(b), e - b, products);
        }
      }
    });
    return m.barrier();
  }

  // The energy of the state that was just made.
  Candidate<T> weigh(const Member<T>& m) {
    Candidate<T> state{};
    double ll = 0, lp = 0;
    evaluator_.sum_terms(m, &ll, &lp);
    const Temperatures& t = evaluator_.temperatures();
    state.likelihood = ll / (t.likelihood * t.posterior);
    state.prior = lp / t.posterior;
    state.kinetic = fault_factor(Fault::kNoKinetic, 0.0) * 0.5 * total(0);
    // A sum of differences, finite only if every momentum and so the gradient is.
    state.error =
        (state.kinetic - kinetic_) + ((likelihood_ - state.likelihood) + (prior_ - state.prior));
    if (!std::isfinite(state.error)) state.error = std::numeric_limits<double>::infinity();
    outcome_.acceptance += std::exp(std::min(-state.error, 0.0));
    ++outcome_.steps;
    if (state.error > all_.threshold) outcome_.diverging = 1;
    return state;
  }

  double* sums(std::int64_t chunk) { return m_.shared.tree_sums.data() + chunk * stride_; }
  double total(std::int64_t which) {
    double sum = 0;
    for (std::int64_t c = 0; c < evaluator_.chunk_count(); ++c) sum += sums(c)[which];
    return sum;
  }
  // Whether the two parts of a join go on as one.
  bool joins(int j) {
    double products[kTurnSums];
    const int count = joins_[j].leaves ? kLeafTurnSums : kTurnSums;
    for (int s = 0; s < count; ++s) products[s] = total(1 + kTurnSums * j + s);
    return goes_on(products, count);
  }

  void finish() {
    const std::int64_t at = chain_ * evaluator_.dim();
    copy(drawn_.position, all_.end_position + at);
    copy(drawn_.grad, all_.end_grad + at);
    if (m_.index != 0) return;
    const bool stale = planted(Fault::kStaleEnergy);
    all_.end_terms[2 * chain_] = stale ? likelihood_ : drawn_.likelihood;
    all_.end_terms[2 * chain_ + 1] = stale ? prior_ : drawn_.prior;
    outcome_.kinetic = drawn_.kinetic;
    outcome_.energy_error = drawn_.error;
    outcome_.acceptance /= static_cast<double>(outcome_.steps);
    outcome_.at_max_depth =
        outcome_.depth == all_.max_depth && !tree_turned_ && outcome_.diverging == 0 ? 1 : 0;
    all_.outcomes[chain_] = outcome_;
  }

  const KernelTable<T>& k_;
  const Evaluator<T>& evaluator_;
  const Trees<T>& all_;
  const Member<T>& m_;
  const std::int64_t chain_, stride_;
  std::int64_t begin_ = 0, size_ = 0;  // the member's share of every vector
  const T* mass_;
  Uniforms direction_, leaf_, doubling_;

  End<T> ends_[2];  // backward, forward
  Candidate<T> drawn_, proposal_;
  TurnPart<T> tree_{}, waiting_[kMostTreeDepth];
  Join joins_[kMostTreeDepth + 1];
  int join_count_ = 0;
  T* free_[3 * (kMostTreeDepth + 2)];
  int free_count_ = 0;
  bool forward_ = true, turned_ = false, tree_turned_ = false;
  double kinetic_ = 0, likelihood_ = 0, prior_ = 0;  // of the start
  TreeOutcome outcome_{};
};

}  // namespace

template <class T>
bool no_u_turn(const Evaluator<T>& evaluator, const Trees<T>& all, Poll* poll) {
  // How many states a tree will have is not known: some dozens are a guess that only decides how
  // many threads are woken.
  constexpr double kUsualStates = 32.0;
  const Batch<T>& batch = evaluator.full_batch();
  const auto cut = evaluator.cut_of(batch, all.chains);
  const double flops =
      kUsualStates * static_cast<double>(all.chains) * evaluator.gradient_flops(batch.x.rows);
  Crew crew(static_cast<int>(std::min<std::int64_t>(threads_for(flops), cut.threads())));
  std::unique_ptr<CallSpace<T>> space =
      evaluator.acquire(crew.size(), cut.teams, cut.own, batch.x.rows);
  const std::int64_t scalars = tree_vectors(all.max_depth) * evaluator.dim();
  for (int t = 0; t < crew.size(); ++t) {
    if (!leads_team(t, crew.size(), cut.teams)) continue;
    TeamSpace<T>& team = *space->teams[static_cast<std::size_t>(t)];
    if (team.tree.size() < scalars) {
      require_memory((scalars - team.tree.size()) * static_cast<std::int64_t>(sizeof(T)),
                     "the tree of a chain");
    }
    team.tree.resize(scalars);
    team.tree_sums.resize(
        static_cast<std::size_t>(evaluator.chunk_count() * sums_per_chunk(all.max_depth)));
  }
  WishPoll wish(poll);
  Cancel cancel(cut.group != nullptr ? &wish : poll);
  evaluator.run_chains(
      cut, crew, all.chains, cancel,
      [&](Team& team, int index, int thread, std::int64_t chain, int first_thread) {
        const Member<T> member{team,
                               index,
                               *space->teams[static_cast<std::size_t>(first_thread)],
                               *space->threads[static_cast<std::size_t>(thread)],
                               batch,
                               cut.shards,
                               nullptr,
                               cut.pieces,
                               nullptr,
                               cut.group,
                               &wish};
        return Growth<T>(evaluator, all, member, chain).run();
      });
  evaluator.release(std::move(space));
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T) template bool no_u_turn(const Evaluator<T>&, const Trees<T>&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
