#pragma once
// Data rows where the caller has them, in C order: numbers, or bytes of images that are scaled to
// [0, 1] while they are packed, so that a data set of bytes takes a byte per pixel.

#include <cstdint>

namespace ribbit::cpu {

template <class T>
struct Rows {
  Rows() = default;
  Rows(const T* numbers) : values(numbers) {}  // also where a plain array is given
  explicit Rows(const std::uint8_t* images) : bytes(images) {}

  const T* values = nullptr;            // one of the two
  const std::uint8_t* bytes = nullptr;  // b stands for b / 255

  // Rows numbers[first..first + n) (null: first..) -> (features, kPanel), lanes >= n zero.
  void pack(std::int64_t features, const std::int64_t* numbers, std::int64_t first, int n,
            T* panel) const;
};

}  // namespace ribbit::cpu
