// The bytes of chains. Loading wrong bytes neither crashes, hangs, nor allocates much more than the
// bytes. Recorded states load and continue to recorded draws.
//
// `check_chain_bytes record` writes new states to cpp/tests/states. Record a state again only when
// a change of its draws is intended.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <stdexcept>

#include "chain_runs.h"
#include "chains/fields.h"
#include "cpu/system/dispatch.h"
#include "cpu/system/threads.h"

using namespace ribbit;

namespace {

std::size_t allocated = 0, largest = 0;  // bytes since the last reset, and of one allocation

}  // namespace

// GCC takes an inlined free() for the wrong partner of operator new.
#define NOT_INLINED __attribute__((noinline))

NOT_INLINED void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  allocated += size;
  largest = std::max(largest, size);
  return std::malloc(size > 0 ? size : 1);
}
NOT_INLINED void* operator new(std::size_t size) {
  void* memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
NOT_INLINED void operator delete(void* memory) noexcept {
  std::free(memory);
}
NOT_INLINED void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace {

// Kernels with short trajectories. 60 transitions of warmup have one window, from 10 to 54.
Kernel kernel_of(const std::string& name) {
  if (name == "nuts") {
    Nuts nuts;
    nuts.mass = MassRule::kAdapt;
    nuts.max_tree_depth = 3;
    return nuts;
  }
  Hmc hmc;
  hmc.trajectory_length = 0.2;
  hmc.step_size_jitter = 0.1;
  hmc.mass = MassRule::kAdapt;
  hmc.max_num_leapfrog_steps = hmc.max_mean_leapfrog_steps = 8;
  return hmc;
}
constexpr std::uint64_t kWarmup = 60;
constexpr std::int64_t kHidden = 4, kChains = 2;

template <class T>
std::string state_at(const Regression<T>& problem, const Kernel& kernel, std::int64_t step) {
  const auto chains =
      make_chains<T>(problem.density, kernel, run_of(kChains, kWarmup), {{"data", "a"}});
  CHECK(chains->start(numbers<T>(kChains * dim_of(kHidden), 0.4).data(), nullptr));
  Block<T> block(chains->columns(), kChains, 64, chains->full_dim());
  while (static_cast<std::int64_t>(chains->step()) < step) {
    const auto made = static_cast<std::int64_t>(chains->step());
    CHECK(chains->advance(block, std::min<std::int64_t>(step - made, 64), 1e9, nullptr));
  }
  return chains->save();
}

// ---- wrong bytes --------------------------------------------------------------------------------

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t size) {
  return static_cast<std::size_t>(random() % size);
}

// Where the fields of right bytes begin.
std::vector<std::size_t> fields_of(const std::string& bytes) {
  std::vector<std::size_t> out;
  for (std::size_t at = sizeof(FieldsHead); at < bytes.size();) {
    FieldHead head;
    std::memcpy(&head, bytes.data() + at, sizeof head);
    out.push_back(at);
    const std::size_t width = head.dtype == 'S'                        ? 1
                              : head.dtype == 'f' || head.dtype == 'I' ? 4
                                                                       : 8;
    at += sizeof head + (head.shape[0] * head.shape[1] * width + 7) / 8 * 8;
  }
  return out;
}

template <class V>
void write(std::string& bytes, std::size_t at, const V& value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(bytes.data() + at, &value, sizeof value);
}

void flip_bits(std::string& bytes, Random& random) {
  for (std::size_t i = 1 + below(random, 8); i > 0; --i) {
    char& byte = bytes[below(random, bytes.size())];
    byte = static_cast<char>(byte ^ (1 << below(random, 8)));
  }
}

constexpr std::uint64_t kCounts[] = {0,
                                     1,
                                     2,
                                     3,
                                     21,
                                     42,
                                     std::uint64_t{1} << 31,
                                     std::uint64_t{1} << 32,
                                     std::uint64_t{1} << 39,
                                     (std::uint64_t{1} << 40) - 1,
                                     std::uint64_t{1} << 61,
                                     std::uint64_t{1} << 63,
                                     ~std::uint64_t{0}};

void write_count(std::string& bytes, Random& random) {
  const std::vector<std::size_t> fields = fields_of(bytes);
  const std::uint64_t count = kCounts[below(random, std::size(kCounts))];
  if (below(random, 8) == 0) {
    write(bytes, offsetof(FieldsHead, count), static_cast<std::uint32_t>(count));
    return;
  }
  const std::size_t at = fields[below(random, fields.size())];
  write(bytes, at + offsetof(FieldHead, shape) + 8 * below(random, 2), count);
}

// Swaps the names, the heads or the places of two fields.
void swap_fields(std::string& bytes, Random& random) {
  std::vector<std::size_t> fields = fields_of(bytes);
  const std::size_t i = below(random, fields.size()), j = below(random, fields.size());
  if (i == j) return;
  const std::size_t what = below(random, 3);
  if (what < 2) {
    const std::size_t size = what == 0 ? sizeof FieldHead::name : sizeof(FieldHead);
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(fields[i]),
                     bytes.begin() + static_cast<std::ptrdiff_t>(fields[i] + size),
                     bytes.begin() + static_cast<std::ptrdiff_t>(fields[j]));
    return;
  }
  const std::size_t a = fields[std::min(i, j)], b = fields[std::max(i, j)];
  fields.push_back(bytes.size());
  const std::size_t a_end = fields[std::min(i, j) + 1], b_end = fields[std::max(i, j) + 1];
  bytes = bytes.substr(0, a) + bytes.substr(b, b_end - b) + bytes.substr(a_end, b - a_end) +
          bytes.substr(a, a_end - a) + bytes.substr(b_end);
}

