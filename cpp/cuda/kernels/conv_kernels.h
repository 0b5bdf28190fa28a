// Windows that slide over images (height, width, channels) with constant sizes, so that indices
// are taken apart by constants, and operands that make convolutions products. S: a Sliding window;
// a kernel lies as (taps, channels, outs), or with groups of channels as (groups, taps, channels of
// a group, outs of a group). Values of one chain's panel have less than 2^31 numbers.
#pragma once

#include "cuda/kernels/product_kernels.h"

namespace ribbit::cuda {

// What a place of an image meets: the number that its first tap is at, as if there were no edges,
// and the taps that meet something, a bit each.
struct Reach {
  int first;
  unsigned taps;
};

// Where an image or a window begins: the number and its coordinates.
struct Corner {
  int first;  // where that is a number's
  int y;
  int x;
};

template <int Height, int Width, int Channels, int KernelHeight, int KernelWidth, int StrideHeight,
          int StrideWidth, int PadTop, int PadLeft, int OutHeight, int OutWidth, int DilationHeight,
          int DilationWidth>
struct Sliding {
  static constexpr int kHeight = Height, kWidth = Width, kChannels = Channels;
  static constexpr int kKernelHeight = KernelHeight, kKernelWidth = KernelWidth;
  static constexpr int kOutHeight = OutHeight, kOutWidth = OutWidth;
  static constexpr int kStrideHeight = StrideHeight, kStrideWidth = StrideWidth;
  static constexpr int kCells = Height * Width, kSites = OutHeight * OutWidth;
  // One window, which meets each cell once.
  static constexpr bool kWhole = kSites == 1 && KernelHeight == Height && KernelWidth == Width &&
                                 PadTop == 0 && PadLeft == 0 && DilationHeight == 1 &&
                                 DilationWidth == 1;
  // The cell that a tap meets at a site, less than zero outside the image.
  RIBBIT_DEVICE static int cell(int site, int tap) {
    const int y = site / OutWidth * StrideHeight + tap / KernelWidth * DilationHeight - PadTop;
    const int x = site % OutWidth * StrideWidth + tap % KernelWidth * DilationWidth - PadLeft;
    const bool inside = y >= 0 && y < Height && x >= 0 && x < Width;
    return inside ? y * Width + x : -1;
  }
  // The site where a tap meets a cell, less than zero where there is none.
  RIBBIT_DEVICE static int site(int cell, int tap) {
    const int y = cell / Width + PadTop - tap / KernelWidth * DilationHeight;
    const int x = cell % Width + PadLeft - tap % KernelWidth * DilationWidth;
    const bool inside = y >= 0 && y % StrideHeight == 0 && y / StrideHeight < OutHeight && x >= 0 &&
                        x % StrideWidth == 0 && x / StrideWidth < OutWidth;
    return inside ? y / StrideHeight * OutWidth + x / StrideWidth : -1;
  }
  static constexpr int kTaps = KernelHeight * KernelWidth;
  // The cells that a site meets, from tap to tap cell_offset apart, where taps have bits enough.
  RIBBIT_DEVICE static Reach cells(int site) {
    const int y = site / OutWidth * StrideHeight - PadTop;
    const int x = site % OutWidth * StrideWidth - PadLeft;
    return {y * Width + x, taps([&](int tap) { return within(y + tap * DilationHeight, Height); },
                                [&](int tap) { return within(x + tap * DilationWidth, Width); })};
  }
  RIBBIT_DEVICE static int cell_offset(int tap) {
    return tap / KernelWidth * DilationHeight * Width + tap % KernelWidth * DilationWidth;
  }
  // The sites that meet a cell, the last tap's the first of them.
  RIBBIT_DEVICE static Reach sites(int cell) {
    const int y = cell / Width + PadTop, x = cell % Width + PadLeft;
    const int last = y / StrideHeight * OutWidth + x / StrideWidth;
    return {last - site_step(kTaps - 1),
            taps([&](int tap) { return meets<StrideHeight>(y - tap * DilationHeight, OutHeight); },
                 [&](int tap) { return meets<StrideWidth>(x - tap * DilationWidth, OutWidth); })};
  }
  // Of the cell that tap 0 meets at a site of an image without edges, and of what a tap adds to it.
  RIBBIT_DEVICE static Corner corner_of_site(int site) {
    return {0, site / OutWidth * StrideHeight, site % OutWidth * StrideWidth};
  }
  // The same for a site less than 16 behind the first of 16 sites of a line, or of whole lines.
  RIBBIT_DEVICE static Corner corner_behind(int site) {
    return OutWidth % 16 == 0 ? Corner{0, 0, site * StrideWidth} : corner_of_site(site);
  }
  RIBBIT_DEVICE static Corner corner_of_tap(int tap) {
    return {0, tap / KernelWidth * DilationHeight - PadTop,
            tap % KernelWidth * DilationWidth - PadLeft};
  }
  RIBBIT_DEVICE static bool has(int y, int x) {
    return static_cast<unsigned>(y) < static_cast<unsigned>(Height) &&
           static_cast<unsigned>(x) < static_cast<unsigned>(Width);
  }
  // Taps that meet a cell at (y, x), and those a stride away, of an image without edges.
  RIBBIT_DEVICE static unsigned taps_of(int y, int x) {
    return taps([&](int tap) { return (y + PadTop - tap * DilationHeight) % StrideHeight == 0; },
                [&](int tap) { return (x + PadLeft - tap * DilationWidth) % StrideWidth == 0; });
  }
  RIBBIT_DEVICE static int site_offset(int tap) { return site_step(kTaps - 1) - site_step(tap); }

