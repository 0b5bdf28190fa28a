#pragma once
// How much memory there is, asked before it is taken.

#include <cstdint>
#include <new>
#include <string>

namespace ribbit::cpu {

// A MemoryError in Python.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// Bytes that can be had without swapping: what the system calls available, or less where a control
// group allows less; negative: unknown. RIBBIT_FREE_MEMORY, whole bytes, overrides it.
std::int64_t free_memory();

// "2 workspaces of 51 MiB": for the next one.
std::string workspaces_named(std::int64_t count, std::int64_t bytes);

// Throws OutOfMemory, saying what the bytes are for, when there are not that many. Less
// than a MiB is not asked for: looking costs more.
void require_memory(std::int64_t bytes, const std::string& what);

}  // namespace ribbit::cpu
