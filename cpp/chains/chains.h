#pragma once
// Chains of a sampler on a density: the only owner of their positions, warmup and counters.

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chains/block.h"
#include "chains/kernel.h"
#include "chains/thinning.h"
#include "cpu/density/log_density.h"
#include "cpu/density/pointer_density.h"

namespace ribbit {

inline constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 40;  // a counter holds 40 bits

// The run of chains: how they start and which steps it keeps.
struct Run {
  std::uint64_t seed = 0;
  std::vector<std::uint32_t> chain_ids;
  std::uint64_t warmup = 0;
  Thinning thinning;
  bool save_warmup = false;
};

// The parts of a target (data, model, prior, ...) as text, to tell targets apart.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

// A C function returned `code` instead of 0.
struct FunctionFailed : std::runtime_error {
  explicit FunctionFailed(int number)
      : std::runtime_error("expected your log density to return 0, got " + std::to_string(number)),
        code(number) {}
  int code;
};
// Throws FunctionFailed if a C function failed. Returns false when cancelled.
inline bool succeeded(const cpu::CallEnd& end) {
  if (end.code != 0) throw FunctionFailed(end.code);
  return !end.cancelled;
}

// A summary (chains,) of the transitions since the object was created.
struct Summary {
  std::vector<double> acceptance_rate;               // mean
  std::vector<std::int64_t> divergences, gradients;  // sums
  std::vector<double> step_size;                     // of the next transition
};

// Wrong arguments and bytes raise std::invalid_argument. FunctionFailed and std::bad_alloc are the
// other errors. After an error the chains are as before the call.
template <class T>
class Chains {
 public:
  virtual ~Chains() = default;

  // Evaluates position (chains, full_dim()) and finds the first step sizes. The weights of an
  // integrated layer are not read. False when cancelled.
  virtual bool start(const T* position, cpu::Poll* poll) = 0;
  // Makes transitions until the block has `most` rows or is full, warmup ends, or the time is over.
  // A row is a draw or a transition of warmup. False when cancelled: then nothing has changed.
  virtual bool advance(Block<T>& block, std::int64_t most, double seconds, cpu::Poll* poll) = 0;

  virtual std::string save() const = 0;
  virtual Summary summary() const = 0;
  // Writes the current draws (chains, full_dim()). False when cancelled.
  virtual bool position(T* out, cpu::Poll* poll) const = 0;
  virtual std::uint64_t step() const = 0;
  virtual std::int64_t full_dim() const = 0;  // of a draw, with an integrated layer
  virtual const std::vector<Statistic>& columns() const = 0;

  const Run& run() const { return run_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  std::int64_t chains() const { return static_cast<std::int64_t>(run_.chain_ids.size()); }
  bool warming_up() const { return step() < run_.warmup; }

 protected:
  Chains(Run run, Fingerprint fingerprint);  // checks the run
  Run run_;
  Fingerprint fingerprint_;
};

// Creates chains on a density D: LogDensity<T>, or PointerDensity with T = double. The density must
// outlive the chains.
template <class T, class D>
std::unique_ptr<Chains<T>> make_chains(const D& density, const Kernel& kernel, Run run,
                                       Fingerprint fingerprint);
// Creates chains from the bytes of save(). The bytes give the seed, the ids, the warmup and its
// results. The kernel gives the options, and the run gives the thinning. Evaluates the density
// unless fingerprints show that the bytes are of this target.
template <class T, class D>
std::unique_ptr<Chains<T>> load_chains(const D& density, const Kernel& kernel, Run run,
                                       Fingerprint fingerprint, std::string_view bytes);

}  // namespace ribbit