// Removes a field, or repeats it.
void change_number(std::string& bytes, Random& random) {
  std::vector<std::size_t> fields = fields_of(bytes);
  const std::size_t i = below(random, fields.size());
  fields.push_back(bytes.size());
  const bool repeats = below(random, 2) == 0;
  const std::string field = bytes.substr(fields[i], fields[i + 1] - fields[i]);
  const auto count = static_cast<std::uint32_t>(fields.size() - 1);
  bytes = bytes.substr(0, fields[i]) + (repeats ? field + field : std::string()) +
          bytes.substr(fields[i + 1]);
  write(bytes, offsetof(FieldsHead, count), repeats ? count + 1 : count - 1);
}

// Writes an extreme number over the data of a field.
void write_number(std::string& bytes, Random& random) {
  constexpr double kReals[] = {0.0,
                               -1.0,
                               1e308,
                               -1e308,
                               1e-320,
                               std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()};
  constexpr float kSingles[] = {0.0F, -1.0F, 3e38F, 1e-44F,
                                std::numeric_limits<float>::quiet_NaN()};
  const std::vector<std::size_t> fields = fields_of(bytes);
  const std::size_t i = below(random, fields.size()), first = fields[i] + sizeof(FieldHead);
  const std::size_t end = i + 1 < fields.size() ? fields[i + 1] : bytes.size();
  const std::size_t at = first + 4 * below(random, (end - first) / 4);
  switch (below(random, 3)) {
    case 0:
      write(bytes, at, kReals[below(random, std::size(kReals))]);
      break;
    case 1:
      write(bytes, at, kSingles[below(random, std::size(kSingles))]);
      break;
    default:
      write(bytes, at, kCounts[below(random, std::size(kCounts))]);
  }
}

std::string mutated(const std::string& bytes, Random& random) {
  std::string out = bytes;
  switch (below(random, 7)) {
    case 0:
      flip_bits(out, random);
      break;
    case 1:
      out.resize(below(random, out.size()));
      break;
    case 2:
      write_count(out, random);
      break;
    case 3:
      swap_fields(out, random);
      break;
    case 4:
      change_number(out, random);
      break;
    case 5:
      out.append(1 + below(random, 100), static_cast<char>(random()));
      break;
    default:
      write_number(out, random);
  }
  if (below(random, 4) == 0 && !out.empty()) flip_bits(out, random);
  return out;
}

