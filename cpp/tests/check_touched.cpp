// Gradients of large tables whose untouched rows are neither cleared nor read: the bits of dense
// ones, with gradients that cancel or are -0, inf or NaN, for every number of shards, threads and
// chains, through learned scales too.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "cpu/density/log_density.h"
#include "cpu/density/touched_rows.h"
#include "writer.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

constexpr std::int64_t kVocabulary = 16400, kUnits = 16, kTokens = 5;  // just large enough

template <class T>
using Numbers = std::vector<T>;

template <class T>
bool same_bits(const Numbers<T>& a, const Numbers<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A deterministic stand-in for random numbers.
std::uint32_t mixed(std::uint64_t i) {
  i = (i + 0x9e3779b97f4a7c15U) * 0xbf58476d1ce4e5b9U;
  return static_cast<std::uint32_t>((i ^ i >> 29) * 0x94d049bb133111ebU >> 32);
}

// What was in memory before: a NaN of its own, in places -0.
template <class T>
T garbage(std::size_t i) {
  return i % 7 == 0 ? -T(0) : std::numeric_limits<T>::quiet_NaN();
}

// A number of a partial gradient: no -0 (see touched_rows.h), but all else there is.
template <class T>
T partial(std::uint64_t i) {
  using Limits = std::numeric_limits<T>;
  const auto x = static_cast<T>(static_cast<double>(mixed(i)) * 0x1p-31 - 1.0);
  switch (mixed(i + 77) % 12) {
    case 0:
      return T(0);
    case 1:  // cancel each other
      return mixed(i + 5) % 2 == 0 ? T(1) : T(-1);
    case 2:
      return mixed(i + 5) % 2 == 0 ? Limits::denorm_min() : -Limits::denorm_min();
    case 3:
      return mixed(i + 5) % 9 == 0 ? -Limits::infinity() : Limits::max();
    case 4:
      if (mixed(i + 5) % 9 > 1) return -x * T(1e-20);
      return mixed(i + 5) % 9 == 0 ? Limits::quiet_NaN() : -Limits::quiet_NaN();
    default:
      return x;
  }
}

// ---- sums over shards ---------------------------------------------------------------------------
// Two tables, neither of which begins or ends with a chunk, among other parameters.
template <class T>
void check_sums() {
  const std::vector<TouchedTable> tables{{1000, 40, 21, 300}, {37, 300, 3, 0}};
  const TouchedRows touched(tables);
  const std::int64_t dim = 2000, marks = touched.marks();
  CHECK(marks == 340);
  const auto n = static_cast<std::size_t>(dim);
  std::int64_t differ = 0;
  for (const std::int64_t shards : {2, 3, 4, 5, 7, 8, 13, 16}) {
    for (const std::uint32_t sparse : {1U, 2U, 3U, 40U}) {  // 1: all rows are touched
      Numbers<std::uint8_t> marked(static_cast<std::size_t>(shards * marks));
      Numbers<T> dense, there(marked.size() / static_cast<std::size_t>(marks) * n, T(3));
      for (std::int64_t s = 0; s < shards; ++s) {
        touched.clear(dim, there.data() + s * dim, marked.data() + s * marks);
        for (std::int64_t i = 0; i < dim; ++i) {
          const auto at = static_cast<std::size_t>(s * dim + i);
          dense.push_back(partial<T>(at));
          bool is_there = true;
          for (const TouchedTable& t : tables) {
            const std::int64_t row = i < t.offset ? t.rows : (i - t.offset) / t.units;
            if (row >= t.rows) continue;
            CHECK(there[at] == T(3));  // was not cleared
            is_there = mixed(static_cast<std::uint64_t>(131 * s + t.marks + row)) % sparse == 0;
            if (is_there) marked[static_cast<std::size_t>(s * marks + t.marks + row)] = 1;
          }
          if (!is_there) dense[at] = 0;
          there[at] = is_there ? dense[at] : garbage<T>(at);
        }
      }
      Numbers<T> expected(n), found(n);
      for (const std::int64_t chunk : {std::int64_t{128}, std::int64_t{61}, dim}) {
        std::fill(found.begin(), found.end(), T(9));
        for (std::int64_t b = 0; b < dim; b += chunk) {
          const std::int64_t end = std::min(dim, b + chunk);
          kernels<T>().tree_sum(dense.data() + b, dim, shards, end - b, expected.data() + b);
          touched.sum(there.data(), dim, shards, marked.data(), b, end, found.data());
        }
        CHECK(same_bits(found, expected));
      }
      // The control: a mark too few is noticed.
      const auto one = std::find(marked.begin(), marked.end(), 1);
      if (one == marked.end()) continue;
      *one = 0;
      touched.sum(there.data(), dim, shards, marked.data(), 0, dim, found.data());
      if (!same_bits(found, expected)) ++differ;
    }
  }
  CHECK(differ >= 24);  // of 32: a row may be all zeros
}

// ---- a shard ------------------------------------------------------------------------------------
// Writes what it is told as the gradient by an embedding's outputs.
template <class T>
struct Planted final : PanelLoss<T> {
  const Numbers<T>* deltas;
  void operator()(std::int64_t panel, const T*, T* delta) override {
    const std::int64_t size = kTokens * kUnits * kPanel;
    std::copy_n(deltas->data() + panel * size, size, delta);
  }
};

// Two tables that read the same tokens; their sum.
Writer two_tables() {
  Writer w;
  w.dim = 3;  // parameters before them
  for (int table = 0; table < 2; ++table) {
    const std::int64_t weight = w.take(kVocabulary * kUnits);
    w.row(Op::kEmbedding, kTokens, kTokens * kUnits,
          {{Column::kWeightOffset, weight},
           {Column::kArgument, kVocabulary},
           {Column::kChannels, kUnits},
           {Column::kInput, 0}});
  }
  w.row(Op::kAdd, kTokens * kUnits, kTokens * kUnits, {{Column::kSecond, 1}});
  return w;
}

// Few different tokens, all over the table.
std::int64_t token(std::uint64_t i) {
  const std::uint32_t word = mixed(i);
  return word % 3 == 0   ? word / 3 % 6 * 1000
         : word % 3 == 1 ? word / 3 % kVocabulary
                         : kVocabulary - 1 - word / 3 % 5;
}

template <class T>
void check_shard() {
  const Writer w = two_tables();
  const std::int64_t rows = 70, panels = 3;
  Numbers<T> x;
  for (std::int64_t i = 0; i < rows * kTokens; ++i) x.push_back(static_cast<T>(token(i)));
  const auto pass = make_network_pass<T>(w.network(), false);
  const TouchedRows touched(pass->touched_tables());
  CHECK(touched.marks() == 2 * kVocabulary);
  BatchRows<T> batch;
  pass->take_rows(Rows<T>(x.data()), nullptr, rows, batch);
  Numbers<T> deltas(static_cast<std::size_t>(panels * kTokens * kUnits * kPanel));
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / (kTokens * kUnits * kPanel) * kPanel +
                     static_cast<std::int64_t>(i) % kPanel;
    const std::int64_t place = static_cast<std::int64_t>(i) / (kUnits * kPanel) % kTokens;
    const std::int64_t t = row < rows ? token(row * kTokens + place) : 0;
    deltas[i] = t % 4 == 1 ? -T(0) : t % 4 == 2 ? T(row % 2 == 0 ? 1 : -1) : partial<T>(i);
  }
  const auto n = static_cast<std::size_t>(w.dim);
  const Numbers<T> theta(n, T(0.5));
  Numbers<T> dense(n, T(0)), sparse(n);
  for (std::size_t i = 0; i < n; ++i) sparse[i] = garbage<T>(i);
  Numbers<std::uint8_t> marks(static_cast<std::size_t>(touched.marks()), 7);
  touched.clear(w.dim, sparse.data(), marks.data());
  const auto space = pass->space(PassUse::kGradient);
  Buffer<T> packed(pass->packed_size());
  pass->pack(theta.data(), true, Part{}, packed.data());
  Cancel cancel(nullptr);
  Planted<T> loss;
  loss.deltas = &deltas;
  pass->run_shard({batch, 0, panels, theta.data(), packed.data(), nullptr, dense.data()}, *space,
                  loss, cancel);
  pass->run_shard(
      {batch, 0, panels, theta.data(), packed.data(), nullptr, sparse.data(), marks.data()}, *space,
      loss, cancel);
  std::int64_t zeros = 0, bad = 0, seen = 0;
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(!(dense[i] == 0 && std::signbit(dense[i])));  // what the sums over shards rest on
    const std::int64_t row = (static_cast<std::int64_t>(i) - 3) / kUnits;  // of both tables
    const bool there = i < 3 || marks[static_cast<std::size_t>(row)] == 1;
    if (!there) sparse[i] = 0;
    seen += there;
    zeros += there && dense[i] == 0;
    bad += std::isnan(dense[i]);
  }
  CHECK(same_bits(dense, sparse));
  CHECK(zeros > 100 && bad > 10 && seen < w.dim / 20);  // all cases are there
}

