// Pools of images (height, width, channels, kPanel). Padding cells do not count.
#pragma once

#include "cpu/isa/conv-inl.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

// Calls body(site, cells) for every site of the output: scalars before the site, and
// cells(scalars before the cell) for each cell of the window on the image, row by row.
template <class Body>
RIBBIT_INLINE void each_site(const Window& w, const Body& body) {
  const std::int64_t pixel = w.channels * kPanel;
  for (std::int64_t i = 0; i < w.out_height; ++i) {
    const std::int64_t top = i * w.stride_height - w.pad_top;
    const Span down(top, w.kernel_height, w.height);
    for (std::int64_t j = 0; j < w.out_width; ++j) {
      const std::int64_t left = j * w.stride_width - w.pad_left;
      const Span across(left, w.kernel_width, w.width);
      body((i * w.out_width + j) * pixel, down.size() * across.size(),
           [&](const auto& cell) __attribute__((always_inline)) {
             for (std::int64_t r = down.begin; r < down.end; ++r) {
               for (std::int64_t s = across.begin; s < across.end; ++s) {
                 cell(((top + r) * w.width + left + s) * pixel);
               }
             }
           });
    }
  }
}

template <class T>
static void max_pool(const T* x, const Window& w, T* y) {
  const std::int64_t pixel = w.channels * kPanel;
  each_site(w, [&](std::int64_t site, std::int64_t, const auto& cells) {
    for (std::int64_t e = 0; e < pixel; e += kLanes<T>) {
      bool first = true;
      Vec<T> most{};
      cells([&](std::int64_t cell) __attribute__((always_inline)) {
        const Vec<T> v = load<T>(x + cell + e);
        // NaN stays, whichever cell it is in.
        const auto stays = (v <= most) | (most != most);
        most = first ? v : stays ? most : v;
        first = false;
      });
      store<T>(y + site + e, most);
    }
  });
}

template <class T>
static void max_pool_backward(const T* x, const T* y, const T* d, const Window& w, T* dx) {
  const std::int64_t pixel = w.channels * kPanel;
  each_site(w, [&](std::int64_t site, std::int64_t, const auto& cells) {
    for (std::int64_t e = 0; e < pixel; e += kLanes<T>) {
      const Vec<T> most = load<T>(y + site + e);
      Vec<T> left = load<T>(d + site + e);  // what no cell has taken yet
      cells([&](std::int64_t cell) __attribute__((always_inline)) {
        const auto here = load<T>(x + cell + e) == most;
        T* out = dx + cell + e;
        store<T>(out, load<T>(out) + (here ? left : Vec<T>{}));
        left = here ? Vec<T>{} : left;
      });
    }
  });
}

template <class T>
static void average_pool(const T* x, const Window& w, T* y) {
  const std::int64_t pixel = w.channels * kPanel;
  each_site(w, [&](std::int64_t site, std::int64_t count, const auto& cells) {
    const Vec<T> weight = broadcast(T(1) / static_cast<T>(count));
    for (std::int64_t e = 0; e < pixel; e += kLanes<T>) {
      Vec<T> sum{};
      cells([&](std::int64_t cell)
                __attribute__((always_inline)) { sum += load<T>(x + cell + e); });
      store<T>(y + site + e, sum * weight);
    }
  });
}

template <class T>
static void average_pool_backward(const T* d, const Window& w, T* dx) {
  const std::int64_t pixel = w.channels * kPanel;
  each_site(w, [&](std::int64_t site, std::int64_t count, const auto& cells) {
    const Vec<T> weight = broadcast(T(1) / static_cast<T>(count));
    for (std::int64_t e = 0; e < pixel; e += kLanes<T>) {
      const Vec<T> share = load<T>(d + site + e) * weight;
      cells([&](std::int64_t cell) __attribute__((always_inline)) {
        store<T>(dx + cell + e, load<T>(dx + cell + e) + share);
      });
    }
  });
}

}  // namespace
}  // namespace ribbit::cpu
