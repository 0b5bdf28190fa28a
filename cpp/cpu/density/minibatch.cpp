#include "cpu/density/minibatch.h"

namespace ribbit::cpu {

template <class T>
void take_batch(const Evaluator<T>& evaluator, const Member<T>& m, EpochRows& epoch,
                std::uint64_t step, bool scaled) {
  const KernelTable<T>& k = kernels<T>();
  TeamSpace<T>& s = m.shared;
  const BatchPlaces places = epoch.take(step);
  const auto begin = static_cast<std::int64_t>(places.begin);
  const auto count = static_cast<std::int64_t>(places.count);
  const std::int64_t panels = panel_count(count), features = evaluator.network().input_size();
  for (std::int64_t p = m.first(panels); p < m.last(panels); ++p) {
    const std::int64_t first = p * kPanel, last = std::min(count, first + kPanel);
    for (std::int64_t r = first; r < last; ++r) {
      s.rows[static_cast<std::size_t>(r)] = epoch.row(begin + r);
    }
    const int n = static_cast<int>(last - first);
    evaluator.x().pack(features, s.rows.data(), first, n,
                       s.batch.x.buffer.data() + p * features * kPanel);
    k.pack_panel(evaluator.y(), evaluator.targets(), s.rows.data(), first, n,
                 s.batch.y.buffer.data() + p * evaluator.targets() * kPanel);
  }
  if (m.index != 0) return;
  s.batch.x.rows = s.batch.y.rows = count;
  s.batch.scale = scaled ? static_cast<double>(evaluator.rows()) / static_cast<double>(count) : 1.0;
  s.batch.constant = 0;
  if (evaluator.row_constants().empty()) return;
  for (std::int64_t r = begin; r < begin + count; ++r) {
    s.batch.constant += evaluator.row_constants()[static_cast<std::size_t>(epoch.row(r))];
  }
}

template <class T>
void prepare_batch(const Evaluator<T>& evaluator, TeamSpace<T>& s, std::int64_t batch_rows) {
  const std::int64_t panels = panel_count(batch_rows);
  s.failed = false;
  s.grad.resize(evaluator.dim());
  s.rows.resize(static_cast<std::size_t>(batch_rows));
  s.batch.x.features = evaluator.network().input_size();
  s.batch.y.features = evaluator.targets();
  if (batch_rows < evaluator.rows()) {
    s.batch.x.buffer.resize(panels * evaluator.network().input_size() * kPanel);
    s.batch.y.buffer.resize(panels * evaluator.targets() * kPanel);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                \
  template void take_batch(const Evaluator<T>&, const Member<T>&, EpochRows&, std::uint64_t, \
                           bool);                                                            \
  template void prepare_batch(const Evaluator<T>&, TeamSpace<T>&, std::int64_t);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
