#include "cpu/forward.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "cpu/block.h"
#include "cpu/panels.h"

namespace ribbit::cpu {

template <class T>
bool forward(const Network& network, const T* theta, std::int64_t theta_stride,
             std::int64_t samples, const T* x, std::int64_t rows, T* out, Poll* poll) {
  const KernelTable<T>& k = kernels<T>();
  const Plan plan(network);
  const std::int64_t group = plan.group_panels(sizeof(T));
  const std::int64_t outputs = network.output_size();
  Panels<T> panels;
  pack_rows(x, network.input_size(), nullptr, rows, panels);
  const std::int64_t count = panel_count(rows);
  // A piece of work is a sample and a run of panels, long enough to pay for packing the weights.
  constexpr std::int64_t run = 64;
  const std::int64_t runs = (count + run - 1) / run;
  std::atomic<std::int64_t> next{0};
  Cancel cancel(poll);
  const double flops = 2.0 * static_cast<double>(samples * rows * network.dim());
  Crew crew(static_cast<int>(std::min<std::int64_t>(threads_for(flops), samples * runs)));
  std::vector<Workspace<T>> spaces;
  std::vector<Buffer<T>> packed(static_cast<std::size_t>(crew.size()));
  for (auto& buffer : packed) {
    spaces.emplace_back(plan, false);
    buffer.resize(plan.packed_size);
  }
  crew.run(
      [&](int thread) {
        Workspace<T>& space = spaces[static_cast<std::size_t>(thread)];
        T* weights = packed[static_cast<std::size_t>(thread)].data();
        std::int64_t loaded = -1;  // the sample whose weights are packed
        for (;;) {
          const std::int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
          if (piece >= samples * runs || cancel.check()) return;
          const std::int64_t sample = piece / runs, first = piece % runs * run;
          const T* at = theta + sample * theta_stride;
          if (sample != loaded) pack_weights(plan, at, false, 0, 1, weights);
          loaded = sample;
          const std::int64_t end = std::min(count, first + run);
          for (std::int64_t p = first; p < end; p += group) {
            const std::int64_t size = std::min(group, end - p);
            const T* f = forward_group(plan, at, weights, panels.panel(p), 0, size, false, space);
            for (std::int64_t i = 0; i < size; ++i) {
              k.unpack_panel(f + i * outputs * kPanel, outputs, (p + i) * kPanel,
                             panels.valid(p + i), out + sample * rows * outputs);
            }
            if (cancel.check()) return;
          }
        }
      },
      true, &cancel);
  return !cancel.cancelled();
}

template bool forward(const Network&, const float*, std::int64_t, std::int64_t, const float*,
                      std::int64_t, float*, Poll*);
template bool forward(const Network&, const double*, std::int64_t, std::int64_t, const double*,
                      std::int64_t, double*, Poll*);

}  // namespace ribbit::cpu
