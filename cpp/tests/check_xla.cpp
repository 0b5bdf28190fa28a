// The handler of XLA programs, called as XLA calls it: values, gradients and every refusal.

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/density/xla_handler.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

std::string said;
xla::ErrorCode code;

xla::Error* keep_error(xla::ErrorCreateArgs* args) {
  said = args->message;
  code = args->code;
  return reinterpret_cast<xla::Error*>(&said);
}

// One call of a program: theta (chains, dim) and both results.
template <class T>
struct Call {
  xla::Api api{sizeof(xla::Api), nullptr, {24, nullptr, 0, 3}, nullptr, keep_error};
  std::int64_t shape[2], number, prior = 1;
  std::vector<T> theta, lp, grad;
  xla::Buffer in, value, slope;
  xla::Buffer *ins[1] = {&in}, *outs[2] = {&value, &slope};
  xla::ArgumentType types[2] = {xla::kBuffer, xla::kBuffer};
  xla::Scalar scalars[2] = {{xla::kS64, &number}, {xla::kS64, &prior}};
  xla::ByteSpan spans[2] = {{"density", 7}, {"prior", 5}};
  xla::ByteSpan* names[2] = {&spans[0], &spans[1]};
  void* values[2] = {&scalars[0], &scalars[1]};
  xla::AttributeType kinds[2] = {xla::kScalar, xla::kScalar};
  xla::CallFrame frame{};

  Call(std::int64_t which, std::int64_t chains, std::int64_t dim)
      : shape{chains, dim},
        number(which),
        theta(static_cast<std::size_t>(chains * dim), T(0.3)),
        lp(static_cast<std::size_t>(chains)),
        grad(theta.size()) {
    constexpr xla::DataType kOwn = sizeof(T) == 4 ? xla::kF32 : xla::kF64;
    const std::size_t size = RIBBIT_XLA_SIZE(xla::Buffer, dims);
    in = {size, nullptr, kOwn, theta.data(), 2, shape};
    value = {size, nullptr, kOwn, lp.data(), 1, shape};
    slope = {size, nullptr, kOwn, grad.data(), 2, shape};
    const std::size_t list = RIBBIT_XLA_SIZE(xla::Arguments, buffers);
    frame.struct_size = RIBBIT_XLA_SIZE(xla::CallFrame, attributes);
    frame.api = &api;
    frame.stage = xla::kExecute;
    frame.arguments = {list, nullptr, 1, types, ins};
    frame.results = {list, nullptr, 2, types, outs};
    frame.attributes = {RIBBIT_XLA_SIZE(xla::Attributes, values), nullptr, 2, kinds, names, values};
  }
  bool run() { return xla_log_density(&frame) == nullptr; }
  bool refused(const char* why) {
    said.clear();
    return !run() && said.find(why) != std::string::npos && code == xla::kInvalidArgument;
  }
};

// A line with a bias: 2 parameters.
template <class T>
LogDensity<T> line(const std::vector<T>& x, const std::vector<T>& y) {
  std::vector<std::int64_t> table{0, 1, 1, 0, 1, 0, 0, 0, -1, -1};
  table.resize(static_cast<std::size_t>(Column::kCount), 0);
  const double rate = 0;
  return LogDensity<T>(Network::from_table(table.data(), &rate, 1),
                       {{0, 2, PriorKind::kNormal, 0.7, 0, 0}}, LikelihoodKind::kGaussian, {0.5},
                       x.data(), y.data(), static_cast<std::int64_t>(x.size()), {1.5, 0.5});
}

