#include "capi/first_step_size.h"

#include <cmath>
#include <limits>

#include "core/philox_hd.h"
#include "cpu/random.h"

namespace ribbit::capi {
namespace {

constexpr int kSearchLayer = 1;  // of the momentum's purpose: no number is shared with a draw

}  // namespace

template <class T>
bool reasonable_step_size(const Target<T>& target, std::int64_t chains, const T* position,
                          const T* grad, const double* terms, const T* mass, double start,
                          std::uint64_t seed, std::uint64_t step, const std::uint32_t* chain_ids,
                          cpu::Poll* poll, std::vector<double>& step_size) {
  const std::int64_t dim = target.dim(), size = chains * dim;
  const auto count = static_cast<std::size_t>(chains);
  std::vector<T> momentum(static_cast<std::size_t>(size));
  cpu::fill_normal({seed, step, kPurposeMomentum, kSearchLayer}, chain_ids, chains, dim,
                   momentum.data());
  for (std::int64_t i = 0; mass != nullptr && i < size; ++i) {
    momentum[static_cast<std::size_t>(i)] /= std::sqrt(mass[i % dim]);
  }
  std::vector<T> end_position(momentum.size()), end_momentum(momentum.size()),
      end_grad(momentum.size());
  std::vector<double> before(count), after(count), parts(2 * count), end_terms(2 * count);
  std::vector<std::int64_t> ones(count, 1), made(count);
  cpu::kinetic_energy(momentum.data(), mass, 0, chains, dim, before.data());
  step_size.assign(count, start);
  std::vector<int> direction(count, 0);  // 0: not known yet
  std::vector<bool> active(count, true);
  for (;;) {
    const cpu::Trajectories<T> all{chains,
                                   position,
                                   momentum.data(),
                                   grad,
                                   mass,
                                   0,
                                   step_size.data(),
                                   ones.data(),
                                   end_position.data(),
                                   end_momentum.data(),
                                   end_grad.data(),
                                   parts.data(),
                                   parts.data() + count,
                                   made.data()};
    if (!target.leapfrog(all, end_terms.data(), poll)) return false;
    cpu::kinetic_energy(end_momentum.data(), mass, 0, chains, dim, after.data());
    bool any = false;
    for (std::size_t c = 0; c < count; ++c) {
      const double* then = terms + 2 * c;
      const double* now = end_terms.data() + 2 * c;
      double drop = -((after[c] - before[c]) + ((then[0] - now[0]) + (then[1] - now[1])));
      if (!std::isfinite(drop)) drop = -std::numeric_limits<double>::infinity();
      if (direction[c] == 0) direction[c] = drop > std::log(0.5) ? 1 : -1;
      if (!(direction[c] * drop > -direction[c] * std::log(2.0)) || !(step_size[c] > 1e-12) ||
          !(step_size[c] < 1e7)) {
        active[c] = false;
      }
      any = any || active[c];
    }
    if (!any) return true;
    for (std::size_t c = 0; c < count; ++c) {
      if (active[c]) step_size[c] *= direction[c] > 0 ? 2.0 : 0.5;
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                              \
  template bool reasonable_step_size(                                                      \
      const Target<T>&, std::int64_t, const T*, const T*, const double*, const T*, double, \
      std::uint64_t, std::uint64_t, const std::uint32_t*, cpu::Poll*, std::vector<double>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::capi
