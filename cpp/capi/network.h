#pragma once
// A network of the C interface.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "capi/status.h"
#include "core/network.h"

struct ribbit_network {
  ribbit::Network network;
  std::int64_t tokens;  // the input holds whole numbers below this one; 0: any numbers
  std::optional<ribbit::Network> below;  // the layers below a last dense layer
};

namespace ribbit::capi {

// body(T{}) of a dtype's scalar type.
template <class Body>
auto for_dtype(const char* function, int dtype, const Body& body) {
  needs(dtype == RIBBIT_FLOAT32 || dtype == RIBBIT_FLOAT64, function,
        "a dtype RIBBIT_FLOAT32 or RIBBIT_FLOAT64");
  return dtype == RIBBIT_FLOAT32 ? body(0.0F) : body(0.0);
}

// Throws std::invalid_argument on layers that make no network.
std::unique_ptr<ribbit_network> make_network(const std::vector<ribbit_layer>& layers);

// Throws unless all of values (rows, columns) is finite.
template <class T>
void check_finite(const char* function, const char* name, const T* values, std::int64_t rows,
                  std::int64_t columns);

// Throws unless x (rows, inputs) holds what the network takes.
template <class T>
void check_rows(const char* function, const ribbit_network& network, const T* x, std::int64_t rows);

// Starts (chains, network dim) at out, rows `stride` numbers apart.
template <class T>
void start_network(const Network& network, std::uint64_t seed, const std::uint32_t* chain_ids,
                   std::int64_t chains, std::int64_t stride, T* out);

}  // namespace ribbit::capi