// Loads wrong bytes. Chains that load can advance, and their own bytes load again.
template <class T>
void check_wrong_bytes(const std::string& name) {
  const Regression<T> problem(20, kHidden);
  const Kernel kernel = kernel_of(name);
  const Run run = run_of(kChains, kWarmup, {3, 2, 1});
  const Fingerprint target{{"data", "a"}};
  // In the middle of the window, at its end, and after warmup.
  std::vector<std::string> states;
  for (const std::int64_t step : {30, 53, 70}) states.push_back(state_at(problem, kernel, step));
  constexpr int kTrials = 12'000 / kReduction;
  int loaded = 0, refused = 0, ended = 0;
  Random random(20'240'601);
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::string bytes = mutated(states[static_cast<std::size_t>(trial) % 3], random);
    std::unique_ptr<Chains<T>> chains;
    allocated = largest = 0;
    try {
      chains = load_chains<T>(problem.density, kernel, run, target, bytes);
    } catch (const std::invalid_argument&) {
      ++refused;
    }
    // Each field is copied a few times, and its map costs a few hundred bytes.
    constexpr std::size_t kCopies = 8, kMore = 16'384;
    CHECK(allocated <= kCopies * bytes.size() + kMore && largest <= bytes.size() + kMore);
    if (chains == nullptr) continue;
    ++loaded;
    CHECK(chains->chains() == kChains);
    Block<T> block(chains->columns(), kChains, 4, chains->full_dim());
    try {
      CHECK(chains->advance(block, 2, 1e9, nullptr));
      const std::string again = chains->save();
      CHECK(load_chains<T>(problem.density, kernel, run, target, again)->save() == again);
    } catch (const std::invalid_argument&) {
      // A step count near its limit ends the run, and extreme numbers may overflow in a transition.
      ++ended;
    }
  }
  std::printf("%s: %d loaded, %d of them ended, %d refused\n", name.c_str(), loaded, ended,
              refused);
  // Both outcomes must occur: most changes are errors, but some change a position by one bit.
  CHECK(loaded > kTrials / 50 && refused > kTrials / 4 && ended < kTrials / 100);
}

