#pragma once
// Small targets and runs of chains on them, for tests of chains.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chains/chains.h"
#include "check.h"

namespace ribbit {

// Deterministic numbers in (-scale, scale), the same on every machine.
template <class T>
std::vector<T> numbers(std::int64_t count, double scale) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t mixed = (i * 7919 + 104'729) % 2003;
    out.push_back(static_cast<T>(scale * (static_cast<double>(mixed) - 1001.0) / 1002.0));
  }
  return out;
}

// 3 inputs -> hidden, tanh -> 1 output.
inline std::int64_t dim_of(std::int64_t hidden) {
  return 5 * hidden + 1;
}
inline Network small_network(std::int64_t hidden) {
  const std::int64_t weights = 3 * hidden;
  const std::int64_t rows[3][7] = {{0, 3, hidden, 0, weights, 0, 0},
                                   {1, hidden, hidden, -1, -1, 2, 1},
                                   {0, hidden, 1, weights + hidden, dim_of(hidden) - 1, 0, 2}};
  std::int64_t table[3][static_cast<std::size_t>(Column::kCount)] = {};
  for (std::int64_t r = 0; r < 3; ++r) {
    std::copy_n(rows[r], 7, table[r]);
    table[r][static_cast<std::size_t>(Column::kInput)] = r;
  }
  const double rates[3] = {};
  return Network::from_table(&table[0][0], rates, 3);
}

// A regression on `rows` rows.
template <class T>
struct Regression {
  using Scalar = T;
  std::vector<T> x, y;
  cpu::LogDensity<T> density;

  Regression(std::int64_t rows, std::int64_t hidden)
      : x(numbers<T>(3 * rows, 1.0)),
        y(numbers<T>(rows, 0.5)),
        density(small_network(hidden), {{0, dim_of(hidden), PriorKind::kNormal, 0.7, 0, 0}},
                LikelihoodKind::kGaussian, {0.3}, x.data(), y.data(), rows, {}) {}
};

// The options of calls that divide a run.
struct Division {
  std::int64_t most = 1'000'000;  // rows of a call
  double seconds = 1e9;           // of a call
  bool reload = false;            // from bytes before each call
};

// Everything that a run gives: draws and statistics of each chain, and the bytes of the end.
template <class T>
struct Trace {
  std::vector<std::vector<T>> warmup, draws;
  std::vector<std::vector<std::vector<char>>> statistics;  // [column][chain]
  std::string end;
  std::vector<double> step_size;
  std::int64_t divergences = 0;
  double acceptance = 0;  // of chain 0

  bool operator==(const Trace& other) const {
    return same(warmup, other.warmup) && same(draws, other.draws) &&
           statistics == other.statistics && end == other.end;
  }

 private:
  using Values = std::vector<std::vector<T>>;
  static bool same(const Values& a, const Values& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
      return x.size() == y.size() &&
             (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0);
    });
  }
};

inline Run run_of(std::int64_t chains, std::uint64_t warmup, Thinning thinning = {}) {
  Run run;
  run.seed = 7;
  run.warmup = warmup;
  run.thinning = thinning;
  run.save_warmup = true;
  for (std::int64_t c = 0; c < chains; ++c) run.chain_ids.push_back(static_cast<std::uint32_t>(c));
  return run;
}

// Adds the rows of a block to a trace.
template <class T>
void add_rows(Block<T>& block, std::int64_t dim, bool warm, Trace<T>& to) {
  auto& positions = warm ? to.warmup : to.draws;
  for (std::size_t c = 0; c < positions.size(); ++c) {
    const T* from = block.position() + static_cast<std::int64_t>(c) * block.capacity * dim;
    if (block.positions) {
      positions[c].insert(positions[c].end(), from, from + block.count * dim);
    }
    for (std::size_t i = 0; i < block.columns.size(); ++i) {
      const std::int64_t width = block.columns[i].dtype == '?' ? 1 : 8;
      const char* values = static_cast<const char*>(block.values(i)) +
                           static_cast<std::int64_t>(c) * block.capacity * width;
      auto& column = to.statistics[i][c];
      column.insert(column.end(), values, values + block.count * width);
    }
  }
}

