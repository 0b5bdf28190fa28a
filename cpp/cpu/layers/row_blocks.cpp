#include "cpu/layers/row_blocks.h"

#include "cpu/system/memory.h"

namespace ribbit::cpu {

template <class T>
void pack_rows(const std::type_identity_t<Rows<T>>& x, std::int64_t features,
               const std::int64_t* rows, std::int64_t count, Panels<T>& out) {
  out.rows = count;
  out.features = features;
  const std::int64_t size = panel_count(count) * features * kPanel;
  const std::int64_t bytes = size * static_cast<std::int64_t>(sizeof(T));
  if (size > out.buffer.size()) require_memory(bytes, std::to_string(count) + " packed rows");
  out.buffer.resize(size);
  for (std::int64_t p = 0; p < panel_count(count); ++p) {
    x.pack(features, rows, p * kPanel, out.valid(p), out.buffer.data() + p * features * kPanel);
  }
}

template void pack_rows(const Rows<float>&, std::int64_t, const std::int64_t*, std::int64_t,
                        Panels<float>&);
template void pack_rows(const Rows<double>&, std::int64_t, const std::int64_t*, std::int64_t,
                        Panels<double>&);

}  // namespace ribbit::cpu