// Every truncation is refused, also one at the end of a field.
void check_truncations() {
  const Regression<float> problem(20, kHidden);
  const Kernel kernel = kernel_of("hmc");
  const std::string bytes = state_at(problem, kernel, 30);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    bool refused = false;
    try {
      load_chains<float>(problem.density, kernel, Run{}, {}, bytes.substr(0, size));
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

// Calls change(head) for the fields that it accepts, one at a time, and expects a refusal of each.
template <class Change>
int refusals(const std::string& right, const Change& change) {
  const Regression<float> problem(20, kHidden);
  int refused = 0;
  for (const std::size_t at : fields_of(right)) {
    std::string bytes = right;
    FieldHead head;
    std::memcpy(&head, bytes.data() + at, sizeof head);
    if (!change(head)) continue;
    write(bytes, at, head);
    try {
      load_chains<float>(problem.density, kernel_of("hmc"), Run{}, {}, bytes);
      std::printf("loaded with other axes: %s\n", head.name);
      CHECK(false);
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  return refused;
}

// Each field of chains has a row for each chain, and no other shape loads.
void check_axes() {
  const Regression<float> problem(20, kHidden);
  // In the window, and after it with a mass for each chain.
  for (const std::int64_t step : {30, 55}) {
    const std::string bytes = state_at(problem, kernel_of("hmc"), step);
    const bool window = step == 30;
    // chains, position, grad, terms, divergences, step_size, 7 sums of dual averaging, and the mean
    // and squares of the window or the mass.
    const int rows = window ? 15 : 14;
    const auto flat = [](FieldHead& head) {
      if (head.axes != 2) return false;
      head.axes = 1;
      head.shape[0] *= head.shape[1];
      head.shape[1] = 1;
      return true;
    };
    const auto other_rows = [](std::uint64_t chains) {
      return [chains](FieldHead& head) {
        const std::uint64_t size = head.shape[0] * head.shape[1];
        if (head.axes != 2 || size % chains != 0) return false;
        head.shape[0] = chains;
        head.shape[1] = size / chains;
        return true;
      };
    };
    CHECK(refusals(bytes, flat) == rows);
    CHECK(refusals(bytes, other_rows(1)) == rows);
    CHECK(refusals(bytes, other_rows(4)) > 0);
  }
}

// A mass that all chains share has 1 axis. One chain writes its own mass with 2 axes.
void check_masses() {
  const Regression<float> problem(20, kHidden);
  Hmc given = fixed_hmc();
  for (const double number : numbers<double>(dim_of(kHidden), 0.5)) {
    given.inverse_mass.push_back(number + 1.0);
  }
  for (const std::int64_t count : {1, 2}) {
    for (const bool own : {false, true}) {
      const Kernel kernel = own ? kernel_of("hmc") : Kernel(given);
      const auto chains = make_chains<float>(problem.density, kernel, run_of(count, kWarmup), {});
      CHECK(chains->start(numbers<float>(count * dim_of(kHidden), 0.4).data(), nullptr));
      Block<float> block(chains->columns(), count, 64, chains->full_dim());
      CHECK(chains->advance(block, 64, 1e9, nullptr));
      const std::string bytes = chains->save();
      FieldHead mass{};
      for (const std::size_t at : fields_of(bytes)) {
        FieldHead head;
        std::memcpy(&head, bytes.data() + at, sizeof head);
        if (std::strcmp(head.name, "inverse_mass") == 0) mass = head;
      }
      const auto dim = static_cast<std::uint64_t>(dim_of(kHidden));
      CHECK(mass.axes == (own ? 2 : 1));
      CHECK(mass.shape[0] == (own ? static_cast<std::uint64_t>(count) : dim));
      CHECK(load_chains<float>(problem.density, kernel, Run{}, {}, bytes)->save() == bytes);
    }
  }
}

// ---- recorded states ----------------------------------------------------------------------------

const std::string kFolder = RIBBIT_TEST_STATES;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// FNV-1a.
template <class T>
std::uint64_t checksum(const std::vector<T>& values) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return hash;
}

// Continues a state through the rest of warmup and 10 draws.
template <class T>
std::uint64_t continued(const std::string& name, const std::string& bytes) {
  const Regression<T> problem(20, kHidden);
  Run run;
  run.save_warmup = true;
  const auto chains = load_chains<T>(problem.density, kernel_of(name), run, {{"data", "a"}}, bytes);
  Block<T> block(chains->columns(), kChains, 64, chains->full_dim());
  std::vector<T> draws;
  for (const std::int64_t rows : {64, 10}) {
    CHECK(chains->advance(block, rows, 1e9, nullptr));
    for (std::int64_t c = 0; c < kChains; ++c) {
      const T* from = block.position() + c * block.capacity * chains->full_dim();
      draws.insert(draws.end(), from, from + block.count * chains->full_dim());
    }
  }
  CHECK(chains->step() == kWarmup + 10);
  return checksum(draws);
}

template <class T>
void record(const std::string& name, const std::string& file, std::ostream& sums) {
  const Regression<T> problem(20, kHidden);
  const std::string bytes = state_at(problem, kernel_of(name), 30);
  std::ofstream(kFolder + "/" + file, std::ios::binary) << bytes;
  sums << file << ' ' << std::hex << continued<T>(name, bytes) << std::dec << '\n';
}

void check_recorded() {
  std::map<std::string, std::uint64_t> sums;
  std::ifstream list(kFolder + "/checksums.txt");
  std::string file;
  std::uint64_t sum = 0;
  while (list >> file >> std::hex >> sum) sums[file] = sum;
  CHECK(sums.size() == 4);
  for (const std::string name : {"hmc", "nuts"}) {
    for (const bool single : {true, false}) {
      const std::string path = name + (single ? "_float32" : "_float64") + ".state";
      const std::string bytes = read_file(kFolder + "/" + path);
      CHECK((single ? continued<float>(name, bytes) : continued<double>(name, bytes)) ==
            sums[path]);
      // The control: a state with another position continues to other draws.
      std::string other = bytes;
      const std::size_t at = other.find("position") + sizeof(FieldHead) + (single ? 2 : 6);
      other[at] = static_cast<char>(other[at] ^ 1);
      CHECK((single ? continued<float>(name, other) : continued<double>(name, other)) !=
            sums[path]);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  cpu::set_num_threads(1);
  if (argc > 1 && std::strcmp(argv[1], "record") == 0) {
    std::ofstream sums(kFolder + "/checksums.txt");
    for (const std::string name : {"hmc", "nuts"}) {
      record<float>(name, name + "_float32.state", sums);
      record<double>(name, name + "_float64.state", sums);
    }
    return 0;
  }
  for (const std::string name : {"hmc", "nuts"}) {
    check_wrong_bytes<float>(name);
    check_wrong_bytes<double>(name);
  }
  check_truncations();
  check_axes();
  check_masses();
  // The recorded states have the rounding of the instruction set baseline of x86-64.
  if (std::strcmp(cpu::instruction_set().name, "baseline") == 0) check_recorded();
  return report("check_chain_bytes");
}
