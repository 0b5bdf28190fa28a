#include "chains/first_step_size.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "chains/chains.h"
#include "core/philox_hd.h"
#include "cpu/random.h"

namespace ribbit {

template <class T, class D>
std::vector<double> find_first_step_size(const D& density, const ChainsView<T>& view,
                                         cpu::Poll* poll) {
  constexpr int kSearchLayer = 1;  // of kPurposeMomentum: draws use layer 0
  const HamiltonianTuner& tuner = *view.tuner;
  const std::size_t count = tuner.chains();
  const auto chains = static_cast<std::int64_t>(count);
  const std::int64_t n = density.dim(), size = chains * n;
  std::vector<T> momentum(static_cast<std::size_t>(size)), end_position(momentum.size()),
      end_momentum(momentum.size()), end_grad(momentum.size());
  cpu::fill_normal({tuner.seed(), view.step, kPurposeMomentum, kSearchLayer},
                   tuner.chain_ids().data(), chains, n, momentum.data());
  for (std::int64_t i = 0; view.mass != nullptr && i < size; ++i) {
    const T mass = view.mass[view.mass_stride > 0 ? i : i % n];
    momentum[static_cast<std::size_t>(i)] /= std::sqrt(mass);
  }
  std::vector<double> before(count), after(count), likelihood(count), prior(count);
  std::vector<std::int64_t> ones(count, 1), made(count);
  cpu::kinetic_energy(momentum.data(), view.mass, view.mass_stride, chains, n, before.data());
  std::vector<double> step_size(count, tuner.first_try());
  std::vector<int> direction(count, 0);  // 0: the first step decides
  std::vector<bool> active(count, true);
  for (bool any = true; any;) {
    const cpu::Trajectories<T> all{chains,
                                   view.position,
                                   momentum.data(),
                                   view.grad,
                                   view.mass,
                                   view.mass_stride,
                                   step_size.data(),
                                   ones.data(),
                                   end_position.data(),
                                   end_momentum.data(),
                                   end_grad.data(),
                                   likelihood.data(),
                                   prior.data(),
                                   made.data()};
    if (!succeeded(leapfrog(density, all, poll))) return {};
    cpu::kinetic_energy(end_momentum.data(), view.mass, view.mass_stride, chains, n, after.data());
    any = false;
    for (std::size_t c = 0; c < count; ++c) {
      double drop = -((after[c] - before[c]) +
                      ((view.terms[2 * c] - likelihood[c]) + (view.terms[2 * c + 1] - prior[c])));
      if (!std::isfinite(drop)) drop = -std::numeric_limits<double>::infinity();
      if (direction[c] == 0) direction[c] = drop > std::log(0.5) ? 1 : -1;
      active[c] = active[c] && direction[c] * drop > -direction[c] * std::log(2.0) &&
                  step_size[c] > 1e-12 && step_size[c] < 1e7;
      any = any || active[c];
    }
    for (std::size_t c = 0; any && c < count; ++c) {
      if (active[c]) step_size[c] *= direction[c] > 0 ? 2.0 : 0.5;
    }
  }
  return step_size;
}

template std::vector<double> find_first_step_size(const cpu::LogDensity<float>&,
                                                  const ChainsView<float>&, cpu::Poll*);
template std::vector<double> find_first_step_size(const cpu::LogDensity<double>&,
                                                  const ChainsView<double>&, cpu::Poll*);
template std::vector<double> find_first_step_size(const cpu::PointerDensity&,
                                                  const ChainsView<double>&, cpu::Poll*);

}  // namespace ribbit