// ---- densities ----------------------------------------------------------------------------------
// Tokens through a large table, a convolution and a dense layer; one output.
Writer text() {
  Writer w;
  const std::int64_t weight = w.take(kVocabulary * kUnits);
  w.row(Op::kEmbedding, kTokens, kTokens * kUnits,
        {{Column::kWeightOffset, weight},
         {Column::kArgument, kVocabulary},
         {Column::kChannels, kUnits}});
  w.conv(1, kTokens, kUnits, 2, 1, 0, 1, kTokens - 1, 3);
  w.dense((kTokens - 1) * 3, 1);
  return w;
}

constexpr std::int64_t kRows = 330, kChains = 3;

template <class T>
struct Problem {
  Writer network = text();
  Numbers<T> x, y;
  explicit Problem(bool not_finite) {
    for (std::int64_t i = 0; i < kRows * kTokens; ++i) x.push_back(static_cast<T>(token(i)));
    for (std::int64_t i = 0; i < kRows; ++i) y.push_back(partial<T>(12 * i + 5) > 0 ? T(1) : T(0));
    if (not_finite) y[200] = std::numeric_limits<T>::quiet_NaN();
  }
  LogDensity<T> density(std::int64_t first, std::int64_t rows,
                        std::vector<ScaleSegment> scales = {}) const {
    const auto more = static_cast<std::int64_t>(scales.size());
    return {network.network(),
            {{0, network.dim + more, PriorKind::kNormal, 0.7, 0, 0}},
            LikelihoodKind::kGaussian,
            {0.5},
            Rows<T>(x.data() + first * kTokens),
            y.data() + first,
            rows,
            {},
            false,
            false,
            nullptr,
            std::nullopt,
            std::move(scales)};
  }
  // Of the log likelihood: each shard by a density of its rows alone, which is one shard and so has
  // no marks, added up by the kernel of dense sums.
  Numbers<T> dense(const T* theta, std::int64_t shards) const {
    Numbers<T> each(static_cast<std::size_t>(shards * network.dim));
    Numbers<T> out(static_cast<std::size_t>(network.dim));
    const std::int64_t panels = panel_count(kRows);
    for (std::int64_t s = 0; s < shards; ++s) {
      const std::int64_t first = panels * s / shards * kPanel;
      const std::int64_t last = std::min(kRows, panels * (s + 1) / shards * kPanel);
      double ll = 0, lp = 0;
      LogDensity<T> one = density(first, last - first);
      one.set_shards(1);
      CHECK(one.evaluate(theta, 1, nullptr, 0, &ll, &lp, each.data() + s * network.dim, nullptr,
                         nullptr, 0.0));
    }
    kernels<T>().tree_sum(each.data(), network.dim, shards, network.dim, out.data());
    return out;
  }
};

