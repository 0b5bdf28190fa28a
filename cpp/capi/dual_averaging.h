#pragma once
// Step sizes that are found in warmup, a chain at a time, with the arithmetic of Python's: scalars
// of float64 and the C library's log, exp and pow.

#include <vector>

#include "capi/target.h"

namespace ribbit::capi {

// Nesterov's dual averaging of log step sizes (Hoffman and Gelman 2014, algorithm 5).
class DualAveraging {
 public:
  DualAveraging() = default;
  explicit DualAveraging(const std::vector<double>& step_size);  // (chains,)
  // acceptance of one more transition of a chain
  void update(std::size_t chain, double acceptance, double target);
  void next() { ++count_; }                   // after the updates of all chains
  double step_size(std::size_t chain) const;  // to explore with
  double average(std::size_t chain) const;    // to keep
  bool empty() const { return log_step_.empty(); }

 private:
  std::vector<double> log_step_, log_average_, error_, centre_;
  int count_ = 1;  // of the updates that come
};

// Where one leapfrog step is accepted about half the time (algorithm 4), from `start` on: (chains,)
// to step_size. position, grad (chains, dim), terms (chains, 2). False when cancelled.
template <class T>
bool reasonable_step_size(const Target<T>& target, std::int64_t chains, const T* position,
                          const T* grad, const double* terms, const T* mass, double start,
                          std::uint64_t seed, std::uint64_t step, const std::uint32_t* chain_ids,
                          cpu::Poll* poll, std::vector<double>& step_size);

}  // namespace ribbit::capi
