// What all targets do: starts, values, trajectories.

#include "capi/target.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ribbit::capi {

ChainIds::ChainIds(const std::uint32_t* given, std::int64_t chains) : ids_(given) {
  if (given != nullptr) return;
  own_.resize(static_cast<std::size_t>(chains));
  std::iota(own_.begin(), own_.end(), 0U);
  ids_ = own_.data();
}

void check_chains(const char* function, std::int64_t chains) {
  needs(chains >= 1 && chains <= std::int64_t{1} << 32, function, "at least 1 chain");
}

void check_distinct(const char* function, const ChainIds& ids, std::int64_t chains) {
  std::vector<std::uint32_t> sorted(ids.data(), ids.data() + chains);
  std::sort(sorted.begin(), sorted.end());
  const auto found = std::adjacent_find(sorted.begin(), sorted.end());
  if (found == sorted.end()) return;
  refuse(function, "distinct chain ids, got " + std::to_string(*found) + " twice");
}

template <class T>
const T* checked_mass(const char* function, const void* mass, std::int64_t dim) {
  const T* values = static_cast<const T*>(mass);
  for (std::int64_t i = 0; values != nullptr && i < dim; ++i) {
    needs(std::isfinite(values[i]) && values[i] > 0, function,
          "positive finite numbers in inverse_mass");
  }
  return values;
}
template const float* checked_mass(const char*, const void*, std::int64_t);
template const double* checked_mass(const char*, const void*, std::int64_t);

}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

void ribbit_target_free(ribbit_target* target) {
  delete target;
}

int64_t ribbit_target_dim(const ribbit_target* target) {
  if (target == nullptr) return 0;
  return std::visit([](const auto& of) { return of->dim(); }, target->of);
}

int ribbit_target_dtype(const ribbit_target* target) {
  return target != nullptr && target->of.index() == 0 ? RIBBIT_FLOAT32 : RIBBIT_FLOAT64;
}

int ribbit_target_start(const ribbit_target* target, uint64_t seed, const uint32_t* chain_ids,
                        int64_t chains, void* position) {
  constexpr const char* kName = "ribbit_target_start";
  return guarded(kName, [&] {
    check_chains(kName, chains);
    needs(position != nullptr, kName, "a place for the positions, got NULL");
    const ChainIds ids(chain_ids, chains);
    return on_target(kName, target, [&](const auto& of, auto zero) {
      of.start(seed, ids.data(), chains, static_cast<decltype(zero)*>(position));
      return RIBBIT_OK;
    });
  });
}

int ribbit_value_and_grad(const ribbit_target* target, const void* theta, int64_t chains,
                          const int64_t* subset, int64_t subset_rows, double* terms, void* grad,
                          const ribbit_interrupt* interrupt) {
  constexpr const char* kName = "ribbit_value_and_grad";
  return guarded(kName, [&] {
    check_chains(kName, chains);
    needs(theta != nullptr && terms != nullptr, kName, "theta and a place for the terms, got NULL");
    needs(subset == nullptr || subset_rows >= 1, kName, "at least 1 row of a subset");
    return on_target(kName, target, [&](const auto& of, auto zero) {
      using T = decltype(zero);
      InterruptPoll poll(interrupt);
      const bool done = of.value_and_grad(static_cast<const T*>(theta), chains, subset, subset_rows,
                                          terms, static_cast<T*>(grad), &poll);
      return done ? RIBBIT_OK : kInterrupted;
    });
  });
}

int ribbit_leapfrog(const ribbit_target* target, int64_t chains, void* position, void* momentum,
                    void* grad, const void* inverse_mass, const double* step_size,
                    const int64_t* num_steps, double* terms, const ribbit_interrupt* interrupt) {
  constexpr const char* kName = "ribbit_leapfrog";
  return guarded(kName, [&] {
    check_chains(kName, chains);
    needs(position != nullptr && momentum != nullptr && grad != nullptr && step_size != nullptr &&
              num_steps != nullptr && terms != nullptr,
          kName, "arrays, got NULL");
    for (std::int64_t c = 0; c < chains; ++c) {
      needs(num_steps[c] >= 1, kName, "num_steps >= 1");
      needs(std::isfinite(step_size[c]), kName, "finite step sizes");
    }
    return on_target(kName, target, [&](const auto& of, auto zero) {
      using T = decltype(zero);
      T *q = static_cast<T*>(position), *p = static_cast<T*>(momentum), *g = static_cast<T*>(grad);
      std::vector<double> parts(static_cast<std::size_t>(2 * chains));
      std::vector<std::int64_t> made(static_cast<std::size_t>(chains));
      const T* mass = checked_mass<T>(kName, inverse_mass, of.dim());
      const cpu::Trajectories<T> all{chains,
                                     q,
                                     p,
                                     g,
                                     mass,
                                     0,
                                     step_size,
                                     num_steps,
                                     q,
                                     p,
                                     g,
                                     parts.data(),
                                     parts.data() + chains,
                                     made.data()};
      InterruptPoll poll(interrupt);
      return of.leapfrog(all, terms, &poll) ? RIBBIT_OK : kInterrupted;
    });
  });
}
