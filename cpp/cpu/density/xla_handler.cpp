#include "cpu/density/xla_handler.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace ribbit::cpu {
// A density, and who uses it: calls share the lock, and the end of a `Published` waits for them.
struct Published::Entry {
  template <class T>
  explicit Entry(const LogDensity<T>* own) : density(own) {}
  const std::variant<const LogDensity<float>*, const LogDensity<double>*> density;
  std::shared_mutex used;
  bool alive = true;  // under the lock
};

namespace {

// Held for a look into the map alone: no target waits for the calls of another.
struct Register {
  std::shared_mutex mutex;
  std::unordered_map<std::int64_t, std::shared_ptr<Published::Entry>> entries;
};

// Never destroyed: a program may run while the process ends.
Register& all() {
  static auto* const one = new Register;
  return *one;
}

// Asked of the system for every number: a forked process does not go on with its parent's.
std::int64_t fresh_number() {
  std::random_device source;
  const std::uint64_t high = source(), low = source();
  return static_cast<std::int64_t>((high << 32 | low) >> 1);
}

// What is wrong with a call; the code that XLA is told is that of an invalid argument.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void needs(bool good, const char* what) {
  if (!good) throw Refused(std::string("[jax_log_density] expected ") + what);
}

void check_sizes(const xla::CallFrame& frame) {
  needs(frame.struct_size >= RIBBIT_XLA_SIZE(xla::CallFrame, attributes) &&
            frame.arguments.struct_size == RIBBIT_XLA_SIZE(xla::Arguments, buffers) &&
            frame.results.struct_size == RIBBIT_XLA_SIZE(xla::Arguments, buffers) &&
            frame.attributes.struct_size == RIBBIT_XLA_SIZE(xla::Attributes, values),
        "structs of XLA's foreign function interface 0.1 to 0.3, got other sizes: this jaxlib is "
        "newer than this Ribbit");
}

// Attributes are few: looked at one by one.
std::int64_t attribute(const xla::Attributes& attributes, const char* name) {
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const xla::ByteSpan& own = *attributes.names[i];
    if (own.size != std::strlen(name) || std::memcmp(own.data, name, own.size) != 0) continue;
    const auto* scalar = static_cast<const xla::Scalar*>(attributes.values[i]);
    if (attributes.types[i] != xla::kScalar || scalar->dtype != xla::kS64) break;
    std::int64_t value = 0;
    std::memcpy(&value, scalar->value, sizeof value);
    return value;
  }
  throw Refused(std::string("[jax_log_density] expected an int64 attribute ") + name);
}

const xla::Buffer& buffer(const xla::Arguments& list, std::int64_t i) {
  const xla::Buffer& one = *list.buffers[i];
  needs(list.types[i] == xla::kBuffer && one.struct_size >= RIBBIT_XLA_SIZE(xla::Buffer, dims),
        "arrays as XLA's interface 0.1 to 0.3 describes them");
  return one;
}

template <class T>
void evaluate(const LogDensity<T>& density, const xla::CallFrame& frame, double prior) {
  constexpr xla::DataType kOwn = sizeof(T) == 4 ? xla::kF32 : xla::kF64;
  needs(frame.arguments.size == 1 && (frame.results.size == 1 || frame.results.size == 2),
        "one argument and one or two results");
  const xla::Buffer& theta = buffer(frame.arguments, 0);
  needs(theta.dtype == kOwn && theta.rank >= 1 && theta.dims[theta.rank - 1] == density.dim(),
        "theta (..., dim) of the target's dtype");
  std::int64_t chains = 1;
  for (std::int64_t i = 0; i + 1 < theta.rank; ++i) chains *= theta.dims[i];
  const xla::Buffer& lp = buffer(frame.results, 0);
  needs(lp.dtype == kOwn && lp.rank == theta.rank - 1 &&
            std::equal(lp.dims, lp.dims + lp.rank, theta.dims),
        "a log density (...) of the target's dtype");
  T* grad = nullptr;
  if (frame.results.size == 2) {
    const xla::Buffer& slope = buffer(frame.results, 1);
    needs(slope.dtype == kOwn && slope.rank == theta.rank &&
              std::equal(slope.dims, slope.dims + slope.rank, theta.dims),
          "a gradient (..., dim) of the target's dtype");
    grad = static_cast<T*>(slope.data);
  }
  if (chains == 0) return;

  double few[2];
  std::vector<double> many;
  double* terms = few;
  if (chains > 1) {
    many.resize(static_cast<std::size_t>(2 * chains));
    terms = many.data();
  }
  density.evaluate(static_cast<const T*>(theta.data), chains, nullptr, 0, terms, terms + chains,
                   grad, nullptr, nullptr, prior);
  // As Python tempers them, each part on its own, in float64.
  const Temperatures& t = density.temperatures();
  const double scale = t.likelihood * t.posterior;
  for (std::int64_t c = 0; c < chains; ++c) {
    static_cast<T*>(lp.data)[c] =
        static_cast<T>(terms[c] / scale + terms[chains + c] / t.posterior);
  }
}

