#include "cpu/density/minibatch.h"

#include <cstring>

#include "cpu/system/faults.h"

namespace ribbit::cpu {
namespace {

// A row as ranks send it: inputs, targets, weight, constant.
template <class T>
struct Record {
  std::int64_t x, y, weight, constant;  // bytes
  explicit Record(const Evaluator<T>& e)
      : x(e.network().input_size() *
          static_cast<std::int64_t>(e.x().bytes != nullptr ? 1 : sizeof(T))),
        y(e.targets() * static_cast<std::int64_t>(sizeof(T))),
        weight(e.row_weights() != nullptr ? static_cast<std::int64_t>(sizeof(T)) : 0),
        constant(e.row_constants().empty() ? 0 : static_cast<std::int64_t>(sizeof(double))) {}
  std::int64_t size() const { return x + y + weight + constant; }
};

std::byte* put(std::byte* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  return to + bytes;
}
const std::byte* get(const std::byte* from, void* to, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  return from + bytes;
}

// Row `number` of those that are here.
template <class T>
std::byte* write_row(const Evaluator<T>& e, const Record<T>& record, std::int64_t number,
                     std::byte* to) {
  const std::int64_t features = e.network().input_size();
  if (e.x().bytes != nullptr) {
    to = put(to, e.x().bytes + number * features, record.x);
  } else if (e.x().values != nullptr) {
    to = put(to, e.x().values + number * features, record.x);
  } else {
    Buffer<T> panel(features * kPanel);
    e.x().pack(features, &number, 0, 1, panel.data());
    for (std::int64_t f = 0; f < features; ++f) {
      to = put(to, panel.data() + f * kPanel, sizeof(T));
    }
  }
  to = put(to, e.y() + number * e.targets(), record.y);
  if (record.weight > 0) to = put(to, e.row_weights() + number, record.weight);
  if (record.constant > 0) {
    to = put(to, e.row_constants().data() + number, record.constant);
  }
  return to;
}

}  // namespace

template <class T>
bool fetch_rows(const Evaluator<T>& e, const std::int64_t* numbers, std::int64_t count, bool wish,
                FetchedRows<T>& fetched) {
  const RowGroup& group = *e.group();
  const Record<T> record(e);
  std::vector<std::int64_t> bounds;
  for (int r = 0; r <= group.ranks; ++r) bounds.push_back(group.first_row(r, e.rows()));
  std::vector<std::size_t> owner(static_cast<std::size_t>(count));
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.ranks), 0);
  for (std::size_t i = 0; i < owner.size(); ++i) {
    const auto next = std::upper_bound(bounds.begin(), bounds.end(), numbers[i]);
    owner[i] = static_cast<std::size_t>(next - bounds.begin()) - 1;
    sizes[owner[i]] += record.size();
  }
  const auto own = static_cast<std::size_t>(group.rank);
  fetched.sent.resize(std::max<std::int64_t>(1, sizes[own]));
  fetched.received.resize(count * record.size());
  std::byte* to = fetched.sent.data();
  for (std::size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] == own) to = write_row(e, record, numbers[i] - bounds[own], to);
  }
  if (!group.exchange->meet(wish, place_of(numbers, count)) ||
      !group.exchange->gather(fetched.sent.data(), fetched.received.data(), sizes)) {
    return false;
  }

  fetched.x.resize(count * record.x);
  fetched.y.resize(count * e.targets());
  fetched.weights.resize(count);
  fetched.constants.resize(static_cast<std::size_t>(count));
  std::vector<const std::byte*> from{fetched.received.data()};
  for (const std::int64_t size : sizes) from.push_back(from.back() + size);
  for (std::size_t i = 0; i < owner.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const std::byte*& at = from[owner[i]];
    at = get(at, fetched.x.data() + row * record.x, record.x);
    at = get(at, fetched.y.data() + row * e.targets(), record.y);
    at = get(at, fetched.weights.data() + row, record.weight);
    at = get(at, fetched.constants.data() + i, record.constant);
  }
  return true;
}

