// The log likelihood of a network of any layers, and its gradient, panel by panel.

#include "cpu/density/evaluator.h"

namespace ribbit::cpu {

// A panel of the batch, packed into the space where the batch has no panels.
template <class T>
const T* Evaluator<T>::graph_input(const Batch<T>& batch, std::int64_t panel,
                                   GraphSpace<T>& space) const {
  if (batch.x.buffer.data() != nullptr) return batch.x.panel(panel);
  x_.pack(network_.input_size(), batch.numbers, panel * kPanel, batch.x.valid(panel),
          space.input());
  return space.input();
}

template <class T>
void Evaluator<T>::graph_shard(const Member<T>& m, const T* theta, std::int64_t shard,
                               Wanted wanted) const {
  const Batch<T>& batch = m.batch;
  const PanelLikelihood<T> likelihood(*this, batch, theta, wanted.values);
  T* grad = m.shard_grad(shard, dim_);
  const T* packed = m.shared.packed.data();
  GraphSpace<T>& space = *m.graph;
  if (wanted.gradient) std::fill(grad, grad + dim_, T(0));
  double ll = 0, noise = 0;
  for (std::int64_t p = m.first_panel(shard); p < m.last_panel(shard); ++p) {
    const T* input = graph_input(batch, p, space);
    const std::int64_t first = p * kPanel;
    const T* f =
        graph_forward(*graph_, theta, packed, input, space, m.masks, first, batch.x.rows - first);
    likelihood(batch, p, f, space.delta(graph_->output), ll, noise);
    if (wanted.gradient) graph_backward(*graph_, theta, packed, input, space, grad);
    if (m.team.cancel().check()) return;
  }
  if (likelihood.learned && wanted.gradient) {
    grad[noise_at()] = static_cast<T>(likelihood.weight * noise);
  }
  m.shared.shard_ll[shard] = ll;
}

#define RIBBIT_INSTANTIATE(T)                                                                \
  template const T* Evaluator<T>::graph_input(const Batch<T>&, std::int64_t, GraphSpace<T>&) \
      const;                                                                                 \
  template void Evaluator<T>::graph_shard(const Member<T>&, const T*, std::int64_t, Wanted) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