void call(const xla::CallFrame& frame) {
  check_sizes(frame);
  needs(frame.stage == xla::kExecute, "to be called when a program runs");
  const std::int64_t number = attribute(frame.attributes, "density");
  const double prior = attribute(frame.attributes, "prior") != 0 ? 1.0 : 0.0;
  constexpr const char* kGone =
      "a target that is alive in this process, got a program that was compiled for another one";
  std::shared_ptr<Published::Entry> entry;
  {
    Register& r = all();
    const std::shared_lock lock(r.mutex);
    const auto found = r.entries.find(number);
    needs(found != r.entries.end(), kGone);
    entry = found->second;
  }
  const std::shared_lock lock(entry->used);
  needs(entry->alive, kGone);
  std::visit([&](const auto* density) { evaluate(*density, frame, prior); }, entry->density);
}

xla::Error* error(const xla::Api* api, xla::ErrorCode code, const char* message) {
  if (api == nullptr) return nullptr;  // of an answer: XLA refuses the version that it is not given
  xla::ErrorCreateArgs args{};
  args.struct_size = RIBBIT_XLA_SIZE(xla::ErrorCreateArgs, code);
  args.message = message;
  args.code = code;
  return api->error_create(&args);
}

// XLA asks for the version when the handler is registered, and refuses one that it does not know.
// Those of this layout are answered with themselves, any other with the newest of this layout. That
// of the oldest does not say which it is: api is null.
void answer(const xla::Api* api, xla::MetadataExtension* asked) {
  needs(asked->extension.struct_size >= RIBBIT_XLA_SIZE(xla::MetadataExtension, metadata),
        "the metadata of XLA's interface 0.1 to 0.3");
  xla::Metadata& out = *asked->metadata;
  needs(out.struct_size >= RIBBIT_XLA_SIZE(xla::Metadata, traits),
        "the metadata of XLA's interface 0.1 to 0.3");
  const xla::Version oldest{0, nullptr, xla::kMajor, xla::kOldestMinor};
  const xla::Version& theirs = api != nullptr ? api->version : oldest;
  const bool known = theirs.major_version == xla::kMajor &&
                     theirs.minor_version >= xla::kOldestMinor &&
                     theirs.minor_version <= xla::kNewestMinor;
  out.version = {RIBBIT_XLA_SIZE(xla::Version, minor_version), nullptr, xla::kMajor,
                 known ? theirs.minor_version : xla::kNewestMinor};
  out.traits = 0;
}

}  // namespace

template <class T>
Published::Published(const LogDensity<T>* density) : entry_(std::make_shared<Entry>(density)) {
  Register& r = all();
  const std::unique_lock lock(r.mutex);
  do {
    number_ = fresh_number();
  } while (!r.entries.emplace(number_, entry_).second);
}
template Published::Published(const LogDensity<float>*);
template Published::Published(const LogDensity<double>*);

Published::~Published() {
  Register& r = all();
  {
    const std::unique_lock lock(r.mutex);
    r.entries.erase(number_);
  }
  const std::unique_lock lock(entry_->used);
  entry_->alive = false;
}

xla::Error* xla_log_density(xla::CallFrame* frame) noexcept {
  try {
    if (frame->extension_start != nullptr && frame->extension_start->type == xla::kMetadata) {
      answer(frame->api, reinterpret_cast<xla::MetadataExtension*>(frame->extension_start));
    } else {
      call(*frame);
    }
    return nullptr;
  } catch (const Refused& refused) {
    return error(frame->api, xla::kInvalidArgument, refused.what());
  } catch (const std::bad_alloc& none) {
    return error(frame->api, xla::kResourceExhausted, none.what());
  } catch (const std::exception& other) {
    return error(frame->api, xla::kInternal, other.what());
  }
}

}  // namespace ribbit::cpu
