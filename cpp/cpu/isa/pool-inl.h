// Pools of images (height, width, channels, kPanel). Padding cells do not count.
#pragma once

#include "cpu/isa/conv-inl.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

// Calls body(site, cells) for every site of the output: scalars before the site, and
// cells(scalars before the cell) for each cell of the window on the image, row by row. reaches: is
// called before every row of sites with how many rows of the image are in reach by then.
template <class Reaches, class Body>
RIBBIT_INLINE void each_site(const Window& w, Reaches&& reaches, const Body& body) {
  const std::int64_t pixel = w.channels * kPanel;
  for (std::int64_t i = 0; i < w.out_height; ++i) {
    const std::int64_t top = i * w.stride_height - w.pad_top;
    const Span down(top, w.kernel_height, w.height);
    reaches(top + down.end);
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

template <class Body>
RIBBIT_INLINE void each_site(const Window& w, const Body& body) {
  each_site(w, [](std::int64_t) {}, body);
}

// Zeros in rows of an image of deltas, just before they are added to: windows may overlap, and may
// leave cells out.
template <class T>
class Clear {
 public:
  Clear(const Window& w, bool add, T* image)
      : row_(w.width * w.channels * kPanel), done_(add ? w.height : 0), image_(image) {}
  void operator()(std::int64_t rows) {
    for (; done_ < rows; ++done_) {
      T* row = image_ + done_ * row_;
      for (std::int64_t e = 0; e < row_; e += kLanes<T>) store<T>(row + e, Vec<T>{});
    }
  }

 private:
  std::int64_t row_, done_;
  T* image_;
};

// An image may be larger than a core's own caches, and its cells are not read as they lie: those of
// a site are asked for so many sites before.
constexpr std::int64_t kPoolSitesAhead = 2;

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

// Calls body(first scalar, vectors as a constant) for all of a pixel, some vectors at a time: sums
// of one vector alone would wait for each other.
template <class T, class Body>
RIBBIT_INLINE void each_run(std::int64_t pixel, const Body& body) {
  constexpr int kMany = 4, kFew = 2;  // vectors; a panel is two at least
  std::int64_t e = 0;
  for (; e + kMany * kLanes<T> <= pixel; e += kMany * kLanes<T>) body(e, Count<kMany>{});
  if (e < pixel) body(e, Count<kFew>{});
}

template <class T>
static void max_pool(const T* x, const Window& w, T* y) {
  const std::int64_t pixel = w.channels * kPanel;
  const std::int64_t ahead = kPoolSitesAhead * w.stride_width * pixel;
  each_site(w, [&](std::int64_t site, std::int64_t, const auto& cells) {
    each_run<T>(pixel, [&](std::int64_t e, auto count) __attribute__((always_inline)) {
      Vec<T> most[count.value] = {};
      bool first = true;
      cells([&](std::int64_t cell) __attribute__((always_inline)) {
        const T* in = x + cell + e;
        RIBBIT_UNROLL for (int v = 0; v < count.value; ++v) {
          __builtin_prefetch(in + v * kLanes<T> + ahead);
          const Vec<T> here = load<T>(in + v * kLanes<T>);
          // NaN stays, whichever cell it is in.
          const auto stays = (here <= most[v]) | (most[v] != most[v]);
          most[v] = first ? here : stays ? most[v] : here;
        }
        first = false;
      });
      RIBBIT_UNROLL for (int v = 0; v < count.value; ++v) {
        store<T>(y + site + e + v * kLanes<T>, most[v]);
      }
    });
  });
}

template <class T>
static void max_pool_backward(const T* x, const T* y, const T* d, const Window& w, bool add,
                              T* dx) {
  const std::int64_t pixel = w.channels * kPanel;
  const std::int64_t ahead = kPoolSitesAhead * w.stride_width * pixel;
  Clear<T> clear(w, add, dx);
  each_site(w, clear, [&](std::int64_t site, std::int64_t, const auto& cells) {
    each_run<T>(pixel, [&](std::int64_t e, auto count) __attribute__((always_inline)) {
      Vec<T> most[count.value], left[count.value];  // left: what no cell has taken yet
      RIBBIT_UNROLL for (int v = 0; v < count.value; ++v) {
        most[v] = load<T>(y + site + e + v * kLanes<T>);
        left[v] = load<T>(d + site + e + v * kLanes<T>);
      }
      cells([&](std::int64_t cell) __attribute__((always_inline)) {
        RIBBIT_UNROLL for (int v = 0; v < count.value; ++v) {
          const std::int64_t at = cell + e + v * kLanes<T>;
          __builtin_prefetch(x + at + ahead);
          const auto here = load<T>(x + at) == most[v];
          store<T>(dx + at, load<T>(dx + at) + (here ? left[v] : Vec<T>{}));
          left[v] = here ? Vec<T>{} : left[v];
        }
      });
    });
  });
  clear(w.height);
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
static void average_pool_backward(const T* d, const Window& w, bool add, T* dx) {
  const std::int64_t pixel = w.channels * kPanel;
  Clear<T> clear(w, add, dx);
  each_site(w, clear, [&](std::int64_t site, std::int64_t count, const auto& cells) {
    const Vec<T> weight = broadcast(T(1) / static_cast<T>(count));
    for (std::int64_t e = 0; e < pixel; e += kLanes<T>) {
      const Vec<T> share = load<T>(d + site + e) * weight;
      cells([&](std::int64_t cell) __attribute__((always_inline)) {
        store<T>(dx + cell + e, load<T>(dx + cell + e) + share);
      });
    }
  });
  clear(w.height);
}

}  // namespace
}  // namespace ribbit::cpu