// Runs warmup and `draws` draws of each chain from numbers of size 0.4.
template <class T, class D>
Trace<T> trace(const D& density, const Kernel& kernel, const Run& run, std::int64_t draws,
               const Division& division = {}) {
  std::unique_ptr<Chains<T>> chains = make_chains<T>(density, kernel, run, {{"data", "a"}});
  const std::int64_t dim = chains->full_dim(), count = chains->chains();
  CHECK(chains->start(numbers<T>(count * dim, 0.4).data(), nullptr));
  const auto size = static_cast<std::size_t>(count);
  constexpr std::int64_t kCapacity = 64;
  Block<T> block(chains->columns(), count, kCapacity, dim);
  Trace<T> out;
  out.warmup.resize(size);
  out.draws.resize(size);
  out.statistics.assign(block.columns.size(), std::vector<std::vector<char>>(size));
  const auto call = [&](std::int64_t most) {
    if (division.reload) {
      const std::string bytes = chains->save();
      Run other;
      other.thinning = run.thinning;
      other.save_warmup = run.save_warmup;
      chains = load_chains<T>(density, kernel, other, {{"data", "a"}}, bytes);
      CHECK(chains->save() == bytes);
    }
    const bool warm = chains->warming_up();
    CHECK(chains->advance(block, std::min(most, division.most), division.seconds, nullptr));
    add_rows(block, dim, warm, out);
    const Summary made = chains->summary();
    out.acceptance = made.acceptance_rate.front();
    for (const std::int64_t one : made.divergences) out.divergences += one;
  };
  while (chains->warming_up()) call(1'000'000);
  for (std::int64_t left = draws; left > 0; left -= block.count) call(left);
  out.end = chains->save();
  out.step_size = chains->summary().step_size;
  return out;
}

struct NamedKernel {
  const char* name;
  Kernel kernel;
};

inline Hmc fixed_hmc() {
  Hmc hmc;
  hmc.step_size = {0.02};
  hmc.num_leapfrog_steps = 6;
  return hmc;
}
inline Hmc adapting_hmc() {
  Hmc hmc;
  hmc.trajectory_length = 0.3;
  hmc.mass = MassRule::kAdapt;
  hmc.needs_windows = true;
  hmc.max_num_leapfrog_steps = 60;
  hmc.max_mean_leapfrog_steps = 30;
  return hmc;
}
inline Nuts nuts_of(bool adapts) {
  Nuts nuts;
  nuts.target_accept = 0.8;
  nuts.max_tree_depth = 4;
  if (adapts) {
    nuts.mass = MassRule::kAdapt;
  } else {
    nuts.step_size = {0.03};
  }
  return nuts;
}

// Kernels for chains of a target with `dim` parameters.
inline std::vector<NamedKernel> kernels(std::int64_t dim) {
  Hmc found = fixed_hmc(), jitter = fixed_hmc(), mass = fixed_hmc();
  found.step_size.clear();
  found.trajectory_length = 0.2;
  jitter.step_size_jitter = 0.3;
  for (const double number : numbers<double>(dim, 0.5)) mass.inverse_mass.push_back(number + 1.0);
  Nuts masses = nuts_of(false);
  masses.inverse_mass = mass.inverse_mass;
  return {{"hmc, given step", fixed_hmc()},
          {"hmc, found step", found},
          {"hmc, jitter", jitter},
          {"hmc, given mass", mass},
          {"hmc, adapted mass", adapting_hmc()},
          {"nuts, given step", nuts_of(false)},
          {"nuts, given mass", masses},
          {"nuts, adapted mass", nuts_of(true)}};
}

// Divisions that must not change a bit.
inline constexpr Division kDivisions[] = {
    {1'000'000, 1e9, false}, {7, 1e9, false}, {7, 0.0, false},
    {1, 1e9, false},         {7, 1e9, true},  {3, 0.0, true},
};

inline void expect(bool condition, const char* text, const std::string& name) {
  if (!condition) std::printf("%s differs: %s\n", text, name.c_str());
  CHECK(condition);
}

}  // namespace ribbit