template <class T>
Numbers<T> thetas(std::int64_t dim) {
  Numbers<T> out;
  for (std::int64_t i = 0; i < kChains * dim; ++i) {
    out.push_back(static_cast<T>(0.4 * std::sin(12.9898 * static_cast<double>(3 * i + 1))));
  }
  return out;
}

template <class T>
void check_density(bool not_finite) {
  const Problem<T> problem(not_finite);
  const std::int64_t dim = problem.network.dim;
  const Numbers<T> theta = thetas<T>(dim);
  for (const std::int64_t shards : {1, 2, 5, 11}) {
    Numbers<T> expected;
    for (std::int64_t c = 0; c < kChains; ++c) {
      const Numbers<T> one = problem.dense(theta.data() + c * dim, shards);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    CHECK(std::any_of(expected.begin(), expected.end(), [](T g) { return std::isnan(g); }) ==
          not_finite);
    LogDensity<T> density = problem.density(0, kRows);
    density.set_shards(shards);
    for (const int threads : {1, 2, 5}) {
      set_num_threads(threads);
      double ll[kChains], lp[kChains];
      // Again at other places: the memory is that of the time before.
      for (const std::int64_t first : {std::int64_t{0}, kChains - 1, std::int64_t{0}}) {
        const std::int64_t chains = kChains - first;
        Numbers<T> grad(static_cast<std::size_t>(chains * dim));
        CHECK(density.evaluate(theta.data() + first * dim, chains, nullptr, 0, ll, lp, grad.data(),
                               nullptr, nullptr, 0.0));
        CHECK(std::memcmp(grad.data(), expected.data() + first * dim, grad.size() * sizeof(T)) ==
              0);
      }
    }
  }
}

// The gradient by z of weights with learned scales follows from that by the weights.
template <class T>
void check_scaled() {
  const Problem<T> problem(false);
  const std::int64_t network_dim = problem.network.dim, shards = 5, dim = network_dim + 1;
  const std::vector<ScaleSegment> segments{{0, network_dim, 0, network_dim, 1}};
  const Scales<T> scales(segments, network_dim, dim);
  const Numbers<T> theta = thetas<T>(dim);
  Numbers<T> w(static_cast<std::size_t>(dim)), expected(w.size());
  std::vector<double> multipliers(static_cast<std::size_t>(scales.sums())), sums(multipliers);
  const std::int64_t chunks = (dim + kChunk - 1) / kChunk;
  for (std::int64_t c = 0; c < chunks; ++c) {
    scales.weights(theta.data(), c, w.data(), multipliers.data());
  }
  const Numbers<T> by_weights = problem.dense(w.data(), shards);
  std::copy(by_weights.begin(), by_weights.end(), expected.begin());
  expected.back() = 0;
  for (std::int64_t c = 0; c < chunks; ++c) {
    scales.chain_rule(w.data(), c, multipliers.data(), expected.data(), sums.data());
  }
  for (std::int64_t c = 0; c < chunks; ++c) scales.gather(sums.data(), c, expected.data());
  LogDensity<T> density = problem.density(0, kRows, segments);
  density.set_shards(shards);
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    Numbers<T> grad(w.size());
    double ll = 0, lp = 0;
    CHECK(density.evaluate(theta.data(), 1, nullptr, 0, &ll, &lp, grad.data(), nullptr, nullptr,
                           0.0));
    CHECK(same_bits(grad, expected));
  }
}

void check_small() {
  const auto marked = [](std::int64_t rows, std::int64_t units) {
    Writer w;
    const std::int64_t weight = w.take(rows * units);
    w.row(Op::kEmbedding, kTokens, kTokens * units,
          {{Column::kWeightOffset, weight}, {Column::kArgument, rows}, {Column::kChannels, units}});
    return !make_network_pass<float>(w.network(), false)->touched_tables().empty();
  };
  CHECK(marked(kVocabulary, kUnits));
  CHECK(!marked(1000, 128));           // small
  CHECK(!marked(8 * kVocabulary, 8));  // of short rows
}

template <class T>
void check_all() {
  check_sums<T>();
  check_shard<T>();
  for (const bool not_finite : {false, true}) check_density<T>(not_finite);
  check_scaled<T>();
}

}  // namespace

int main() {
  try {
    instruction_set();
  } catch (const std::invalid_argument&) {
    return 77;  // RIBBIT_ISA names a set this CPU lacks
  }
  check_all<float>();
  check_all<double>();
  check_small();
  return report("check_touched");
}
