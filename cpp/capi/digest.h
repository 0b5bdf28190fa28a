#pragma once
// A digest of numbers, by which chains recognise their target.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>

namespace ribbit::capi {

// FNV-1a (Fowler, Noll and Vo) on words of 8 bytes, with a shift that brings high bits down.
class Digest {
 public:
  template <class V>
  void add(const V* values, std::int64_t count) {
    static_assert(std::is_arithmetic_v<V>);  // other types may have padding
    const auto* bytes = reinterpret_cast<const char*>(values);
    const std::size_t size = static_cast<std::size_t>(count) * sizeof(V);
    for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min(sizeof word, size - i));
      value_ = (value_ ^ word) * 0x100000001b3ULL;
      value_ ^= value_ >> 32;
    }
  }
  template <class... V>
  void add_all(V... values) {
    (add(&values, 1), ...);
  }
  std::string text() const {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value_));
    return digits;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace ribbit::capi
