// Chains of HMC and NUTS.

#include "chains/chains.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "capi/target.h"
#include "chains/fields.h"

namespace ribbit::capi {
namespace {

ribbit_run_options default_options() {
  ribbit_run_options options{};
  options.size = sizeof options;
  options.chains = options.thin = 1;
  options.warmup = 500;
  return options;
}

Run run_of(const char* function, const ribbit_run_options* given) {
  const ribbit_run_options o = read_options(function, given, default_options());
  check_chains(function, o.chains);
  constexpr std::int64_t kMost = std::int64_t{1} << 39;
  needs(o.warmup >= 0 && o.warmup < kMost, function, "warmup in 0..2^39");
  needs(o.thin >= 1 && o.thin < kMost, function, "thin in 1..2^39");
  needs(o.save_warmup == 0 || o.save_warmup == 1, function, "save_warmup as 0 or 1");
  Run run;
  run.seed = o.seed;
  const ChainIds ids(o.chain_ids, o.chains);
  check_distinct(function, ids, o.chains);
  run.chain_ids.assign(ids.data(), ids.data() + o.chains);
  run.warmup = static_cast<std::uint64_t>(o.warmup);
  run.thinning = {o.thin, 1, 1};
  run.save_warmup = o.save_warmup != 0;
  return run;
}

Options options_of(const char* function, const ribbit_option* given, std::int64_t count) {
  needs(count == 0 || (given != nullptr && count > 0), function, "options, got NULL");
  Options options;
  for (std::int64_t i = 0; i < count; ++i) {
    const ribbit_option& one = given[i];
    needs(one.name != nullptr, function, "a name of each option, got NULL");
    OptionValue value;
    if (one.text != nullptr) {
      needs(*one.text != '\0', function, "text or numbers of each option");
      value.text = one.text;
    } else {
      needs(one.numbers != nullptr && one.count >= 1, function, "text or numbers of each option");
      value.numbers.assign(one.numbers, one.numbers + one.count);
      value.array = one.count > 1;
    }
    for (const auto& [name, before] : options) {
      if (name == one.name) refuse(function, "each option once, got " + name + " twice");
    }
    options.emplace_back(one.name, std::move(value));
  }
  return options;
}

// Whether saved chains are on a posterior with its last layer integrated out.
bool says_integrated(std::string_view bytes) {
  const FieldReader reader(bytes);
  std::string parts;
  reader("target", parts);
  const std::string entry = std::string(kIntegrated) + "=" + kLastLayer + "\n";
  return ("\n" + parts).find("\n" + entry) != std::string::npos;
}

// Chains of one dtype with the draws of the last call.
template <class T>
struct Held {
  const Target<T>& target;
  std::unique_ptr<Chains<T>> chains;
  bool started;
  Block<T> block;

  Held(const Target<T>& of, std::unique_ptr<Chains<T>> made, bool has_started)
      : target(of),
        chains(std::move(made)),
        started(has_started),
        block(chains->columns(), chains->chains(), capacity(*chains), chains->full_dim()) {}
  // Transitions of warmup are draws if they have positions.
  std::int64_t draws() const { return block.positions ? block.count : 0; }

  // Returns how many draws of each chain a call makes at most. Their positions stay in the cache
  // until they are copied to the caller.
  static std::int64_t capacity(const Chains<T>& of) {
    constexpr std::int64_t kBytes = 1 << 22, kMost = 4096;
    const std::int64_t each = of.chains() * of.full_dim() * static_cast<std::int64_t>(sizeof(T));
    return std::clamp<std::int64_t>(kBytes / each, 1, kMost);
  }
};

}  // namespace
}  // namespace ribbit::capi

struct ribbit_chains {
  template <class T>
  using Of = std::unique_ptr<ribbit::capi::Held<T>>;
  std::variant<Of<float>, Of<double>> of;
};