template <class T>
void check_calls() {
  const std::vector<T> x{T(-1), T(0.5), T(2)}, y{T(0.1), T(0.2), T(-1)};
  const LogDensity<T> density = line<T>(x, y);
  auto published = std::make_unique<Published>(&density);
  const std::int64_t dim = density.dim();
  for (const std::int64_t chains : {0, 1, 5}) {
    Call<T> call(published->number(), chains, dim);
    for (std::size_t i = 0; i < call.theta.size(); ++i) call.theta[i] = T(0.1) * T(i);
    CHECK(call.run());
    for (std::int64_t c = 0; c < chains; ++c) {
      double ll = 0, lp = 0;
      std::vector<T> grad(static_cast<std::size_t>(dim));
      const T* at = call.theta.data() + c * dim;
      CHECK(density.evaluate(at, 1, nullptr, 0, &ll, &lp, grad.data(), nullptr));
      CHECK(call.lp[static_cast<std::size_t>(c)] == static_cast<T>(ll / (0.5 * 1.5) + lp / 1.5));
      CHECK(std::memcmp(grad.data(), call.grad.data() + c * dim, grad.size() * sizeof(T)) == 0);
      Call<T> alone(published->number(), 1, dim);  // the likelihood, without a gradient
      alone.prior = 0;
      alone.frame.results.size = 1;
      std::copy(at, at + dim, alone.theta.begin());
      CHECK(alone.run());
      CHECK(alone.lp[0] == static_cast<T>(ll / (0.5 * 1.5)));
    }
  }

  const std::int64_t number = published->number();
  const auto refused = [&](const char* why, const auto& spoil) {
    Call<T> call(number, 2, dim);
    spoil(call);
    CHECK(call.refused(why));
  };
  refused("theta", [](Call<T>& c) { c.shape[1] += 1; });
  refused("theta", [](Call<T>& c) { c.in.dtype = xla::kS64; });
  refused("theta", [](Call<T>& c) { c.in.rank = 0; });
  refused("gradient", [](Call<T>& c) { c.slope.rank = 1; });
  refused("log density", [](Call<T>& c) { c.value.rank = 2; });
  refused("results", [](Call<T>& c) { c.frame.results.size = 0; });
  refused("attribute density", [](Call<T>& c) { c.spans[0].data = "densita"; });
  refused("attribute prior", [](Call<T>& c) { c.scalars[1].dtype = xla::kF32; });
  refused("sizes", [](Call<T>& c) { c.frame.struct_size -= 1; });
  refused("sizes", [](Call<T>& c) { c.frame.arguments.struct_size += 8; });
  refused("sizes", [](Call<T>& c) { c.frame.attributes.struct_size += 8; });
  refused("arrays as", [](Call<T>& c) { c.in.struct_size -= 8; });
  refused("runs", [](Call<T>& c) { c.frame.stage = static_cast<xla::Stage>(0); });
  refused("alive", [](Call<T>& c) { c.number += 1; });
  published.reset();
  refused("alive", [](Call<T>&) {});
}

// A target may come and go while a long call of another one runs.
void check_others_are_not_waited_for() {
  const std::vector<float> x(20'000, 0.5f), y(20'000, 0.1f);
  const LogDensity<float> large = line<float>(x, y), tiny = line<float>({0.5f}, {0.1f});
  const Published long_call(&large);
  std::atomic<int> stage{0};
  std::thread caller([&] {
    Call<float> call(long_call.number(), 2'000, large.dim());
    stage = 1;
    CHECK(call.run());
    stage = 2;
  });
  while (stage == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (int i = 0; i < 3; ++i) const Published other(&tiny);
  CHECK(stage == 1);
  caller.join();
}

void check_versions() {
  for (const int minor : {0, 1, 2, 3, 4, 9}) {
    Call<float> call(0, 1, 2);
    call.api.version.minor_version = minor;
    xla::Metadata metadata{RIBBIT_XLA_SIZE(xla::Metadata, traits), {}, 7};
    xla::MetadataExtension asked{
        {RIBBIT_XLA_SIZE(xla::MetadataExtension, metadata), xla::kMetadata, nullptr}, &metadata};
    call.frame.extension_start = &asked.extension;
    CHECK(call.run());
    CHECK(metadata.version.major_version == 0 && metadata.traits == 0);
    CHECK(metadata.version.minor_version == (minor >= 1 && minor <= 3 ? minor : 3));
    metadata.struct_size -= 8;
    CHECK(call.refused("metadata"));
    metadata.struct_size += 8;
    call.frame.api = nullptr;
    CHECK(call.run() && metadata.version.minor_version == 1);
  }
}

}  // namespace

int main() {
  check_calls<float>();
  check_calls<double>();
  check_others_are_not_waited_for();
  check_versions();
  return report("check_xla");
}
