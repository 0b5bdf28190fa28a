#include "cpu/network/graph_network_pass.h"

#include "cpu/network/graph_row_noise.h"

namespace ribbit::cpu {
namespace {

// A panel of the batch, packed into the space where the batch has no panels.
template <class T>
const T* input_of(const BatchRows<T>& batch, std::int64_t features, std::int64_t panel,
                  GraphSpace<T>& space) {
  if (batch.buffer.data() != nullptr) return batch.panel(panel);
  batch.source.pack(features, batch.numbers, panel * kPanel, batch.valid(panel), space.input());
  return space.input();
}

}  // namespace

template <class T>
GraphPass<T>::GraphPass(const Network& network, bool masks)
    : network_(network), masks_(masks), plan_(network, masks) {}

template <class T>
const GraphPlan& GraphPass<T>::row_noise_plan() const {
  std::call_once(row_noise_once_, [this] {
    row_noise_plan_ = std::make_unique<const GraphPlan>(network_, masks_, false);
  });
  return *row_noise_plan_;
}

template <class T>
void GraphPass<T>::pack(const T* theta, bool backward, const Part& part, T* packed) const {
  pack_graph(plan_, theta, backward, part, packed);
}

template <class T>
std::unique_ptr<PassSpace> GraphPass<T>::space(PassUse use) const {
  if (use == PassUse::kRowNoise) return std::make_unique<GraphRowNoiseSpace<T>>(row_noise_plan());
  return std::make_unique<GraphSpace<T>>(plan_, use == PassUse::kGradient);
}

template <class T>
std::int64_t GraphPass<T>::space_bytes(PassUse use) const {
  if (use == PassUse::kRowNoise) return GraphRowNoiseSpace<T>::bytes(row_noise_plan());
  return plan_.template workspace_bytes<T>(use == PassUse::kGradient);
}

// A panel is work enough for a shard, as long as adding up the shards costs little beside it.
template <class T>
std::int64_t GraphPass<T>::shard_count(PassUse, std::int64_t rows, std::int64_t dim) const {
  constexpr std::int64_t kPerParameter = 16;  // multiplications
  const std::int64_t work = 3 * rows * network_.multiplications();
  std::int64_t shards = 1;
  while (shards < kMostShards && rows >= 2 * shards * kPanel &&
         work >= 2 * shards * kPerParameter * dim) {
    shards *= 2;
  }
  return shards;
}

// Packed panel by panel: a copy of images would double their memory.
template <class T>
void GraphPass<T>::take_rows(const Rows<T>& x, const std::int64_t* numbers, std::int64_t count,
                             BatchRows<T>& out) const {
  out.rows = count;
  out.source = x;
  out.numbers = numbers;
}

template <class T>
const T* GraphPass<T>::panels_at(const BatchRows<T>& rows, std::int64_t panel,
                                 PassSpace& space) const {
  return input_of(rows, network_.input_size(), panel, static_cast<GraphSpace<T>&>(space));
}

template <class T>
typename NetworkPass<T>::Prefix GraphPass<T>::prefix() const {
  return {plan_.prefix.nodes, plan_.value_size[static_cast<std::size_t>(plan_.prefix.value)]};
}

template <class T>
const T* GraphPass<T>::forward(const T* theta, const T* packed, const T* input, std::int64_t,
                               const Masks* masks, std::int64_t first, std::int64_t rows,
                               StageRange range, PassSpace& space, Cancel& cancel) const {
  return graph_forward(plan_, theta, packed, input, static_cast<GraphSpace<T>&>(space), masks,
                       first, rows, range, between(cancel));
}

template <class T>
void GraphPass<T>::run_shard(const ShardArgs<T>& shard, PassSpace& thread_space, PanelLoss<T>& loss,
                             Cancel& cancel) const {
  const auto& [batch, begin, end, theta, packed, masks, grad, marks] = shard;
  auto& space = static_cast<GraphSpace<T>&>(thread_space);
  for (std::int64_t p = begin; p < end; ++p) {
    const T* input = input_of(batch, network_.input_size(), p, space);
    const std::int64_t first = p * kPanel;
    const T* f = graph_forward(plan_, theta, packed, input, space, masks, first, batch.rows - first,
                               {}, between(cancel));
    if (f == nullptr) return;
    loss(p, f, space.delta(plan_.output));
    if (grad != nullptr) {
      graph_backward(plan_, theta, packed, input, space, grad, between(cancel), marks);
    }
    if (cancel.check()) return;
  }
}

template <class T>
void GraphPass<T>::pack_row_noise(const T* mean, const T* second, const T* drawn, const Part& part,
                                  T* packed_first, T* packed_second) const {
  pack_graph_row_noise(row_noise_plan(), mean, second, drawn, part, packed_first, packed_second);
}

template <class T>
void GraphPass<T>::run_row_noise(const RowNoiseArgs<T>& shard, PassSpace& thread_space,
                                 PanelLoss<T>& loss, Cancel& cancel) const {
  const GraphPlan& plan = row_noise_plan();
  const BatchRows<T>& batch = shard.rows;
  auto& space = static_cast<GraphRowNoiseSpace<T>&>(thread_space);
  for (std::int64_t p = shard.first; p < shard.last; ++p) {
    const std::int64_t first = p * kPanel, count = batch.rows - first;
    const std::int64_t* numbers = shard.numbers != nullptr ? shard.numbers + first : nullptr;
    const T* input = input_of(batch, network_.input_size(), p, space.first);
    const T* f = graph_row_noise_forward(plan, shard.weights, shard.drawn, input, numbers, first,
                                         count, space, between(cancel));
    if (f == nullptr) return;
    loss(p, f, space.first.delta(plan.output));
    graph_row_noise_backward(plan, shard.weights, shard.drawn, input, numbers, first, count, space,
                             shard.by_first, shard.by_second, between(cancel));
    if (cancel.check()) return;
  }
}

template class GraphPass<float>;
template class GraphPass<double>;

}  // namespace ribbit::cpu