namespace ribbit::capi {
namespace {

// Runs body(held) with the chains of their dtype.
template <class Chains, class Body>
int on_chains(const char* function, Chains* chains, const Body& body) {
  return guarded(function, [&]() -> int {
    needs(chains != nullptr, function, "chains, got NULL");
    return std::visit([&](const auto& of) { return body(*of); }, chains->of);
  });
}

template <class T>
void check_started(const char* function, const Held<T>& held) {
  needs(held.started, function, "chains that ribbit_chains_start() has started");
}

int create(const char* function, const ribbit_target* target, const char* kernel,
           const ribbit_option* options, std::int64_t count, const ribbit_run_options* run,
           const std::optional<std::string_view>& bytes, ribbit_chains** out) {
  return guarded(function, [&]() -> int {
    needs(kernel != nullptr && out != nullptr, function, "a kernel and a place for the handle");
    return on_target(function, target, [&](const auto& of, auto zero) -> int {
      using T = decltype(zero);
      const Options given = options_of(function, options, count);
      const bool integrated =
          bytes ? says_integrated(*bytes) : of.integrates() && leaves_motion(kernel, given);
      needs(!integrated || of.integrates(), function,
            "chains of this target, got chains of a posterior whose last layer is integrated out");
      const Kernel resolved = resolve(kernel, given, of.facts(integrated));
      auto made = of.chains(resolved, run_of(function, run), bytes ? &*bytes : nullptr, integrated);
      *out = new ribbit_chains{std::make_unique<Held<T>>(of, std::move(made), bytes.has_value())};
      return RIBBIT_OK;
    });
  });
}

}  // namespace
}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_kernel_option(int64_t index, ribbit_option_info* out) {
  constexpr const char* kName = "ribbit_kernel_option";
  return guarded(kName, [&]() -> int {
    const auto& table = option_table();
    needs(out != nullptr && index >= 0 && index < static_cast<int64_t>(table.size()), kName,
          "an index within the table, and a place for the row");
    const OptionInfo& row = table[static_cast<std::size_t>(index)];
    *out = {row.kernel, row.name, row.fallback, row.must_be, row.doc};
    return RIBBIT_OK;
  });
}

int ribbit_run_options_init(ribbit_run_options* options, size_t size) {
  return init_options("ribbit_run_options_init", options, size, default_options());
}

int ribbit_chains_create(const ribbit_target* target, const char* kernel,
                         const ribbit_option* options, int64_t num_options,
                         const ribbit_run_options* run, ribbit_chains** out) {
  return create("ribbit_chains_create", target, kernel, options, num_options, run, std::nullopt,
                out);
}

int ribbit_chains_load(const ribbit_target* target, const char* kernel,
                       const ribbit_option* options, int64_t num_options,
                       const ribbit_run_options* run, const void* bytes, size_t size,
                       ribbit_chains** out) {
  const std::string_view given(static_cast<const char*>(bytes), bytes == nullptr ? 0 : size);
  return create("ribbit_chains_load", target, kernel, options, num_options, run, given, out);
}

void ribbit_chains_free(ribbit_chains* chains) {
  delete chains;
}

int ribbit_chains_start(ribbit_chains* chains, const void* position,
                        const ribbit_interrupt* interrupt) {
  constexpr const char* kName = "ribbit_chains_start";
  return on_chains(kName, chains, [&](auto& held) -> int {
    using T = std::decay_t<decltype(*held.block.position())>;
    needs(!held.started, kName, "new chains, got chains that have started");
    std::vector<T> own;
    if (position == nullptr) {
      const Run& run = held.chains->run();
      own.resize(run.chain_ids.size() * static_cast<std::size_t>(held.chains->full_dim()));
      held.target.start(run.seed, run.chain_ids.data(), held.chains->chains(), own.data());
    }
    InterruptPoll poll(interrupt);
    if (poll.stop()) return kInterrupted;
    const T* from = position == nullptr ? own.data() : static_cast<const T*>(position);
    held.started = held.chains->start(from, &poll);
    return held.started ? int{RIBBIT_OK} : kInterrupted;
  });
}

int ribbit_chains_advance(ribbit_chains* chains, int64_t most, double seconds, void* draws,
                          int64_t stride, int64_t* count, const ribbit_interrupt* interrupt) {
  constexpr const char* kName = "ribbit_chains_advance";
  return on_chains(kName, chains, [&](auto& held) -> int {
    using T = std::decay_t<decltype(*held.block.position())>;
    needs(most >= 1 && count != nullptr, kName, "most >= 1 and a place for the count");
    needs(seconds >= 0.0, kName, "seconds >= 0");
    needs(draws == nullptr || stride >= most, kName, "stride >= most");
    check_started(kName, held);
    *count = 0;
    InterruptPoll poll(interrupt);
    // A short call may end before the core asks.
    if (poll.stop()) return kInterrupted;
    if (!held.chains->advance(held.block, most, seconds, &poll)) return kInterrupted;
    const std::int64_t dim = held.chains->full_dim(), rows = held.draws();
    const std::int64_t all = draws == nullptr ? 0 : held.chains->chains();
    for (std::int64_t c = 0; c < all; ++c) {
      std::copy_n(held.block.position() + c * held.block.capacity * dim, rows * dim,
                  static_cast<T*>(draws) + c * stride * dim);
    }
    *count = rows;
    return RIBBIT_OK;
  });
}

