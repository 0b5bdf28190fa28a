#include "capi/network.h"

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/predictive/forward.h"
#include "cpu/random.h"

namespace ribbit::capi {

// The numbers of the header are those of the core.
static_assert(static_cast<int>(Op::kGroupNorm) == RIBBIT_GROUP_NORM &&
              static_cast<int>(Op::kCount) == RIBBIT_GROUP_NORM + 1);
static_assert(static_cast<int>(kElu) == RIBBIT_ELU && kActivationCount == RIBBIT_ELU + 1);

namespace {

std::vector<std::int64_t> columns_of_layer(const ribbit_layer& row) {
  std::vector<std::int64_t> columns(static_cast<std::size_t>(Column::kCount), 0);
  const auto set = [&](Column column, std::int64_t value) {
    columns[static_cast<std::size_t>(column)] = value;
  };
  set(Column::kOp, row.op);
  set(Column::kInSize, row.in_size);
  set(Column::kOutSize, row.out_size);
  set(Column::kWeightOffset, row.weight);
  set(Column::kBiasOffset, row.bias);
  set(Column::kArgument, row.argument);
  set(Column::kIndex, row.index);
  set(Column::kInput, row.input);
  set(Column::kSecond, row.second);
  set(Column::kThirdOffset, row.third);
  set(Column::kHeight, row.height);
  set(Column::kWidth, row.width);
  set(Column::kChannels, row.channels);
  set(Column::kKernelHeight, row.kernel_height);
  set(Column::kKernelWidth, row.kernel_width);
  set(Column::kStrideHeight, row.stride_height);
  set(Column::kStrideWidth, row.stride_width);
  set(Column::kPadTop, row.pad_top);
  set(Column::kPadLeft, row.pad_left);
  set(Column::kOutHeight, row.out_height);
  set(Column::kOutWidth, row.out_width);
  set(Column::kOutChannels, row.out_channels);
  set(Column::kNumber, std::bit_cast<std::int64_t>(row.number));
  set(Column::kDilationHeight, row.dilation_height);
  set(Column::kDilationWidth, row.dilation_width);
  return columns;
}
static_assert(static_cast<int>(Column::kCount) == 25);  // one line each

constexpr ribbit_layer empty_layer() {
  ribbit_layer layer{};
  layer.weight = layer.bias = layer.third = layer.second = -1;
  return layer;
}

}  // namespace

std::unique_ptr<ribbit_network> make_network(const std::vector<ribbit_layer>& layers) {
  std::vector<std::int64_t> table;
  std::vector<double> rates;
  for (const ribbit_layer& row : layers) {
    const std::vector<std::int64_t> columns = columns_of_layer(row);
    table.insert(table.end(), columns.begin(), columns.end());
    rates.push_back(row.rate);
  }
  const auto count = static_cast<std::int64_t>(rates.size());
  auto made = std::make_unique<ribbit_network>(
      ribbit_network{Network::from_table(table.data(), rates.data(), count), 0, {}});
  if (count > 1 && made->network.layers().back().op == Op::kDense) {
    made->below = Network::from_table(table.data(), rates.data(), count - 1);
  }
  for (const Layer& layer : made->network.layers()) {
    if (layer.op != Op::kEmbedding) continue;
    made->tokens = made->tokens == 0 ? layer.argument : std::min(made->tokens, layer.argument);
  }
  return made;
}

template <class T>
void check_finite(const char* function, const char* name, const T* values, std::int64_t rows,
                  std::int64_t columns) {
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    if (std::isfinite(values[i])) continue;
    refuse(function, "finite numbers in " + std::string(name) + ", got " +
                         std::to_string(values[i]) + " in row " + std::to_string(i / columns));
  }
}

