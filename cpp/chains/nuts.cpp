// A subtree of 2^depth states is the first half of the next larger subtree. The states of a half
// are made one by one. A state joins all subtrees that it completes, as a binary counter carries,
// so three vectors for each depth suffice. All workers take the same decisions from the same sums.
// Each touches only its own chunks of the vectors.

#include "chains/nuts.h"

#include <cmath>
#include <limits>

#include "core/no_u_turn_hd.h"
#include "core/philox_hd.h"
#include "cpu/random.h"
#include "cpu/system/dispatch.h"
#include "cpu/system/faults.h"

namespace ribbit {
namespace {

using cpu::Fault;
using cpu::fault_factor;
using cpu::kChunk;
using cpu::planted;

constexpr double kNothing = -std::numeric_limits<double>::infinity();  // log of no weight

// The uniforms of one stream, generated in blocks.
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
      cpu::instruction_set().fill_words(words_, 2 * kBlock, 2 * first, seed_, c1_, c2_, c3_);
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

// The numbers of vectors (dim,) for a chain: the two ends of the trajectory, two proposals, and the
// subtrees that wait for their other half.
constexpr std::int64_t kEndVectors = 6, kProposalVectors = 4;
std::int64_t part_vectors(int max_depth) {
  return 3 * (static_cast<std::int64_t>(max_depth) + 2);
}
std::int64_t tree_vectors(int max_depth) {
  return kEndVectors + kProposalVectors + part_vectors(max_depth);
}
// The sums of a chunk: the kinetic energy, and the U-turn checks of one state.
std::int64_t sums_per_chunk(int max_depth) {
  return 1 + kTurnSums * (static_cast<std::int64_t>(max_depth) + 1);
}

// A state that the transition may return.
template <class T>
struct Proposal {
  T *position, *grad;
  double likelihood, prior, kinetic, error;
};

template <class T>
struct End {
  T *position, *momentum, *grad;
};

// The depth limit of the next transition.
template <class T>
int depth_of(const NutsCall<T>& call) {
  return static_cast<int>(call.view.tuner->plan(0, call.view.step).steps);
}

// The tree of one chain, as one worker of its thread group sees it.
template <class C>
class Tree {
 public:
  using T = typename C::Scalar;
  Tree(C& context, const NutsCall<T>& call, std::int64_t chain)
      : k_(cpu::kernels<T>()),
        context_(context),
        call_(call),
        tuner_(*call.view.tuner),
        chain_(chain),
        max_depth_(depth_of(call)),
        stride_(sums_per_chunk(max_depth_)),
        step_size_(static_cast<T>(tuner_.step_size[static_cast<std::size_t>(chain)])),
        mass_(call.view.mass != nullptr ? call.view.mass + chain * call.view.mass_stride : nullptr),
        direction_(uniforms(kTreeDirection)),
        leaf_(uniforms(kTreeLeaf)),
        doubling_(uniforms(kTreeDoubling)) {
    share();
    T* next = context.vectors();
    const auto take = [&] {
      T* vector = next;
      next += context.dim();
      return vector;
    };
    for (End<T>& end : ends_) end = {take(), take(), take()};
    for (Proposal<T>* c : {&drawn_, &proposal_}) *c = {take(), take(), 0, 0, 0, 0};
    for (std::int64_t i = 0; i < part_vectors(max_depth_); ++i) free_[free_count_++] = take();
  }

