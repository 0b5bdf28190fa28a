#pragma once
// Large blocks of memory, kept for whoever asks for as much next. The system clears fresh pages
// before it hands them out, which costs more than copying into them.

#include <cstddef>
#include <cstdint>

namespace ribbit::cpu {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Blocks of at least that many bytes, in whole huge pages, are taken and given back here.
inline constexpr std::size_t kLargeBlock = 4 * kHugePage;

// Throws std::bad_alloc. bytes: a multiple of kHugePage, also of what is given back.
void* take_block(std::size_t bytes);
void give_block(void* block, std::size_t bytes) noexcept;
// Hands what is kept to the system; returns how many bytes that was.
std::int64_t drop_blocks();

// Copies n elements by several threads where that pays.
template <class T>
void copy_array(const T* from, std::int64_t n, T* to);

}  // namespace ribbit::cpu