template <class T>
void check_rows(const char* function, const ribbit_network& network, const T* x,
                std::int64_t rows) {
  needs(x != nullptr && rows >= 1, function, "at least 1 row of x");
  const std::int64_t inputs = network.network.input_size();
  check_finite(function, "x", x, rows, inputs);
  if (network.tokens == 0) return;
  for (std::int64_t i = 0; i < rows * inputs; ++i) {
    const T v = x[i];
    if (v >= 0 && v < static_cast<T>(network.tokens) && std::floor(v) == v) continue;
    refuse(function, "whole numbers in [0, " + std::to_string(network.tokens) + ") in x, got " +
                         std::to_string(v) + " in row " + std::to_string(i / inputs));
  }
}

template <class T>
void start_network(const Network& network, std::uint64_t seed, const std::uint32_t* chain_ids,
                   std::int64_t chains, std::int64_t stride, T* out) {
  const std::int64_t dim = network.dim();
  const cpu::Stream stream{seed, 0, kPurposeInit, 0};
  for (std::int64_t c = 0; c < chains; ++c) {
    T* theta = out + c * stride;
    cpu::fill_normal(stream, chain_ids + c, 1, dim, theta);
    const auto scale = [&](std::int64_t offset, std::int64_t size, std::int64_t fan_in) {
      const T factor = static_cast<T>(std::sqrt(2.0 / static_cast<double>(fan_in)));
      for (std::int64_t i = 0; i < size; ++i) theta[offset + i] *= factor;
    };
    const auto fill = [&](std::int64_t offset, std::int64_t size, T value) {
      if (offset >= 0) std::fill_n(theta + offset, size, value);
    };
    for (const Layer& layer : network.layers()) {
      const Window& w = layer.window;
      const ArraySizes sizes = kOps[static_cast<std::size_t>(layer.op)].arrays(layer);
      switch (layer.stem()) {
        case Stem::kDense:
          scale(layer.weight_offset, sizes.weight, layer.in_size);
          fill(layer.bias_offset, sizes.bias, T(0));
          break;
        case Stem::kConv:
          scale(layer.weight_offset, sizes.weight,
                w.kernel_height * w.kernel_width * (w.channels / w.groups));
          fill(layer.bias_offset, sizes.bias, T(0));
          break;
        case Stem::kEmbedding:
          scale(layer.weight_offset, sizes.weight, w.channels);
          break;
        case Stem::kLstm:
          scale(layer.weight_offset, sizes.weight, w.channels);
          scale(layer.third_offset, sizes.third, w.out_channels);
          fill(layer.bias_offset, sizes.bias, T(0));
          break;
        case Stem::kNorm:
          fill(layer.weight_offset, sizes.weight, T(1));
          fill(layer.bias_offset, sizes.bias, T(0));
          fill(layer.third_offset, sizes.third, T(0));
          break;
        case Stem::kElementwise:
        case Stem::kDropout:
        case Stem::kPool:
        case Stem::kCount:
          break;
      }
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                    \
  template void check_finite(const char*, const char*, const T*, std::int64_t, std::int64_t);    \
  template void check_rows(const char*, const ribbit_network&, const T*, std::int64_t);          \
  template void start_network(const Network&, std::uint64_t, const std::uint32_t*, std::int64_t, \
                              std::int64_t, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_layer_init(ribbit_layer* layer, size_t layer_size) {
  constexpr const char* kName = "ribbit_layer_init";
  return guarded(kName, [&] {
    needs(layer != nullptr && layer_size >= sizeof(ribbit_layer) && layer_size < 65536, kName,
          "a layer and sizeof(ribbit_layer)");
    constexpr ribbit_layer empty = empty_layer();
    std::memset(layer, 0, layer_size);
    std::memcpy(layer, &empty, sizeof empty);
    return RIBBIT_OK;
  });
}

int ribbit_network_create(const ribbit_layer* layers, int64_t count, size_t layer_size,
                          ribbit_network** out) {
  constexpr const char* kName = "ribbit_network_create";
  return guarded(kName, [&] {
    needs(layers != nullptr && out != nullptr && count >= 1 && count < 1 << 24, kName,
          "at least 1 layer and a place for the handle");
    needs(layer_size >= sizeof(ribbit_layer) && layer_size < 65536, kName, "sizeof(ribbit_layer)");
    std::vector<ribbit_layer> rows(static_cast<std::size_t>(count));
    const char* bytes = reinterpret_cast<const char*>(layers);
    for (ribbit_layer& row : rows) {
      std::memcpy(&row, bytes, sizeof row);
      needs(std::all_of(bytes + sizeof row, bytes + layer_size, [](char c) { return c == 0; }),
            kName, "layers of this version of the library, got newer ones");
      bytes += layer_size;
    }
    *out = make_network(rows).release();
    return RIBBIT_OK;
  });
}

int ribbit_network_create_mlp(int64_t inputs, const int64_t* hidden, int64_t num_hidden,
                              int64_t outputs, int activation, ribbit_network** out) {
  constexpr const char* kName = "ribbit_network_create_mlp";
  return guarded(kName, [&] {
    needs(out != nullptr && (hidden != nullptr || num_hidden == 0), kName,
          "hidden widths and a place for the handle");
    needs(num_hidden >= 0 && num_hidden < 1 << 20, kName, "a number of hidden layers");
    std::vector<ribbit_layer> rows;
    std::int64_t place = 0, in = inputs;
    const auto add = [&](ribbit_layer row) {
      row.index = row.input = static_cast<std::int64_t>(rows.size());
      rows.push_back(row);
    };
    for (std::int64_t l = 0; l <= num_hidden; ++l) {
      const std::int64_t width = l < num_hidden ? hidden[l] : outputs;
      needs(in >= 1 && in <= 1 << 30 && width >= 1 && width <= 1 << 30, kName, "widths in 1..2^30");
      ribbit_layer dense = empty_layer();
      dense.op = RIBBIT_DENSE;
      dense.in_size = in;
      dense.out_size = width;
      dense.weight = place;
      dense.bias = place + in * width;
      place = dense.bias + width;
      needs(place <= kMostScalars, kName, "at most 2^34 parameters");
      add(dense);
      if (l < num_hidden) {
        ribbit_layer bend = empty_layer();
        bend.op = RIBBIT_ACTIVATION;
        bend.in_size = bend.out_size = width;
        bend.argument = activation;
        add(bend);
      }
      in = width;
    }
    *out = make_network(rows).release();
    return RIBBIT_OK;
  });
}

void ribbit_network_free(ribbit_network* network) {
  delete network;
}

int64_t ribbit_network_dim(const ribbit_network* network) {
  return network != nullptr ? network->network.dim() : 0;
}

int64_t ribbit_network_inputs(const ribbit_network* network) {
  return network != nullptr ? network->network.input_size() : 0;
}

int64_t ribbit_network_outputs(const ribbit_network* network) {
  return network != nullptr ? network->network.output_size() : 0;
}

int ribbit_network_apply(const ribbit_network* network, int dtype, const void* theta,
                         int64_t samples, const void* x, int64_t rows, void* out,
                         const ribbit_interrupt* interrupt) {
  constexpr const char* kName = "ribbit_network_apply";
  return guarded(kName, [&] {
    needs(network != nullptr && theta != nullptr && out != nullptr && samples >= 1, kName,
          "a network, weights, at least 1 sample and a place for outputs");
    return for_dtype(kName, dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* inputs = static_cast<const T*>(x);
      check_rows(kName, *network, inputs, rows);
      cpu::WeightSource<T> source;
      source.dim = network->network.dim();
      source.theta = static_cast<const T*>(theta);
      source.draws = samples;
      InterruptPoll poll(interrupt);
      cpu::Forward<T> forward(network->network, source, inputs, rows, samples, &poll);
      const bool done = forward.run(0, samples, 0, rows, static_cast<T*>(out), nullptr);
      return done ? RIBBIT_OK : kInterrupted;
    });
  });
}