 private:
  // Sites from that of tap 0 back to that of a tap which meets the same cell: a cell's place and
  // such a tap's leave the same by division, so the division of their difference is exact.
  RIBBIT_DEVICE static constexpr int site_step(int tap) {
    return tap / KernelWidth * DilationHeight / StrideHeight * OutWidth +
           tap % KernelWidth * DilationWidth / StrideWidth;
  }
  RIBBIT_DEVICE static bool within(int at, int end) { return at >= 0 && at < end; }
  template <int Stride>
  RIBBIT_DEVICE static bool meets(int at, int end) {
    return at >= 0 && at % Stride == 0 && at / Stride < end;
  }
  template <class Down, class Across>
  RIBBIT_DEVICE static unsigned taps(const Down& down, const Across& across) {
    unsigned line = 0, all = 0;
    RIBBIT_UNROLL_ALL for (int x = 0; x < KernelWidth; ++x) line |= across(x) ? 1u << x : 0u;
    RIBBIT_UNROLL_ALL for (int y = 0; y < KernelHeight; ++y) {
      all |= down(y) ? line << (y * KernelWidth) : 0u;
    }
    return all;
  }
};

// Whether a line's taps fit the bits of a Reach, those of 15 terms beyond the last one too.
template <class S, int Width>
struct KeepsLines {
  static constexpr bool value = S::kTaps + 15 / Width < 32;
};

// (rows x sites, taps x channels): the cells that the window covers, 0 outside the image;
// transposed: (taps x channels, rows x sites). Steps: of 16 sites from multiples of 16 on, none of
// them beyond the last; they are whole lines of an image or parts of one.
template <class T, class S, bool Transposed, bool Steps>
struct Patches {
  static constexpr bool kAlongColumns = !Transposed;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE const T* find(Index chain, Index i, Index j) const {
    const Small at = static_cast<Small>(Transposed ? j : i);
    const Small entry = static_cast<Small>(Transposed ? i : j);
    const Small row = at / S::kSites, site = at % S::kSites;
    const int cell = S::cell(static_cast<int>(site), static_cast<int>(entry / S::kChannels));
    if (cell < 0) return nullptr;
    const Small pixel = row * S::kCells + static_cast<Small>(cell);
    return base + chain * chain_stride + (pixel * S::kChannels + entry % S::kChannels);
  }
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const T* at = find(chain, i, j);
    return at == nullptr ? T(0) : *at;
  }
  // Where a number of a line and an entry is, in two parts that are added; there is one where a bit
  // is in both.
  static constexpr bool kKeepsLines = !Transposed && KeepsLines<S, S::kChannels>::value;
  RIBBIT_DEVICE static Reach line(Index i) {
    const Small at = static_cast<Small>(i), row = at / S::kSites;
    const Reach found = S::cells(static_cast<int>(at % S::kSites));
    return {(static_cast<int>(row) * S::kCells + found.first) * S::kChannels, found.taps};
  }
  RIBBIT_DEVICE static Reach entry(Index j) {
    const int at = static_cast<int>(j), tap = at / S::kChannels, channel = at % S::kChannels;
    return {S::cell_offset(tap) * S::kChannels + channel, 1u << tap};
  }
  // With steps: in the parts of an entry, of the first site of 16 and of a site behind that.
  static constexpr bool kSteps = Steps;
  static_assert(!Steps || (Transposed && S::kSites % 16 == 0 &&
                           (S::kOutWidth % 16 == 0 || 16 % S::kOutWidth == 0)));
  RIBBIT_DEVICE static Corner corner(Index i) {
    const int at = static_cast<int>(i), tap = at / S::kChannels;
    const Corner found = S::corner_of_tap(tap);
    return {(found.y * S::kWidth + found.x) * S::kChannels + at % S::kChannels, found.y, found.x};
  }
  static constexpr int kNever = -(1 << 30);  // is outside of every image
  RIBBIT_DEVICE Corner step(Index j) const {
    const Small at = static_cast<Small>(j), row = at / S::kSites;
    const Corner found = S::corner_of_site(static_cast<int>(at % S::kSites));
    const int cell = static_cast<int>(row) * S::kCells + found.y * S::kWidth + found.x;
    return {cell * S::kChannels, found.y, found.x};
  }
  // Address of an entry's cell at the site `after` the first of 16, from `own` of the chain on;
  // inside: there is one.
  RIBBIT_DEVICE static const T* behind(const T* own, const Corner& step, const Corner& entry,
                                       int after, bool& inside) {
    const Corner there = S::corner_behind(after);
    inside = S::has(step.y + entry.y + there.y, step.x + entry.x + there.x);
    return own + (step.first + entry.first + (there.y * S::kWidth + there.x) * S::kChannels);
  }
};

