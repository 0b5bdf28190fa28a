#pragma once
// Step sizes that are found in warmup, a chain at a time, with the arithmetic of Python's: scalars
// of float64 and the C library's log, exp and pow.

#include <utility>
#include <vector>

namespace ribbit::cpu {

// Nesterov's dual averaging of log step sizes (Hoffman and Gelman 2014, algorithm 5).
class DualAveraging {
 public:
  // Of each chain: the log of the step size to use next and of the averaged one, the running mean
  // of target minus observed acceptance, and where log_step is drawn to.
  struct Sums {
    std::vector<double> log_step, log_average, error, centre;
  };

  DualAveraging() = default;
  explicit DualAveraging(const std::vector<double>& step_size);  // (chains,)
  // After so many updates.
  DualAveraging(Sums sums, int updates) : sums_(std::move(sums)), count_(updates + 1) {}
  // acceptance of one more transition of a chain
  void update(std::size_t chain, double acceptance, double target);
  void next() { ++count_; }                   // after the updates of all chains
  double step_size(std::size_t chain) const;  // to explore with
  double average(std::size_t chain) const;    // to keep
  bool empty() const { return sums_.log_step.empty(); }
  const Sums& sums() const { return sums_; }

 private:
  Sums sums_;
  int count_ = 1;  // of the updates that come
};

}  // namespace ribbit::cpu
