#pragma once
// Data rows where the caller has them, in C order: numbers, or bytes of images that are scaled to
// [0, 1] while they are packed, so that a data set of bytes takes a byte per pixel. Or numbers of
// another kind as they lie in a file, which is larger than the memory, say.

#include <cstdint>

namespace ribbit::cpu {

// What numbers are in a file.
enum class RowFormat {
  kFloat16,
  kFloat32,
  kFloat64,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kInt64,
  kCount
};

template <class T>
struct Rows {
  Rows() = default;
  Rows(const T* numbers) : values(numbers) {}  // also where a plain array is given
  explicit Rows(const std::uint8_t* images) : bytes(images) {}

  const T* values = nullptr;            // one of the three
  const std::uint8_t* bytes = nullptr;  // b stands for b / 255
  const void* stored = nullptr;         // of `format`
  RowFormat format = RowFormat::kCount;
  // (features,) of what is stored: v stands for (v - mean) / scale; null: for itself.
  const double *mean = nullptr, *scale = nullptr;
  // All rows are not to be packed at once where that can be helped: they may not fit.
  bool streamed = false;

  // Rows numbers[first..first + n) (null: first..) -> (features, kPanel), lanes >= n zero.
  void pack(std::int64_t features, const std::int64_t* numbers, std::int64_t first, int n,
            T* panel) const;
};

}  // namespace ribbit::cpu
