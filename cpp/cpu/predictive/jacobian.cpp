#include "cpu/predictive/jacobian.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "cpu/system/memory.h"

namespace ribbit::cpu {
namespace {

// A delta of one for one output of one row: the gradient of the panel is then that output's, since
// all other rows add zeros. A pass per row and output costs kPanel times its share of the
// arithmetic; the products of Jacobians that follow cost dim / kPanel times as much again.
template <class T>
struct OneOutput final : PanelLoss<T> {
  std::int64_t outputs, output, lane;
  T* f;  // (outputs,) of the row

  void operator()(std::int64_t, const T* values, T* delta) override {
    std::fill_n(delta, outputs * kPanel, T(0));
    delta[output * kPanel + lane] = T(1);
    for (std::int64_t k = 0; k < outputs; ++k) f[k] = values[k * kPanel + lane];
  }
};

}  // namespace

template <class T>
bool jacobian(const Network& network, const T* theta, const Rows<T>& x, std::int64_t rows, T* f,
              T* jacobian, Poll* poll) {
  const std::unique_ptr<const NetworkPass<T>> pass = make_network_pass<T>(network, false);
  const std::int64_t outputs = network.output_size(), dim = network.dim();
  const double flops = 6.0 * kPanel * static_cast<double>(rows * outputs) *
                       static_cast<double>(std::max(dim, network.multiplications()));
  Cancel cancel(poll);
  Crew crew(static_cast<int>(std::min<std::int64_t>(threads_for(flops), rows)));
  if (pass->large_spaces()) {
    const std::int64_t each = pass->space_bytes(PassUse::kGradient);
    require_memory(each * crew.size(), workspaces_named(crew.size(), each) + " for 32 rows");
  }
  std::vector<std::unique_ptr<PassSpace>> spaces;
  for (int t = 0; t < crew.size(); ++t) spaces.push_back(pass->space(PassUse::kGradient));
  BatchRows<T> batch;
  pass->take_rows(x, nullptr, rows, batch);
  Buffer<T> packed;
  packed.resize(pass->packed_size());
  pass->pack(theta, true, Part{}, packed.data());
  std::atomic<std::int64_t> next{0};
  crew.run(
      [&](int thread) {
        PassSpace& space = *spaces[static_cast<std::size_t>(thread)];
        OneOutput<T> loss;
        loss.outputs = outputs;
        for (;;) {
          const std::int64_t row = next.fetch_add(1, std::memory_order_relaxed);
          if (row >= rows) return;
          const std::int64_t panel = row / kPanel;
          loss.lane = row % kPanel;
          loss.f = f + row * outputs;
          for (loss.output = 0; loss.output < outputs; ++loss.output) {
            if (cancel.check()) return;
            T* grad = jacobian + (row * outputs + loss.output) * dim;
            std::fill_n(grad, dim, T(0));
            pass->run_shard({batch, panel, panel + 1, theta, packed.data(), nullptr, grad}, space,
                            loss, cancel);
          }
        }
      },
      true, &cancel);
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T) \
  template bool jacobian(const Network&, const T*, const Rows<T>&, std::int64_t, T*, T*, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
