#include "chains/hamiltonian_state.h"

#include <algorithm>
#include <cmath>

#include "chains/chains.h"
#include "chains/fields.h"

namespace ribbit {
namespace {

template <class V>
bool all_finite(const std::vector<V>& values) {
  return std::all_of(values.begin(), values.end(), [](V v) { return std::isfinite(v); });
}
template <class V>
bool all_positive(const std::vector<V>& values) {
  return all_finite(values) && std::all_of(values.begin(), values.end(), [](V v) { return v > 0; });
}
// Counts of steps, which more steps must not overflow.
bool all_counts(const std::vector<std::int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [](std::int64_t v) {
    return v >= 0 && v <= static_cast<std::int64_t>(kMostSteps);
  });
}

}  // namespace

template <class T>
ChainsView<T> HamiltonianState<T>::view(std::int64_t dim) {
  return {position.data(),
          grad.data(),
          terms.data(),
          inverse_mass.empty() ? nullptr : inverse_mass.data(),
          own_masses ? dim : 0,
          step,
          &tuner};
}

template <class T>
void HamiltonianState<T>::check(std::int64_t dim) const {
  const auto refuse = [](bool wrong, const char* field) {
    if (wrong) FieldReader::fail(field);
  };
  const std::size_t count = tuner.chains(), size = count * static_cast<std::size_t>(dim);
  refuse(step >= kMostSteps, "step");
  refuse(position.size() != size || !all_finite(position), "position");
  refuse(grad.size() != size || !all_finite(grad), "grad");
  refuse(terms.empty() || terms.size() % count != 0 || !all_finite(terms), "terms");
  refuse(divergences.size() != count || !all_counts(divergences), "divergences");
  const std::size_t mass = inverse_mass.size();
  const std::size_t masses = own_masses ? size : static_cast<std::size_t>(dim);
  refuse((mass != 0 && mass != masses) || !all_positive(inverse_mass), "inverse_mass");
  if (moments > 0) {
    const MassWindows& windows = tuner.windows();
    refuse(!windows.collects(step) || moments > step - windows.first, "window.count");
    refuse(mean.size() != size || !all_finite(mean), "window.mean");
    refuse(squares.size() != size || !all_finite(squares), "window.squares");
    refuse(std::any_of(squares.begin(), squares.end(), [](double v) { return v < 0.0; }),
           "window.squares");
  }
  tuner.check_fields();
}

template <class T>
Moments HamiltonianState<T>::next_moments() {
  if (!tuner.adapts_mass() || !tuner.windows().collects(step + 1)) return {};
  if (moments == 0) {
    mean.assign(position.size(), 0.0);
    squares.assign(position.size(), 0.0);
  }
  return {mean.data(), squares.data(), moments};
}

template <class T>
void HamiltonianState<T>::collect(const Moments& to) {
  moments = to.count + 1;
  const auto n = static_cast<double>(moments);
  for (std::size_t i = 0; i < position.size(); ++i) {
    const auto q = static_cast<double>(position[i]);
    const double delta = q - to.mean[i];
    to.mean[i] += delta / n;
    to.squares[i] += delta * (q - to.mean[i]);
  }
}

template <class T>
void HamiltonianState<T>::renew_mass() {
  // If a load changed the options in warmup, the window may hold fewer than 2 positions.
  constexpr std::uint64_t kFewest = 2;
  if (moments >= kFewest) {
    const auto n = static_cast<double>(moments);
    inverse_mass.resize(position.size());
    own_masses = true;
    for (std::size_t i = 0; i < position.size(); ++i) {
      inverse_mass[i] =
          static_cast<T>((n / (n + 5.0)) * (squares[i] / (n - 1)) + 1e-3 * (5.0 / (n + 5.0)));
    }
  }
  moments = 0;
  mean.clear();
  squares.clear();
}

template struct HamiltonianState<float>;
template struct HamiltonianState<double>;

}  // namespace ribbit