// (rows x cells, taps x outs): the deltas of the sites where each tap meets the cell.
template <class T, class S, int Outs>
struct DeltaPatches {
  static constexpr bool kAlongColumns = true, kSteps = false;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE const T* find(Index chain, Index i, Index j) const {
    const Small at = static_cast<Small>(i), entry = static_cast<Small>(j);
    const Small row = at / S::kCells, cell = at % S::kCells;
    const int site = S::site(static_cast<int>(cell), static_cast<int>(entry / Outs));
    if (site < 0) return nullptr;
    const Small where = row * S::kSites + static_cast<Small>(site);
    return base + chain * chain_stride + (where * Outs + entry % Outs);
  }
  // As of Patches.
  static constexpr bool kKeepsLines = KeepsLines<S, Outs>::value;
  RIBBIT_DEVICE static Reach line(Index i) {
    const Small at = static_cast<Small>(i), row = at / S::kCells;
    const Reach found = S::sites(static_cast<int>(at % S::kCells));
    return {(static_cast<int>(row) * S::kSites + found.first) * Outs, found.taps};
  }
  RIBBIT_DEVICE static Reach entry(Index j) {
    const int at = static_cast<int>(j), tap = at / Outs, out = at % Outs;
    return {S::site_offset(tap) * Outs + out, 1u << tap};
  }
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const T* at = find(chain, i, j);
    return at == nullptr ? T(0) : *at;
  }
};

// The cells of some images at a time in an order in which those that the same taps meet are
// neighbours: 256 and more, so that a tile of them needs the terms of few taps. Strides divide the
// sizes of an image.
template <class S>
struct CellOrder {
  static constexpr int kDown = S::kStrideHeight, kAcross = S::kStrideWidth;
  static constexpr int kClasses = kDown * kAcross, kEach = S::kCells / kClasses;
  static constexpr int kImages = kEach >= 256 ? 1 : 256 / kEach;
  static_assert(S::kHeight % kDown == 0 && S::kWidth % kAcross == 0 && S::kTaps < 32);
  Index images;  // all
  // Of the images that number i belongs to: how many cells of each class they have.
  RIBBIT_DEVICE Small each(Small i) const {
    const Small first = i / (kImages * S::kCells) * kImages;
    const Small more = static_cast<Small>(images) - first;
    return (more < kImages ? more : kImages) * kEach;
  }
  RIBBIT_DEVICE static int class_of(Small i, Small each) {
    int found = 0;
    RIBBIT_UNROLL_ALL for (int c = 1; c < kClasses; ++c) {
      found += i % (kImages * S::kCells) >= static_cast<Small>(c) * each ? 1 : 0;
    }
    return found;
  }
  // The place of number i: image x cells + cell.
  RIBBIT_DEVICE Small at(Small i) const {
    const Small many = each(i);
    const int own = class_of(i, many);
    const Small inside = i % (kImages * S::kCells) - static_cast<Small>(own) * many;
    const Small image = i / (kImages * S::kCells) * kImages + inside / kEach;
    const int place = static_cast<int>(inside % kEach), line = S::kWidth / kAcross;
    const int y = place / line * kDown + own / kAcross, x = place % line * kAcross + own % kAcross;
    return image * S::kCells + static_cast<Small>(y * S::kWidth + x);
  }
  // Taps that meet any of the numbers from one to another; of others than the same images all.
  RIBBIT_DEVICE unsigned taps(Small from, Small to) const {
    if (from / (kImages * S::kCells) != to / (kImages * S::kCells)) return ~0u;
    const Small many = each(from);
    const int first = class_of(from, many), last = class_of(to, many);
    unsigned found = 0;
    RIBBIT_UNROLL_ALL for (int c = 0; c < kClasses; ++c) {
      if (c >= first && c <= last) found |= S::taps_of(c / kAcross, c % kAcross);
    }
    return found;
  }
};

