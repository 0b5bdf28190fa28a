#pragma once
// The interface between kernels and a density. A density is a network's posterior (LogDensity) or
// a C function (PointerDensity). A context is one worker of the thread group that moves one chain.
// Kernels are templates over the context, so a gradient of one microsecond pays no virtual call.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/density/chains.h"
#include "cpu/density/leapfrog.h"
#include "cpu/density/log_density.h"
#include "cpu/density/pointer_density.h"
#include "cpu/system/dispatch.h"
#include "cpu/system/memory.h"

namespace ribbit::cpu {

// Memory that a kernel asks for, for each thread group.
struct Scratch {
  std::int64_t vectors = 0;  // parameters in all vectors together
  std::size_t sums = 0;
};

template <class T>
class NetworkContext {
 public:
  using Scalar = T;
  NetworkContext(const Evaluator<T>& evaluator, const Member<T>& member)
      : evaluator_(evaluator), member_(member) {}

  // Worker 0 decides. Each worker moves its range [begin(), end()) of the parameters, in whole
  // chunks.
  int index() const { return member_.index; }
  int workers() const { return member_.team.size(); }
  std::int64_t dim() const { return evaluator_.dim(); }
  std::int64_t chunks() const { return evaluator_.chunk_count(); }
  std::int64_t first_chunk() const { return member_.first(chunks()); }
  std::int64_t last_chunk() const { return member_.last(chunks()); }
  std::int64_t begin() const { return std::min(dim(), first_chunk() * kChunk); }
  std::int64_t end() const { return std::min(dim(), last_chunk() * kChunk); }
  // False for a worker that must return at once (cpu/system/threads.h).
  bool barrier() const { return member_.barrier(); }
  bool gather() const { return member_.gather(); }
  bool settle() const { return member_.settle(); }

  // Writes the gradient g at q and calls next(begin, end) on each chunk of this worker while the
  // chunk is in the cache. A barrier must lie between this call and terms(). False when cancelled.
  template <class Next>
  bool gradient(const T* q, T* g, const Next& next) {
    member_.grad = g;
    if (!evaluator_.run_shards(member_, q, {true, true})) return false;
    evaluator_.combine(member_, q, {true, true}, next);
    return true;
  }
  // The tempered log likelihood and log prior at the last gradient.
  void terms(double* likelihood, double* prior) const {
    evaluator_.sum_terms(member_, likelihood, prior);
    temper(likelihood, prior);
  }
  // One leapfrog trajectory by all workers. Worker 0 then has the terms (2,) and the steps.
  bool trajectory(const Trajectories<T>& all, std::int64_t chain) {
    Member<T> member = member_;
    member.grad = all.end_grad + chain * dim();
    if (!cpu::trajectory(evaluator_, member, all, chain)) return false;
    if (index() == 0) temper(all.log_likelihood + chain, all.log_prior + chain);
    return true;
  }
  // Scratch memory of the thread group.
  T* vectors() const { return member_.shared.tree.data(); }
  double* sums() const { return member_.shared.tree_sums.data(); }

 private:
  void temper(double* likelihood, double* prior) const {
    const Temperatures& t = evaluator_.temperatures();
    *likelihood /= t.likelihood * t.posterior;
    *prior /= t.posterior;
  }
  const Evaluator<T>& evaluator_;
  Member<T> member_;
};

// One worker alone: a C function computes the whole gradient.
class PointerContext {
 public:
  using Scalar = double;
  PointerContext(const PointerDensity& density, Cancel& cancel, int& code, const Scratch& scratch)
      : density_(density),
        cancel_(cancel),
        code_(code),
        vectors_(scratch.vectors),
        sums_(scratch.sums) {}

  int index() const { return 0; }
  int workers() const { return 1; }
  std::int64_t dim() const { return density_.dim(); }
  std::int64_t chunks() const { return (dim() + kChunk - 1) / kChunk; }
  std::int64_t first_chunk() const { return 0; }
  std::int64_t last_chunk() const { return chunks(); }
  std::int64_t begin() const { return 0; }
  std::int64_t end() const { return dim(); }
  bool barrier() const { return !cancel_.cancelled(); }
  bool gather() const { return barrier(); }
  bool settle() const { return barrier(); }

  template <class Next>
  bool gradient(const double* q, double* g, const Next& next) {
    code_ = density_.call(q, g, &lp_);
    if (code_ != 0 || cancel_.check()) return false;
    for (std::int64_t b = 0; b < dim(); b += kChunk) next(b, std::min(dim(), b + kChunk));
    return true;
  }
  void terms(double* likelihood, double* prior) const {
    *likelihood = lp_;
    *prior = 0.0;
  }
  bool trajectory(const Trajectories<double>& all, std::int64_t chain) {
    code_ = density_.trajectory(all, chain, cancel_);
    return code_ == 0 && !cancel_.cancelled();
  }
  double* vectors() { return vectors_.data(); }
  double* sums() { return sums_.data(); }

