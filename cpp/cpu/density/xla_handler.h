#pragma once
// Log densities that compiled XLA programs call: from JAX, without Python and without its lock.

#include <cstdint>
#include <memory>

#include "cpu/density/log_density.h"
#include "cpu/density/xla_ffi.h"

namespace ribbit::cpu {

// A density under a number by which programs find it, until this object ends: it waits for its own
// calls that run, not for those of others, and later ones are an error. Numbers are never used
// again, not by another process either (forked ones too), so that a program kept on a disk cannot
// call another density.
class Published {
 public:
  template <class T>
  explicit Published(const LogDensity<T>* density);
  ~Published();
  Published(const Published&) = delete;
  Published& operator=(const Published&) = delete;
  std::int64_t number() const { return number_; }

  struct Entry;

 private:
  std::int64_t number_ = 0;
  const std::shared_ptr<Entry> entry_;
};

// theta (..., dim) -> log density (...), and where there is a second result its gradient
// (..., dim), all of the density's scalar type. Attributes: density, the number (int64); prior,
// 1 or 0 (int64): without it the tempered likelihood alone.
xla::Error* xla_log_density(xla::CallFrame* frame) noexcept;

}  // namespace ribbit::cpu