// DeltaPatches with its cells in that order.
template <class T, class S, int Outs>
struct OrderedDeltaPatches {
  using Patches = DeltaPatches<T, S, Outs>;
  static constexpr bool kAlongColumns = true, kSteps = false;
  static constexpr bool kKeepsLines = Patches::kKeepsLines, kSkips = true;
  static_assert(kKeepsLines && Outs % 16 == 0);
  const T* base;
  Index chain_stride;
  CellOrder<S> order;
  RIBBIT_DEVICE const T* find(Index chain, Index i, Index j) const {
    return Patches{base, chain_stride}.find(chain, order.at(static_cast<Small>(i)), j);
  }
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const T* at = find(chain, i, j);
    return at == nullptr ? T(0) : *at;
  }
  RIBBIT_DEVICE Reach line(Index i) const { return Patches::line(order.at(static_cast<Small>(i))); }
  RIBBIT_DEVICE static Reach entry(Index j) { return Patches::entry(j); }
  // Taps that any line from one to another meets, and whether 16 terms are of one of them.
  RIBBIT_DEVICE unsigned taps(Index from, Index to) const {
    return order.taps(static_cast<Small>(from), static_cast<Small>(to));
  }
  RIBBIT_DEVICE static bool has(unsigned taps, int term) {
    return (taps >> (term / Outs) & 1u) != 0;
  }
};

// DeltaSink of rows in that order.
template <class T, class S>
struct OrderedDeltaSink {
  static constexpr bool kJoins = false;
  DeltaSink<T> sink;
  CellOrder<S> order;
  RIBBIT_DEVICE void put(Index chain, Index slice, Index m, Index n, T sum) const {
    sink.put(chain, slice, order.at(static_cast<Small>(m)), n, sum);
  }
  RIBBIT_DEVICE void put4(Index chain, Index slice, Index m, Index n, const T* sums) const {
    sink.put4(chain, slice, order.at(static_cast<Small>(m)), n, sums);
  }
  RIBBIT_DEVICE void put2(Index chain, Index slice, Index m, Index n, const T* sums) const {
    sink.put2(chain, slice, order.at(static_cast<Small>(m)), n, sums);
  }
};

// (taps x outs, channels): a kernel with its channels and outs exchanged.
template <class T, int Channels, int Outs>
struct TurnedKernel {
  static constexpr bool kAlongColumns = false, kKeepsLines = false, kSteps = false;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE const T* find(Index chain, Index i, Index j) const {
    const Small entry = static_cast<Small>(i);
    const Small line = entry / Outs * Channels + static_cast<Small>(j);
    return base + chain * chain_stride + (line * Outs + entry % Outs);
  }
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const { return *find(chain, i, j); }
};

// Where a kernel of groups has the weight of a tap from a channel to an out, less than zero where
// they are of different groups: as a matrix it has zeros outside its blocks.
template <int Taps, int Channels, int Outs, int Groups>
RIBBIT_DEVICE int grouped_weight(int tap, int channel, int out) {
  constexpr int kChannels = Channels / Groups, kOuts = Outs / Groups;
  const int group = channel / kChannels;
  if (group != out / kOuts) return -1;
  return ((group * Taps + tap) * kChannels + channel % kChannels) * kOuts + out % kOuts;
}

// (taps x channels, outs) of a kernel of groups; transposed: (taps x outs, channels).
template <class T, int Taps, int Channels, int Outs, int Groups, bool Turned>
struct GroupedKernel {
  static constexpr bool kAlongColumns = !Turned;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    constexpr int kInner = Turned ? Outs : Channels;
    const int tap = static_cast<int>(i) / kInner, inner = static_cast<int>(i) % kInner;
    const int other = static_cast<int>(j);
    const int at = Turned ? grouped_weight<Taps, Channels, Outs, Groups>(tap, other, inner)
                          : grouped_weight<Taps, Channels, Outs, Groups>(tap, inner, other);
    return at < 0 ? T(0) : (base + chain * chain_stride)[at];
  }
};

// A GradientSink (taps x channels, outs) of a kernel of groups: what is outside its blocks goes.
template <class T, int Taps, int Channels, int Outs, int Groups>
struct GroupedGradientSink {
  static constexpr bool kJoins = false;
  GradientSink<T> sink;
  RIBBIT_DEVICE void put(Index chain, Index slice, Index m, Index n, T sum) const {
    if (m >= sink.rows) return sink.put(chain, slice, m, n, sum);
    const int tap = static_cast<int>(m) / Channels, channel = static_cast<int>(m) % Channels;
    const int at = grouped_weight<Taps, Channels, Outs, Groups>(tap, channel, static_cast<int>(n));
    if (at >= 0) sink.put(chain, slice, at / sink.width, at % sink.width, sum);
  }
};

}  // namespace ribbit::cuda
