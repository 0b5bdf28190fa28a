#pragma once
// Step sizes that are found in warmup, a chain at a time, with the arithmetic of Python's: scalars
// of float64 and the C library's log, exp and pow.

#include <utility>
#include <vector>

namespace ribbit::cpu {

// Nesterov's dual averaging of log step sizes (Hoffman and Gelman 2014, algorithm 5), and beside
// its average one of the settled part of warmup alone: see DualAveraging in Python's
// results/state.py.
class DualAveraging {
 public:
  // Of each chain: the log of the step size to use next and of the averaged one, the running mean
  // of target minus observed acceptance, where log_step is drawn to, and the average when settled.
  struct Sums {
    std::vector<double> log_step, log_average, error, centre, log_settled;
  };

  DualAveraging() = default;
  explicit DualAveraging(const std::vector<double>& step_size);  // (chains,)
  // After so many updates of each chain, of which so many settled.
  DualAveraging(Sums sums, int updates, int settled)
      : sums_(std::move(sums)),
        counts_(sums_.log_step.size(), updates + 1),
        settled_(sums_.log_step.size(), settled) {}
  // acceptance of one more transition of a chain; of several chains by several threads. settled:
  // its trajectory was as long as later ones.
  void update(std::size_t chain, double acceptance, double target, bool settled);
  double step_size(std::size_t chain) const;  // to explore with
  double average(std::size_t chain) const;    // to keep
  bool empty() const { return sums_.log_step.empty(); }
  const Sums& sums() const { return sums_; }

 private:
  Sums sums_;
  std::vector<int> counts_;   // (chains,) of the update that comes
  std::vector<int> settled_;  // (chains,) updates so far
};

}  // namespace ribbit::cpu
