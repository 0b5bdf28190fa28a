// Rows over ranks, played by threads: gradients, trajectories and steps have the bits of one
// process for every number of ranks and shards, a wish to stop ends all, a failure too.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cpu/density/log_density.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

// What the ranks share: what each gives at a meeting.
struct Shared {
  explicit Shared(int ranks) : barrier(ranks), given(static_cast<std::size_t>(ranks)) {}
  std::barrier<> barrier;
  struct Given {
    const std::byte* data = nullptr;
    const std::vector<std::int64_t>* sizes = nullptr;
    bool wish = false, failed = false;
    std::uint32_t place = 0;
  };
  std::vector<Given> given;
};

class Threads final : public Exchange {
 public:
  Threads(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  bool meet(bool wish, std::uint32_t place) override {
    own().wish = wish;
    own().place = place;
    own().failed = fails_at >= 0 && meetings++ == fails_at;
    shared_.barrier.arrive_and_wait();
    const bool stop = std::any_of(shared_.given.begin(), shared_.given.end(),
                                  [](const Shared::Given& one) { return one.wish || one.failed; });
    for (const Shared::Given& one : shared_.given) CHECK(one.place == place);
    shared_.barrier.arrive_and_wait();
    return !stop;
  }
  bool swap(const std::byte* send, const std::vector<std::int64_t>& send_sizes, std::byte* receive,
            const std::vector<std::int64_t>& receive_sizes) override {
    own().data = send;
    own().sizes = &send_sizes;
    shared_.barrier.arrive_and_wait();
    for (std::size_t r = 0; r < shared_.given.size(); ++r) {
      const auto& sizes = *shared_.given[r].sizes;
      const auto to = static_cast<std::size_t>(rank_);
      std::int64_t at = 0;
      for (std::size_t i = 0; i < to; ++i) at += sizes[i];
      CHECK(sizes[to] == receive_sizes[r]);
      std::memcpy(receive, shared_.given[r].data + at, static_cast<std::size_t>(sizes[to]));
      receive += sizes[to];
    }
    shared_.barrier.arrive_and_wait();
    return true;
  }
  bool gather(const std::byte* send, std::byte* receive,
              const std::vector<std::int64_t>& sizes) override {
    own().data = send;
    shared_.barrier.arrive_and_wait();
    for (std::size_t r = 0; r < shared_.given.size(); ++r) {
      std::memcpy(receive, shared_.given[r].data, static_cast<std::size_t>(sizes[r]));
      receive += sizes[r];
    }
    shared_.barrier.arrive_and_wait();
    return true;
  }

  int fails_at = -1, meetings = 0;

 private:
  Shared::Given& own() { return shared_.given[static_cast<std::size_t>(rank_)]; }
  Shared& shared_;
  const int rank_;
};

// A deterministic stand-in for random numbers in (-1, 1).
float wave(std::int64_t i) {
  return static_cast<float>(std::sin(12.9898 * static_cast<double>(i) + 1.0));
}

constexpr std::int64_t kIn = 3, kHidden = 7, kRows = 333, kChains = 2;

Network network() {
  const auto columns = static_cast<std::size_t>(Column::kCount);
  std::vector<std::int64_t> table(3 * columns, 0);
  const auto row = [&](std::size_t at, std::vector<std::int64_t> start) {
    start.insert(start.end(), {static_cast<std::int64_t>(at), -1, -1});
    std::copy(start.begin(), start.end(),
              table.begin() + static_cast<std::ptrdiff_t>(at * columns));
  };
  row(0, {0, kIn, kHidden, 0, kIn * kHidden, 0, 0});
  row(1, {1, kHidden, kHidden, -1, -1, 1, 1});
  const std::int64_t offset = kIn * kHidden + kHidden;
  row(2, {0, kHidden, 1, offset, offset + kHidden, 0, 2});
  const std::vector<double> rates(3, 0.0);
  return Network::from_table(table.data(), rates.data(), 3);
}

struct Data {
  std::vector<float> x, y;
  Data() {
    for (std::int64_t i = 0; i < kRows * kIn; ++i) x.push_back(wave(i));
    for (std::int64_t i = 0; i < kRows; ++i) y.push_back(wave(7 * i + 3));
  }
};

// Appends chosen rows' values, minibatch steps and those of a mean-field Gaussian, of all rows and
// of batches; false where a call was ended.
bool more(const LogDensity<float>& density, std::vector<float> theta, Poll* poll,
          std::vector<double>* out) {
  const auto n = static_cast<std::size_t>(density.dim());
  constexpr std::int64_t kSteps = 3;
  const std::vector<std::int64_t> chosen{kRows - 1, 0, 40, 40, 180};
  std::vector<double> ll(kChains), lp(kChains);
  std::vector<float> grad(theta.size());
  if (!density.evaluate(theta.data(), kChains, chosen.data(),
                        static_cast<std::int64_t>(chosen.size()), ll.data(), lp.data(), grad.data(),
                        poll)) {
    return false;
  }
  out->insert(out->end(), ll.begin(), ll.end());
  out->insert(out->end(), grad.begin(), grad.end());
  const std::uint32_t ids[kChains] = {0, 1};
  const double step_size[kSteps] = {1e-4, 2e-4, 1e-4}, noise[kSteps] = {1e-2, 1e-2, 1e-2},
               weight[kSteps] = {0.5, 0.3, 0.2};
  for (const std::int64_t batch : {std::int64_t{70}, kRows}) {
    std::vector<float> position(theta);
    StochasticOutcome outcomes[kChains];
    const StochasticSteps steps{5,   0,   kSteps, batch, ids,   step_size, noise, kRuleLangevin,
                                1.0, 0.0, 0.0,    0.9,   0.999, 1e-8,      0};
    if (!density.advance(steps, position.data(), nullptr, nullptr, kChains, outcomes, poll)) {
      return false;
    }
    out->insert(out->end(), position.begin(), position.end());
    std::vector<float> state(6 * n);
    std::copy(theta.begin(), theta.begin() + static_cast<std::ptrdiff_t>(n), state.begin());
    std::fill(state.begin() + static_cast<std::ptrdiff_t>(n),
              state.begin() + static_cast<std::ptrdiff_t>(2 * n), -3.0F);
    std::vector<double> records(3 * kSteps);
    const VariationalSteps moves{5,
                                 0,
                                 kSteps,
                                 batch,
                                 2,
                                 batch < kRows ? Estimator::kFlipout : Estimator::kReparam,
                                 true,
                                 step_size,
                                 weight,
                                 0.9,
                                 0.999,
                                 1e-8,
                                 records.data(),
                                 records.data() + kSteps,
                                 records.data() + 2 * kSteps};
    float* s = state.data();
    StochasticOutcome outcome{};
    if (!density.advance_variational(moves, {s, s + n, s + 2 * n, s + 3 * n, s + 4 * n, s + 5 * n},
                                     &outcome, poll)) {
      return false;
    }
    CHECK(outcome.failed < 0);
    out->insert(out->end(), state.begin(), state.end());
    out->insert(out->end(), records.begin(), records.end());
  }
  return true;
}

// Values, gradients, the ends of trajectories and steps; {} where the calls were ended.
std::vector<double> found(const LogDensity<float>& density, Poll* poll) {
  const auto n = static_cast<std::size_t>(density.dim()), chains = std::size_t{kChains};
  std::vector<float> theta(chains * n), kicks(chains * n), grad(chains * n), q(chains * n),
      p(chains * n), g(chains * n);
  for (std::size_t i = 0; i < chains * n; ++i) {
    theta[i] = 0.4F * wave(static_cast<std::int64_t>(3 * i + 1));
    kicks[i] = wave(static_cast<std::int64_t>(5 * i + 2));
  }
  std::vector<double> ll(chains), lp(chains), value(chains);
  if (!density.evaluate(theta.data(), kChains, nullptr, 0, ll.data(), lp.data(), grad.data(), poll))
    return {};
  if (!density.evaluate(theta.data(), kChains, nullptr, 0, value.data(), lp.data(), nullptr, poll))
    return {};
  const double eps[kChains] = {0.01, 0.02};
  const std::int64_t steps[kChains] = {9, 12};
  std::int64_t made[kChains];
  std::vector<double> end(chains), prior(chains);
  const Trajectories<float> all{kChains,  theta.data(), kicks.data(), grad.data(), nullptr,
                                0,        eps,          steps,        q.data(),    p.data(),
                                g.data(), end.data(),   prior.data(), made};
  if (!density.leapfrog(all, poll)) return {};
  std::vector<double> out(ll);
  for (const auto* values : {&value, &lp, &end, &prior}) {
    out.insert(out.end(), values->begin(), values->end());
  }
  for (const auto* values : {&grad, &q, &p, &g}) {
    out.insert(out.end(), values->begin(), values->end());
  }
  if (!more(density, std::move(theta), poll, &out)) return {};
  return out;
}

LogDensity<float> density_of(const Data& data, std::int64_t first, std::int64_t rows) {
  const Network net = network();
  return {net,
          {{0, net.dim() + 1, PriorKind::kNormal, 0.7, 0, 0}},
          LikelihoodKind::kGaussianLearned,
          {1.0},
          Rows<float>(data.x.data() + first * kIn),
          data.y.data() + first,
          rows,
          {}};
}

std::vector<double> alone(const Data& data, std::int64_t shards) {
  LogDensity<float> density = density_of(data, 0, kRows);
  density.set_shards(shards);
  return found(density, nullptr);
}

// change: of a rank's exchange and poll, before the calls.
std::vector<std::vector<double>> on_ranks(
    const Data& data, int ranks, std::int64_t shards,
    const std::function<Poll*(int, Threads&)>& change = nullptr) {
  Shared shared(ranks);
  std::vector<std::vector<double>> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Threads exchange(shared, rank);
      const RowGroup group{rank, ranks, shards, panel_count(kRows), &exchange};
      const auto row = [&](int of) {
        return std::min(kRows, group.panels * group.first_shard(of) / shards * kPanel);
      };
      LogDensity<float> density = density_of(data, row(rank), row(rank + 1) - row(rank));
      CHECK(density.join(group, kRows));
      Poll* poll = change ? change(rank, exchange) : nullptr;
      results[static_cast<std::size_t>(rank)] = found(density, poll);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

class AfterSome final : public Poll {
 public:
  bool stop() override { return true; }
};

void check_bits() {
  const Data data;
  for (const std::int64_t shards : {16, 5, 4}) {
    const std::vector<double> expected = alone(data, shards);
    CHECK(!expected.empty());
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const std::vector<double>& got : on_ranks(data, ranks, shards)) CHECK(got == expected);
    }
  }
  CHECK(alone(data, 16) != alone(data, 5));  // else the lines above say nothing
}

void check_ends() {
  const Data data;
  // A wish on one rank: noticed by its poll within some gradients, or not before the calls end.
  AfterSome poll;
  const auto wished = on_ranks(
      data, 3, 16, [&](int rank, Threads&) -> Poll* { return rank == 1 ? &poll : nullptr; });
  for (const auto& got : wished) CHECK(got == wished.front());
  for (const int at : {0, 1, 2, 5, 9, 26, 28, 35, 40, 46}) {
    const auto failed = on_ranks(data, 3, 16, [&](int rank, Threads& exchange) -> Poll* {
      if (rank == 2) exchange.fails_at = at;
      return nullptr;
    });
    for (const auto& got : failed) CHECK(got.empty());
  }
}

}  // namespace

int main() {
  set_num_threads(2);
  check_bits();
  check_ends();
  return report("check_group");
}
