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

template <class T>
bool forward_masked(const Network& network, const T* theta, std::uint64_t seed,
                    std::uint32_t first_sample, std::int64_t samples, bool shared,
                    std::int64_t first_row, const T* x, std::int64_t rows, T* out, Poll* poll) {
  const KernelTable<T>& k = kernels<T>();
  const Plan plan(network, true);
  const std::int64_t group = plan.group_panels(sizeof(T));
  const std::int64_t outputs = network.output_size();
  std::size_t fixed = 0;  // stages before the first mask
  while (fixed < plan.stages.size() && plan.stages[fixed].layer.op != Op::kDropout) ++fixed;
  const std::int64_t width =
      fixed == 0 ? network.input_size() : plan.stages[fixed - 1].layer.out_size;
  Panels<T> panels;
  pack_rows(x, network.input_size(), nullptr, rows, panels);
  const std::int64_t count = panel_count(rows), groups = (count + group - 1) / group;
  std::atomic<std::int64_t> next{0};
  Cancel cancel(poll);
  const double flops = 2.0 * static_cast<double>(samples * rows * network.dim());
  Crew crew(static_cast<int>(std::min<std::int64_t>(threads_for(flops), groups)));
  Buffer<T> weights(plan.packed_size);
  pack_weights(plan, theta, false, 0, 1, weights.data());
  std::vector<Workspace<T>> spaces;
  std::vector<Buffer<T>> starts(static_cast<std::size_t>(crew.size()));
  for (auto& buffer : starts) {
    spaces.emplace_back(plan, false);
    buffer.resize(group * width * kPanel);
  }
  crew.run(
      [&](int thread) {
        Workspace<T>& space = spaces[static_cast<std::size_t>(thread)];
        T* start = starts[static_cast<std::size_t>(thread)].data();
        // A piece of work is a group of panels under all masks: its first layers are done once.
        for (;;) {
          const std::int64_t p = next.fetch_add(1, std::memory_order_relaxed) * group;
          if (p >= count || cancel.check()) return;
          const std::int64_t size = std::min(group, count - p), first = p * kPanel;
          const T* begin = panels.panel(p);
          if (fixed > 0) {
            begin = forward_group(plan, theta, weights.data(), begin, 0, size, false, space,
                                  nullptr, 0, 0, {0, fixed});
            std::copy_n(begin, size * width * kPanel, start);
            begin = start;
          }
          for (std::int64_t s = 0; s < samples; ++s) {
            const Masks masks{seed, 0, first_sample + static_cast<std::uint32_t>(s), shared};
            const T* f = forward_group(plan, theta, weights.data(), begin, 0, size, false, space,
                                       &masks, first_row + first, rows - first, {fixed});
            for (std::int64_t i = 0; i < size; ++i) {
              k.unpack_panel(f + i * outputs * kPanel, outputs, (p + i) * kPanel,
                             panels.valid(p + i), out + s * rows * outputs);
            }
            if (cancel.check()) return;
          }
        }
      },
      true, &cancel);
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T)                                                                \
  template bool forward(const Network&, const T*, std::int64_t, std::int64_t, const T*,      \
                        std::int64_t, T*, Poll*);                                            \
  template bool forward_masked(const Network&, const T*, std::uint64_t, std::uint32_t,       \
                               std::int64_t, bool, std::int64_t, const T*, std::int64_t, T*, \
                               Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