 private:
  const PointerDensity& density_;
  Cancel& cancel_;
  int& code_;  // the function's return code
  double lp_ = 0;
  Buffer<double> vectors_;
  std::vector<double> sums_;
};

// Calls body(context, chain) for every chain, with as many workers for each as pay off. passes: the
// number of gradients in all. order (chains,): the order of the chains; null: 0, 1, ...
template <class T, class Body>
CallEnd on_chains(const LogDensity<T>& density, std::int64_t chains, double passes, Poll* poll,
                  const Body& body, const std::int64_t* order = nullptr,
                  const Scratch& scratch = {}) {
  const Evaluator<T>& evaluator = density.evaluator();
  const bool done = evaluator.on_chains(
      chains, evaluator.full_batch(), passes, static_cast<T*>(nullptr), poll,
      [&](const Member<T>& member, std::int64_t chain) {
        NetworkContext<T> context(evaluator, member);
        return body(context, chain);
      },
      [&](TeamSpace<T>& team) {
        if (team.tree.size() < scratch.vectors) {
          const std::int64_t more = scratch.vectors - team.tree.size();
          require_memory(more * static_cast<std::int64_t>(sizeof(T)), "the tree of a chain");
        }
        team.tree.resize(scratch.vectors);
        team.tree_sums.resize(std::max(team.tree_sums.size(), scratch.sums));
      },
      order);
  return {!done, 0};
}
template <class Body>
CallEnd on_chains(const PointerDensity& density, std::int64_t chains, double, Poll* poll,
                  const Body& body, const std::int64_t* order = nullptr,
                  const Scratch& scratch = {}) {
  return density.on_chains(chains, poll, [&](std::int64_t i, Cancel& cancel) {
    int code = 0;
    PointerContext context(density, cancel, code, scratch);
    body(context, order != nullptr ? order[i] : i);
    return code;
  });
}

// Writes the tempered terms (chains, 2) and the gradient at positions (chains, dim).
template <class T>
CallEnd evaluate(const LogDensity<T>& density, const T* position, std::int64_t chains,
                 double* terms, T* grad, Poll* poll) {
  const auto count = static_cast<std::size_t>(chains);
  std::vector<double> likelihood(count), prior(count);
  if (!density.evaluate(position, chains, nullptr, 0, likelihood.data(), prior.data(), grad,
                        poll)) {
    return {true, 0};
  }
  const Temperatures& t = density.temperatures();
  for (std::size_t c = 0; c < count; ++c) {
    terms[2 * c] = likelihood[c] / (t.likelihood * t.posterior);
    terms[2 * c + 1] = prior[c] / t.posterior;
  }
  return {};
}
inline CallEnd evaluate(const PointerDensity& density, const double* position, std::int64_t chains,
                        double* terms, double* grad, Poll* poll) {
  std::vector<double> lp(static_cast<std::size_t>(chains));
  const CallEnd end = density.evaluate(position, chains, lp.data(), grad, poll);
  for (std::size_t c = 0; c < lp.size(); ++c) {
    terms[2 * c] = lp[c];
    terms[2 * c + 1] = 0.0;
  }
  return end;
}

// Leapfrog trajectories of all chains, with tempered terms.
template <class T>
CallEnd leapfrog(const LogDensity<T>& density, const Trajectories<T>& all, Poll* poll) {
  if (!density.leapfrog(all, poll)) return {true, 0};
  const Temperatures& t = density.temperatures();
  for (std::int64_t c = 0; c < all.chains; ++c) {
    all.log_likelihood[c] /= t.likelihood * t.posterior;
    all.log_prior[c] /= t.posterior;
  }
  return {};
}
inline CallEnd leapfrog(const PointerDensity& density, const Trajectories<double>& all,
                        Poll* poll) {
  return density.leapfrog(all, poll);
}

// The weights of the last layer if the density integrates that layer out, else 0.
template <class T>
std::int64_t integrated_weights(const LogDensity<T>& density) {
  const LastLayer* last = density.last();
  return last == nullptr ? 0 : last->terms() * last->outputs;
}
inline std::int64_t integrated_weights(const PointerDensity&) {
  return 0;
}
// The index of the first of these weights in a draw.
template <class T>
std::int64_t integrated_offset(const LogDensity<T>& density) {
  return density.evaluator().noise_at();
}
inline std::int64_t integrated_offset(const PointerDensity& density) {
  return density.dim();
}
// Completes positions (chains, draws, dim) to draws (chains, draws, dim + weights) by exact draws
// of the integrated layer. steps (draws,) and chain_ids (chains,) number the random draws. False
// when cancelled.
template <class T>
bool complete(const LogDensity<T>& density, const T* position, std::int64_t chains,
              std::int64_t draws, std::uint64_t seed, const std::uint64_t* steps,
              const std::uint32_t* chain_ids, T* out, Poll* poll) {
  return density.complete(position, chains, draws, seed, steps, chain_ids, out, poll);
}
inline bool complete(const PointerDensity&, const double*, std::int64_t, std::int64_t,
                     std::uint64_t, const std::uint64_t*, const std::uint32_t*, double*, Poll*) {
  return true;  // a C function has no such layer
}

// Return whether several threads share the work of one chain, or MPI ranks share its rows.
template <class T>
bool shares_chains(const LogDensity<T>& density, std::int64_t chains) {
  const auto partition = density.evaluator().cut_of(density.evaluator().full_batch(), chains);
  return partition.pieces > 1 || partition.group != nullptr;
}
inline bool shares_chains(const PointerDensity&, std::int64_t) {
  return false;
}
template <class T>
bool has_ranks(const LogDensity<T>& density) {
  return density.group() != nullptr;
}
inline bool has_ranks(const PointerDensity&) {
  return false;
}
template <class T>
double gradient_flops(const LogDensity<T>& density) {
  return density.evaluator().gradient_flops(density.evaluator().full_batch().x.rows);
}
inline double gradient_flops(const PointerDensity& density) {
  return static_cast<double>(density.dim());
}

}  // namespace ribbit::cpu
