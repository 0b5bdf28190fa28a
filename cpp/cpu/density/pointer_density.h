#pragma once
// A log density given as a C function pointer, and its leapfrog trajectories.

#include <cstddef>
#include <cstdint>

#include "cpu/system/threads.h"

namespace ribbit::cpu {

// Writes grad (n,) and *lp at x (n,); returns 0 when all went well.
using DensityFunction = int (*)(std::size_t n, const double* x, double* grad, double* lp,
                                void* user);

class PointerDensity {
 public:
  // threadsafe: several threads may call the function at once.
  PointerDensity(DensityFunction function, std::int64_t dim, void* user, bool threadsafe)
      : function_(function), dim_(dim), user_(user), threadsafe_(threadsafe) {}
  std::int64_t dim() const { return dim_; }

  struct Outcome {
    bool cancelled = false;
    int code = 0;  // the first non-zero code the function returned
  };
  Outcome evaluate(const double* theta, std::int64_t chains, double* lp, double* grad,
                   Poll* poll) const;
  // As LogDensity::leapfrog; a chain ends at the first value or gradient that is not finite.
  Outcome leapfrog(double* q, double* p, double* g, const double* m, std::int64_t m_stride,
                   const double* step_size, const std::int64_t* num_steps, std::int64_t chains,
                   double* lp, std::int64_t* made, Poll* poll) const;

 private:
  template <class Body>
  Outcome on_chains(std::int64_t chains, Poll* poll, const Body& body) const;
  int call(const double* theta, double* grad, double* lp) const;

  DensityFunction function_;
  std::int64_t dim_;
  void* user_;
  bool threadsafe_;
};

}  // namespace ribbit::cpu