template <class T>
bool take_batch(const Evaluator<T>& evaluator, const Member<T>& m, EpochRows& epoch,
                std::uint64_t step, bool scaled) {
  const KernelTable<T>& k = kernels<T>();
  TeamSpace<T>& s = m.shared;
  const BatchPlaces places = epoch.take(step);
  const auto begin = static_cast<std::int64_t>(places.begin);
  const auto count = static_cast<std::int64_t>(places.count);
  const std::int64_t panels = panel_count(count), features = evaluator.network().input_size();
  Rows<T> x = evaluator.x();
  const T *y = evaluator.y(), *weights = evaluator.row_weights();
  const double* constants = nullptr;  // of fetched rows
  const std::int64_t* numbers = s.rows.data();
  if (evaluator.group() != nullptr) {
    if (!m.barrier()) return false;
    if (m.index == 0) {
      epoch.rows(begin, count, s.rows.data());
      if (!fetch_rows(evaluator, s.rows.data(), count, m.wish->wished(), s.fetched)) {
        m.team.cancel().cancel();
      }
    }
    if (!m.team.gather()) return false;
    x = s.fetched.inputs(evaluator.x());
    y = s.fetched.y.data();
    if (weights != nullptr) weights = s.fetched.weights.data();
    constants = s.fetched.constants.data();
    numbers = nullptr;
  } else if (m.first(panels) < m.last(panels)) {
    const std::int64_t first = m.first(panels) * kPanel;
    epoch.rows(begin + first, std::min(count, m.last(panels) * kPanel) - first,
               s.rows.data() + first);
  }
  for (std::int64_t p = m.first(panels); p < m.last(panels); ++p) {
    const std::int64_t first = p * kPanel, last = std::min(count, first + kPanel);
    const int n = static_cast<int>(last - first);
    x.pack(features, numbers, first, n, s.batch.x.buffer.data() + p * features * kPanel);
    k.pack_panel(y, evaluator.targets(), numbers, first, n,
                 s.batch.y.buffer.data() + p * evaluator.targets() * kPanel);
    if (weights == nullptr) continue;
    k.pack_panel(weights, 1, numbers, first, n, s.batch.weights.buffer.data() + p * kPanel);
  }
  if (m.index != 0) return true;
  s.batch.x.rows = s.batch.y.rows = count;
  s.batch.weights.rows = evaluator.row_weights() != nullptr ? count : 0;
  if (planted(Fault::kNoBatchScale)) scaled = false;
  s.batch.scale = scaled ? static_cast<double>(evaluator.rows()) / static_cast<double>(count) : 1.0;
  s.batch.constant = 0;
  if (evaluator.row_constants().empty()) return true;
  for (std::int64_t r = 0; r < count; ++r) {
    s.batch.constant +=
        constants != nullptr
            ? constants[r]
            : evaluator.row_constants()[static_cast<std::size_t>(epoch.row(begin + r))];
  }
  return true;
}

template <class T>
void prepare_batch(const Evaluator<T>& evaluator, TeamSpace<T>& s, std::int64_t batch_rows) {
  const std::int64_t panels = panel_count(batch_rows);
  s.failed = false;
  s.grad.resize(evaluator.dim());
  s.rows.resize(static_cast<std::size_t>(batch_rows));
  s.batch.x.features = evaluator.network().input_size();
  s.batch.y.features = evaluator.targets();
  s.batch.weights.features = 1;
  if (batch_rows < evaluator.rows()) {
    s.batch.x.buffer.resize(panels * evaluator.network().input_size() * kPanel);
    s.batch.y.buffer.resize(panels * evaluator.targets() * kPanel);
    if (evaluator.row_weights() != nullptr) s.batch.weights.buffer.resize(panels * kPanel);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                \
  template bool take_batch(const Evaluator<T>&, const Member<T>&, EpochRows&, std::uint64_t, \
                           bool);                                                            \
  template void prepare_batch(const Evaluator<T>&, TeamSpace<T>&, std::int64_t);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
