#pragma once
// Step sizes that are found in warmup, a chain at a time, in scalars of float64 with the C
// library's log, exp and pow.

#include <cstdint>
#include <vector>

namespace ribbit::cpu {

// Nesterov's dual averaging of log step sizes (Hoffman and Gelman 2014, algorithm 5).
//
// A second average begins with the first trajectory of full length, because full trajectories may
// need far smaller steps. On a 4-30-1 network with 200 rows and a noise of 0.01, the first average
// accepted nothing. The second has a tenth of the transitions, so it is noisy. It is used after 20
// updates, if the first is more than 1.4 times as large.
class DualAveraging {
 public:
  DualAveraging() = default;
  explicit DualAveraging(const std::vector<double>& step_size);  // (chains,)
  // acceptance of one more transition of a chain; of several chains by several threads. settled:
  // its trajectory was as long as later ones.
  void update(std::size_t chain, double acceptance, double target, bool settled);
  double step_size(std::size_t chain) const;  // to explore with
  double average(std::size_t chain) const;    // to keep
  bool empty() const { return log_step.empty(); }

  template <class A>
  void fields(A& a, std::int64_t chains) {
    a("dual.log_step", log_step, chains);
    a("dual.log_average", log_average, chains);
    a("dual.error", error, chains);
    a("dual.centre", centre, chains);
    a("dual.log_settled", log_settled, chains);
    a("dual.updates", updates, chains);
    a("dual.settled", settled, chains);
  }
  // Of each chain: the log of the step size to use next and of the averaged one, the running mean
  // of target minus observed acceptance, where log_step is drawn to, and the average when settled.
  std::vector<double> log_step, log_average, error, centre, log_settled;
  std::vector<std::int64_t> updates, settled;  // so far
};

}  // namespace ribbit::cpu
