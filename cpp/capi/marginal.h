#pragma once
// The tables of a posterior whose last dense layer is integrated out (cpu/density/last_layer.h).

#include <cstdint>
#include <optional>
#include <vector>

#include "capi/network.h"
#include "core/likelihood_hd.h"
#include "cpu/density/evaluator.h"

namespace ribbit::capi {

struct Marginal {
  Network network;  // the layers below
  std::vector<cpu::PriorSegment> prior;
  std::vector<double> mean;  // of the prior of the remaining parameters; empty: zeros
  cpu::LastLayer last;
};

// Returns none if the layer cannot be integrated out, or if a gradient would take too long. mean:
// (P,) of the prior, or empty.
std::optional<Marginal> marginal_of(const ribbit_network& network,
                                    const std::vector<cpu::PriorSegment>& prior,
                                    LikelihoodKind kind, const LikelihoodParameters& parameters,
                                    const std::vector<double>& mean, std::int64_t rows);

}  // namespace ribbit::capi