  // False when cancelled.
  bool run() {
    if (!start()) return false;
    double weight = 0.0;  // log of the summed exp(-energy error) of the tree
    while (outcome_.depth < max_depth_) {
      double added = kNothing;
      if (!grow(static_cast<int>(outcome_.depth), added)) return false;
      if (outcome_.diverging != 0 || turned_) break;
      // The biased choice prefers the new half, which is farther away.
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
  // The U-turn check of a subtree that a state completes: its older half `a` and newer half `b`.
  struct TurnCheck {
    cpu::TurnPart<T> a, b;
    T* rho;       // sum of the momenta of both halves
    bool leaves;  // each half is a single state
  };

  Uniforms uniforms(TreeLayer layer) const {
    return {tuner_.seed(), call_.view.step, tuner_.chain_ids()[static_cast<std::size_t>(chain_)],
            layer};
  }
  void share() {
    begin_ = context_.begin();
    size_ = context_.end() - begin_;
  }

  T* take() { return free_[--free_count_]; }
  void give_back(T* vector) { free_[free_count_++] = vector; }
  void copy(const T* from, T* to) const { std::copy_n(from + begin_, size_, to + begin_); }

  // Draws a momentum and sets both ends, the tree and the drawn state to the start.
  bool start() {
    const std::int64_t at = chain_ * context_.dim();
    T* momentum = take();
    cpu::fill_normal({tuner_.seed(), call_.view.step, kPurposeMomentum, 0},
                     tuner_.chain_ids()[static_cast<std::size_t>(chain_)], begin_, size_,
                     momentum + begin_);
    for (std::int64_t i = begin_; mass_ != nullptr && i < begin_ + size_; ++i) {
      momentum[i] /= std::sqrt(mass_[i]);
    }
    for (const End<T>& end : ends_) {
      copy(call_.view.position + at, end.position);
      copy(momentum, end.momentum);
      copy(call_.view.grad + at, end.grad);
    }
    tree_ = {momentum, momentum, momentum};
    copy(call_.view.position + at, drawn_.position);
    copy(call_.view.grad + at, drawn_.grad);
    for (std::int64_t c = context_.first_chunk(); c < context_.last_chunk(); ++c) {
      const std::int64_t b = c * kChunk, e = std::min(context_.dim(), b + kChunk);
      sums(c)[0] = k_.dot_weighted(momentum + b, mass_ != nullptr ? mass_ + b : nullptr, e - b);
    }
    if (!context_.barrier()) return false;
    kinetic_ = fault_factor(Fault::kNoKinetic, 0.0) * 0.5 * total(0);
    drawn_.likelihood = call_.view.terms[2 * chain_];
    drawn_.prior = call_.view.terms[2 * chain_ + 1];
    drawn_.kinetic = kinetic_;
    likelihood_ = drawn_.likelihood;
    prior_ = drawn_.prior;
    return true;
  }

  // Doubles a tree of this depth at one of its ends. weight: the log of the summed weights of the
  // new states. Ends early if a state diverges or a subtree turns. False when cancelled.
  bool grow(int depth, double& weight) {
    const bool forward = direction_(static_cast<std::uint64_t>(depth)) < 0.5;
    if (forward != forward_) std::swap(tree_.first, tree_.last);  // the tree grows at `last`
    forward_ = forward;
    const End<T>& end = ends_[forward ? 1 : 0];
    const T step = forward ? step_size_ : -step_size_;
    const std::uint64_t count = std::uint64_t{1} << depth;
    for (std::uint64_t n = 0; n < count; ++n) {
      if (!context_.settle()) return false;
      share();
      T* momentum = take();
      plan(n, n + 1 == count, momentum);
      if (!leapfrog(end, momentum, step)) return false;
      const Proposal<T> state = weigh();
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
      const int inner = check_count_ - (n + 1 == count ? 1 : 0);
      for (int j = 0; j < inner; ++j) turned_ = turned_ || !passes(j);
      if (planted(Fault::kNoInnerCheck)) turned_ = false;
      if (turned_) return true;
      if (inner < check_count_) tree_turned_ = !passes(inner);
    }
    return true;
  }

  // Lists the U-turn checks of the subtrees that state n completes, one for each trailing 1 bit of
  // n. The last state also completes the tree. leapfrog() computes their sums chunk by chunk while
  // the gradient is in the cache.
  void plan(std::uint64_t n, bool last, T* momentum) {
    cpu::TurnPart<T> part{momentum, momentum, momentum};
    check_count_ = 0;
    int level = 0;
    for (; (n >> level & 1) != 0; ++level) part = join(waiting_[level], part);
    if (last)
      tree_ = join(tree_, part);
    else
      waiting_[level] = part;
  }
  cpu::TurnPart<T> join(const cpu::TurnPart<T>& a, const cpu::TurnPart<T>& b) {
    const bool leaves = a.rho == a.first;
    T* rho = leaves ? take() : a.rho;
    checks_[check_count_++] = {a, b, rho, leaves};
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

  // Moves an end by one step and computes the sums of its chunks.
  bool leapfrog(const End<T>& end, T* momentum, T step) {
    const auto mass_at = [&](std::int64_t b) { return mass_ != nullptr ? mass_ + b : nullptr; };
    k_.kick_drift(end.position + begin_, end.momentum + begin_, end.grad + begin_, mass_at(begin_),
                  size_, half_kick(step), step);
    const auto next = [&](std::int64_t b, std::int64_t e) {
      k_.kick_drift(end.position + b, end.momentum + b, end.grad + b, mass_at(b), e - b,
                    half_kick(step), T(0));
      std::copy(end.momentum + b, end.momentum + e, momentum + b);
      double* sum = sums(b / kChunk);
      sum[0] = k_.dot_weighted(momentum + b, mass_at(b), e - b);
      for (int j = 0; j < check_count_; ++j) {
        const TurnCheck& check = checks_[j];
        double* products = sum + 1 + kTurnSums * j;
        std::fill_n(products, kTurnSums, 0.0);
        if (check.leaves) {
          k_.leaf_turn_products(check.a.first + b, check.b.first + b, mass_at(b), e - b,
                                check.rho + b, products);
        } else {
          const cpu::TurnPart<T>&a_ = check.a, &b_ = check.b;
          k_.turn_products({a_.rho + b, a_.first + b, a_.last + b},
                           {b_.rho + b, b_.first + b, b_.last + b}, mass_at(b), e - b, products);
        }
      }
    };
    return context_.gradient(end.position, end.grad, next) && context_.barrier();
  }

  // Computes the energy of the newest state.
  Proposal<T> weigh() {
    Proposal<T> state{};
    context_.terms(&state.likelihood, &state.prior);
    state.kinetic = fault_factor(Fault::kNoKinetic, 0.0) * 0.5 * total(0);
    // The sum of differences is finite only if every momentum is, and so the gradient.
    state.error =
        (state.kinetic - kinetic_) + ((likelihood_ - state.likelihood) + (prior_ - state.prior));
    if (!std::isfinite(state.error)) state.error = std::numeric_limits<double>::infinity();
    outcome_.acceptance += std::exp(std::min(-state.error, 0.0));
    ++outcome_.steps;
    if (state.error > call_.threshold) outcome_.diverging = 1;
    return state;
  }

  double* sums(std::int64_t chunk) { return context_.sums() + chunk * stride_; }
  double total(std::int64_t which) {
    double sum = 0;
    for (std::int64_t c = 0; c < context_.chunks(); ++c) sum += sums(c)[which];
    return sum;
  }
  // Returns true if the two halves of check j together make no U-turn.
  bool passes(int j) {
    double products[kTurnSums];
    const int count = checks_[j].leaves ? kLeafTurnSums : kTurnSums;
    for (int s = 0; s < count; ++s) products[s] = total(1 + kTurnSums * j + s);
    return goes_on(products, count);
  }

  void finish() {
    const std::int64_t at = chain_ * context_.dim();
    copy(drawn_.position, call_.end_position + at);
    copy(drawn_.grad, call_.end_grad + at);
    if (context_.index() != 0) return;
    const bool stale = planted(Fault::kStaleEnergy);
    call_.end_terms[2 * chain_] = stale ? likelihood_ : drawn_.likelihood;
    call_.end_terms[2 * chain_ + 1] = stale ? prior_ : drawn_.prior;
    outcome_.kinetic = drawn_.kinetic;
    outcome_.energy_error = drawn_.error;
    outcome_.acceptance /= static_cast<double>(outcome_.steps);
    outcome_.at_max_depth =
        outcome_.depth == max_depth_ && !tree_turned_ && outcome_.diverging == 0 ? 1 : 0;
    call_.outcomes[chain_] = outcome_;
  }

  const cpu::KernelTable<T>& k_;
  C& context_;
  const NutsCall<T>& call_;
  const HamiltonianTuner& tuner_;
  const std::int64_t chain_;
  const int max_depth_;
  const std::int64_t stride_;
  const T step_size_;
  std::int64_t begin_ = 0, size_ = 0;  // the range of this worker in every vector
  const T* mass_;
  Uniforms direction_, leaf_, doubling_;

  End<T> ends_[2];  // backward, forward
  Proposal<T> drawn_, proposal_;
  cpu::TurnPart<T> tree_{}, waiting_[kMostTreeDepth];
  TurnCheck checks_[kMostTreeDepth + 1];
  int check_count_ = 0;
  T* free_[3 * (kMostTreeDepth + 2)];
  int free_count_ = 0;
  bool forward_ = true, turned_ = false, tree_turned_ = false;
  double kinetic_ = 0, likelihood_ = 0, prior_ = 0;  // at the start
  TreeOutcome outcome_{};
};

}  // namespace

std::vector<Statistic> nuts_columns(bool counts) {
  std::vector<Statistic> columns{
      {"lp", 'd'},         {"acceptance_rate", 'd'},       {"diverging", '?'},
      {"energy", 'd'},     {"energy_error", 'd'},          {"n_steps", 'q'},
      {"tree_depth", 'q'}, {"reached_max_treedepth", '?'}, {"step_size", 'd'}};
  if (counts) columns.push_back({"divergences", 'q'});
  return columns;
}

template <class T, class D>
cpu::CallEnd nuts(const D& density, const NutsCall<T>& call, cpu::Poll* poll) {
  // The number of states in a tree is unknown in advance. This guess only decides how many threads
  // the call wakes.
  constexpr double kUsualStates = 32.0;
  const auto chains = static_cast<std::int64_t>(call.view.tuner->chains());
  const std::int64_t chunks = (density.dim() + kChunk - 1) / kChunk;
  const int depth = depth_of(call);
  const cpu::Scratch scratch{tree_vectors(depth) * density.dim(),
                             static_cast<std::size_t>(chunks * sums_per_chunk(depth))};
  return cpu::on_chains(
      density, chains, kUsualStates * static_cast<double>(chains), poll,
      [&](auto& context, std::int64_t chain) {
        return Tree<std::decay_t<decltype(context)>>(context, call, chain).run();
      },
      nullptr, scratch);
}

template cpu::CallEnd nuts(const cpu::LogDensity<float>&, const NutsCall<float>&, cpu::Poll*);
template cpu::CallEnd nuts(const cpu::LogDensity<double>&, const NutsCall<double>&, cpu::Poll*);
template cpu::CallEnd nuts(const cpu::PointerDensity&, const NutsCall<double>&, cpu::Poll*);

}  // namespace ribbit
