#pragma once
// How a network of dense layers runs on panels, decided once: which buffer each layer reads and
// writes, where its packed weights lie, and how many panels travel through all layers together.

#include <cstdint>
#include <vector>

#include "core/network.h"
#include "cpu/layers/layer_pass.h"

namespace ribbit::cpu {

struct MlpPlan {
  // masks: dropout layers take part; otherwise they are the identity. concrete: with relaxed masks
  // whose rates are parameters; each dropout layer must lie right below a dense one.
  explicit MlpPlan(const Network& network, bool masks = false, bool concrete = false);

  std::vector<Stage> stages;
  std::vector<std::int64_t> value_width;       // scalars per row; [0] is the input, not stored
  std::vector<std::int64_t> derivative_width;  // scalars per row
  std::vector<std::int64_t> delta_width;       // scalars per row
  std::int64_t packed_size = 0;                // scalars of all packed weights
  std::int64_t narrow_size = 0;                // vectors of all narrow sums
  std::int64_t multiplications = 0;            // of a row forwards
  int output_value = 0;
  int rates = 0;  // learned ones; their logits follow the other parameters

  // Panels whose values and deltas are kept until their weight gradients are taken together: as
  // many as fit in the second-level cache, but enough rows that loading and storing a weight
  // gradient is cheap beside its multiplications.
  std::int64_t block_panels(std::int64_t scalar_bytes) const;
  // What values, derivatives and deltas of so many panels take, if all are kept.
  std::int64_t kept_bytes(std::int64_t panels, std::int64_t scalar_bytes) const;
  // Whether the packed weights stay in a core's caches.
  bool packs_small(std::int64_t scalar_bytes) const;
};

// Panels that go through one layer after the other: enough to pay for the calls, and for each
// layer's weights to serve more rows; few enough for the caches.
inline constexpr std::int64_t kGroupPanels = 4;

}  // namespace ribbit::cpu
