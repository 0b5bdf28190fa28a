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
  // After so many updates of each chain.
  DualAveraging(Sums sums, int updates)
      : sums_(std::move(sums)), counts_(sums_.log_step.size(), updates + 1) {}
  // acceptance of one more transition of a chain; of several chains by several threads
  void update(std::size_t chain, double acceptance, double target);
  double step_size(std::size_t chain) const;  // to explore with
  double average(std::size_t chain) const;    // to keep
  bool empty() const { return sums_.log_step.empty(); }
  const Sums& sums() const { return sums_; }

 private:
  Sums sums_;
  std::vector<int> counts_;  // (chains,) of the update that comes
};

}  // namespace ribbit::cpu