int ribbit_chains_statistic(const ribbit_chains* chains, const char* name, void* out,
                            int64_t stride) {
  constexpr const char* kName = "ribbit_chains_statistic";
  return on_chains(kName, chains, [&](auto& held) -> int {
    needs(name != nullptr && out != nullptr, kName, "a name and a place for the numbers");
    needs(stride >= held.draws(), kName, "stride >= count");
    const auto& columns = held.block.columns;
    const auto found = std::find_if(columns.begin(), columns.end(), [name](const Statistic& one) {
      return std::strcmp(one.name, name) == 0;
    });
    if (found == columns.end())
      refuse(kName, "a statistic of the chains, got '" + std::string(name) + "'");
    const std::int64_t width = found->dtype == '?' ? 1 : 8;
    const auto* from = static_cast<const char*>(
        held.block.values(static_cast<std::size_t>(found - columns.begin())));
    for (std::int64_t c = 0; c < held.chains->chains(); ++c) {
      std::copy_n(from + c * held.block.capacity * width, held.draws() * width,
                  static_cast<char*>(out) + c * stride * width);
    }
    return RIBBIT_OK;
  });
}

int ribbit_chains_statistic_info(const ribbit_chains* chains, int64_t index,
                                 ribbit_statistic_info* out) {
  constexpr const char* kName = "ribbit_chains_statistic_info";
  return on_chains(kName, chains, [&](auto& held) -> int {
    const auto& columns = held.block.columns;
    needs(out != nullptr && index >= 0 && index < static_cast<int64_t>(columns.size()), kName,
          "an index within the table, and a place for the row");
    const Statistic& one = columns[static_cast<std::size_t>(index)];
    *out = {one.name, one.dtype};
    return RIBBIT_OK;
  });
}

int ribbit_chains_position(const ribbit_chains* chains, void* out) {
  constexpr const char* kName = "ribbit_chains_position";
  return on_chains(kName, chains, [&](auto& held) -> int {
    using T = std::decay_t<decltype(*held.block.position())>;
    needs(out != nullptr, kName, "a place for the positions");
    check_started(kName, held);
    return held.chains->position(static_cast<T*>(out), nullptr) ? int{RIBBIT_OK} : kInterrupted;
  });
}

int ribbit_chains_summary(const ribbit_chains* chains, ribbit_summary* out) {
  constexpr const char* kName = "ribbit_chains_summary";
  return on_chains(kName, chains, [&](auto& held) -> int {
    needs(out != nullptr && out->size >= sizeof out->size && out->size < 65536, kName,
          "a struct whose size is set");
    const Summary found = held.chains->summary();
    const auto mean = [](const std::vector<double>& values) {
      return std::accumulate(values.begin(), values.end(), 0.0) /
             static_cast<double>(std::max<std::size_t>(values.size(), 1));
    };
    const auto sum = [](const std::vector<std::int64_t>& values) {
      return std::accumulate(values.begin(), values.end(), std::int64_t{0});
    };
    ribbit_summary summary{};
    summary.size = out->size;
    summary.chains = held.chains->chains();
    summary.step = static_cast<std::int64_t>(held.chains->step());
    summary.warming_up = held.chains->warming_up() ? 1 : 0;
    summary.divergences = sum(found.divergences);
    summary.gradients = sum(found.gradients);
    summary.acceptance_rate = mean(found.acceptance_rate);
    summary.step_size = mean(found.step_size);
    // A program of another version has a struct of another size.
    std::memcpy(out, &summary, std::min(sizeof summary, out->size));
    return RIBBIT_OK;
  });
}

int ribbit_chains_save(const ribbit_chains* chains, void* bytes, size_t* size) {
  constexpr const char* kName = "ribbit_chains_save";
  return on_chains(kName, chains, [&](auto& held) -> int {
    needs(size != nullptr, kName, "a place for the number of bytes");
    check_started(kName, held);
    const std::string saved = held.chains->save();
    if (bytes != nullptr && *size < saved.size()) {
      refuse(kName, "a capacity of " + std::to_string(saved.size()) + " bytes or more, got " +
                        std::to_string(*size));
    }
    if (bytes != nullptr) std::memcpy(bytes, saved.data(), saved.size());
    *size = saved.size();
    return RIBBIT_OK;
  });
}
