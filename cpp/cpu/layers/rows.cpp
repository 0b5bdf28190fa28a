#include "cpu/layers/rows.h"

#include <algorithm>
#include <bit>

#include "cpu/system/dispatch.h"

namespace ribbit::cpu {
namespace {

// IEEE binary16, not infinite: without arithmetic on subnormal floats, which may be flushed.
struct Half {
  std::uint16_t bits;
  explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size < 0x400u) {
      const float value = static_cast<float>(size) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    return std::bit_cast<float>(sign | ((size << 13) + (112u << 23)));
  }
  explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }
};

// What n numbers stand for.
template <class From, class T>
void convert(const From* from, std::int64_t n, const double* mean, const double* scale, T* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = mean == nullptr ? static_cast<T>(from[i])
                            : static_cast<T>((static_cast<double>(from[i]) - mean[i]) / scale[i]);
  }
}

// The numbers of an array from this one on.
template <class T>
void convert(const Rows<T>& rows, std::int64_t at, std::int64_t n, std::int64_t feature, T* to) {
  const double* mean = rows.mean != nullptr ? rows.mean + feature : nullptr;
  const double* scale = rows.mean != nullptr ? rows.scale + feature : nullptr;
  const auto read = [&]<class From>(const From*) {
    convert(static_cast<const From*>(rows.stored) + at, n, mean, scale, to);
  };
  switch (rows.format) {
    case RowFormat::kFloat16:
      return read(static_cast<const Half*>(nullptr));
    case RowFormat::kFloat32:
      return read(static_cast<const float*>(nullptr));
    case RowFormat::kFloat64:
      return read(static_cast<const double*>(nullptr));
    case RowFormat::kUint8:
      return read(static_cast<const std::uint8_t*>(nullptr));
    case RowFormat::kInt8:
      return read(static_cast<const std::int8_t*>(nullptr));
    case RowFormat::kUint16:
      return read(static_cast<const std::uint16_t*>(nullptr));
    case RowFormat::kInt16:
      return read(static_cast<const std::int16_t*>(nullptr));
    case RowFormat::kUint32:
      return read(static_cast<const std::uint32_t*>(nullptr));
    case RowFormat::kInt32:
      return read(static_cast<const std::int32_t*>(nullptr));
    case RowFormat::kInt64:
      return read(static_cast<const std::int64_t*>(nullptr));
    case RowFormat::kCount:
      break;
  }
}

}  // namespace

template <class T>
void Rows<T>::pack(std::int64_t features, const std::int64_t* numbers, std::int64_t first, int n,
                   T* panel) const {
  if (values != nullptr) {
    kernels<T>().pack_panel(values, features, numbers, first, n, panel);
    return;
  }
  // A run of features of all rows becomes numbers, then a part of the panel.
  constexpr std::int64_t kRun = 64;
  T scaled[kPanel * kRun];
  for (std::int64_t f = 0; f < features; f += kRun) {
    const std::int64_t some = std::min(kRun, features - f);
    for (int r = 0; r < n; ++r) {
      const std::int64_t row = numbers != nullptr ? numbers[first + r] : first + r;
      if (stored != nullptr) {
        convert(*this, row * features + f, some, f, scaled + r * some);
        continue;
      }
      const std::uint8_t* from = bytes + row * features + f;
      for (std::int64_t i = 0; i < some; ++i) {
        scaled[r * some + i] = static_cast<T>(from[i]) / static_cast<T>(255);
      }
    }
    kernels<T>().pack_panel(scaled, some, nullptr, 0, n, panel + f * kPanel);
  }
}

template struct Rows<float>;
template struct Rows<double>;

}  // namespace ribbit::cpu
