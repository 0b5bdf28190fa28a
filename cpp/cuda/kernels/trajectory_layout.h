// How a small network of dense layers lies in the shared memory of a block, and which thread owns
// what of it.
#pragma once

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// Inputs, units of each hidden layer, outputs.
template <int... Units>
struct UnitsOf {
  static constexpr int kLayers = static_cast<int>(sizeof...(Units)) - 1;
  static RIBBIT_SIZE int at(int i) {
    const int units[] = {Units...};
    return units[i];
  }
};

// N numbers at once, in memory that begins at a multiple of their bytes, or of 16 if that is less.
template <int N, class T>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Together {
  T value[N];
};
template <int N, class T>
RIBBIT_DEVICE void take(T (&to)[N], const T* from) {
#if !defined(__CUDA_ARCH__)
  if constexpr (N * sizeof(T) >= 16) expect_place(from);
#endif
  const Together<N, T> all = *reinterpret_cast<const Together<N, T>*>(from);
  RIBBIT_UNROLL_ALL for (int i = 0; i < N; ++i) to[i] = all.value[i];
}
template <int N, class T>
RIBBIT_DEVICE void give(T* to, const T (&from)[N]) {
#if !defined(__CUDA_ARCH__)
  if constexpr (N * sizeof(T) >= 16) expect_place(to);
#endif
  Together<N, T> all;
  RIBBIT_UNROLL_ALL for (int i = 0; i < N; ++i) all.value[i] = from[i];
  *reinterpret_cast<Together<N, T>*>(to) = all;
}

// Values (R, units + 1) of every layer, the last column 1; weights (units + 1, units of the next
// layer), the last row being the bias; deltas (R, units) of all layers but the inputs. Rows are
// padded by zeros to an odd number of fours: fours of numbers are then read at once, and threads
// that walk down a column meet different banks.
//
// Products over rows give a thread A rows, R / A apart, and B columns; the gradient gives it tiles
// of I x J weights, which it owns. Tiles are as large as leaves half of the threads something to
// do: a tile of 4 x 4 reads 8 fours for 64 multiply-adds, which is near the least instructions.
// Four threads have two by two tiles, bit 0 of a lane changes the row and bit 1 the column: where
// pairs of lanes read the same 16 bytes, shared memory is asked half as often. The last of an odd
// number of rows is given out by columns.
template <class T, int Rows, int Threads, class Units>
struct TrajectoryLayout {
  static constexpr int kLayers = Units::kLayers;
  static constexpr int kBusy = Threads / 2;
  static RIBBIT_SIZE int units(int layer) { return Units::at(layer); }
  static RIBBIT_SIZE int parts(int n, int of) { return (n + of - 1) / of; }
  static RIBBIT_SIZE int stride(int layer) { return 4 * (parts(units(layer) + 1, 4) | 1); }
  static RIBBIT_SIZE int weights_at(int layer) {
    int sum = 0;
    for (int l = 0; l < layer; ++l) sum += 4 * parts(units(l) + 1, 4) * stride(l + 1);
    return sum;
  }
  static RIBBIT_SIZE int values_at(int layer) {
    int sum = 0;
    for (int l = 0; l < layer; ++l) sum += Rows * stride(l);
    return sum;
  }
  static RIBBIT_SIZE int deltas_at(int layer) { return values_at(layer) - values_at(1); }

  // Threads of tiles two by two, a multiple of four.
  static RIBBIT_SIZE int threads_of(int rows, int columns) {
    const int pairs = columns == 1 ? 0 : rows / 2;
    return 4 * (pairs * parts(columns, 2) + parts((rows - 2 * pairs) * columns, 4));
  }
  struct Place {
    int row, column;
  };
  // The tile of thread e; without one its row or its column is beyond the last.
  template <int TileRows, int TileColumns>
  static RIBBIT_DEVICE Place place(int e) {
    constexpr int kPairs = parts(TileColumns, 2), kEven = TileRows / 2 * 2;
    if (TileColumns == 1) return {e, 0};
    if (e >= kEven * kPairs * 2) return {kEven, e - kEven * kPairs * 2};
    return {e / 4 / kPairs * 2 + e % 2, e / 4 % kPairs * 2 + e / 2 % 2};
  }

  // Of a product with this layer's units as columns.
  static RIBBIT_SIZE int columns(int layer) { return units(layer) < 3 ? units(layer) : 4; }
  static RIBBIT_SIZE int column_tiles(int layer) { return parts(units(layer), columns(layer)); }
  static RIBBIT_SIZE int rows(int layer) {
    int rows = sizeof(T) == 4 ? 4 : 2;
    while (rows > 1 && Rows / rows * column_tiles(layer) < kBusy) rows /= 2;
    return rows;
  }
  static RIBBIT_SIZE int product_tiles(int layer) {
    return threads_of(Rows / rows(layer), column_tiles(layer));
  }

  // Of weights, one size for all layers.
  struct Tile {
    int rows, columns;
  };
  static RIBBIT_SIZE int tiles_before(int layer, Tile tile) {
    int sum = 0;
    for (int l = 0; l < layer; ++l) {
      sum += threads_of(parts(units(l) + 1, tile.rows), parts(units(l + 1), tile.columns));
    }
    return sum;
  }
  static RIBBIT_SIZE Tile tile() {
    Tile tile{sizeof(T) == 4 ? 4 : 2, 4};
    while (tile.rows * tile.columns > 1 && tiles_before(kLayers, tile) < kBusy) {
      if (tile.rows == tile.columns) {
        tile.rows /= 2;
      } else {
        tile.columns /= 2;
      }
    }
    return tile;
  }
  static constexpr int kTileRows = tile().rows, kTileColumns = tile().columns;
  static constexpr int kTile = kTileRows * kTileColumns;
  static RIBBIT_SIZE int first_tile(int layer) { return tiles_before(layer, tile()); }
  static RIBBIT_SIZE int tile_rows(int layer) { return parts(units(layer) + 1, kTileRows); }
  static RIBBIT_SIZE int tile_columns(int layer) { return parts(units(layer + 1), kTileColumns); }
  // Tile t + i Threads is the i-th of thread t.
  static constexpr int kOwned = parts(tiles_before(kLayers, tile()), Threads) * kTile;
};

}  // namespace ribbit::cuda
