#include "cpu/panels.h"

namespace ribbit::cpu {

template <class T>
void pack_rows(const T* x, std::int64_t features, const std::int64_t* rows, std::int64_t count,
               Panels<T>& out) {
  out.rows = count;
  out.features = features;
  out.buffer.resize(panel_count(count) * features * kPanel);
  for (std::int64_t p = 0; p < panel_count(count); ++p) {
    kernels<T>().pack_panel(x, features, rows, p * kPanel, out.valid(p),
                            out.buffer.data() + p * features * kPanel);
  }
}

template void pack_rows(const float*, std::int64_t, const std::int64_t*, std::int64_t,
                        Panels<float>&);
template void pack_rows(const double*, std::int64_t, const std::int64_t*, std::int64_t,
                        Panels<double>&);

}  // namespace ribbit::cpu
