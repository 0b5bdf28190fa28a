#pragma once
// The pass of a network of any layers: one panel at a time, whose rows are packed when it is its
// turn.

#include <mutex>

#include "cpu/network/graph_pass.h"
#include "cpu/network/network_pass.h"

namespace ribbit::cpu {

// Its spaces are a GraphSpace (graph_pass.h), and for two paths a GraphRowNoiseSpace
// (graph_row_noise.h).
template <class T>
class GraphPass final : public NetworkPass<T> {
 public:
  GraphPass(const Network& network, bool masks);

  std::int64_t packed_size() const override { return plan_.packed_size; }
  bool packs_always() const override { return true; }
  void pack(const T* theta, bool backward, const Part& part, T* packed) const override;
  std::unique_ptr<PassSpace> space(PassUse use) const override;
  std::int64_t space_bytes(PassUse use) const override;
  bool large_spaces() const override { return true; }
  std::int64_t shard_count(PassUse use, std::int64_t rows, std::int64_t dim) const override;
  void take_rows(const Rows<T>& x, const std::int64_t* numbers, std::int64_t count,
                 BatchRows<T>& out) const override;
  const T* panels_at(const BatchRows<T>& rows, std::int64_t panel, PassSpace& space) const override;
  std::int64_t group() const override { return 1; }
  typename NetworkPass<T>::Prefix prefix() const override;
  const T* forward(const T* theta, const T* packed, const T* input, std::int64_t panels,
                   const Masks* masks, std::int64_t first, std::int64_t rows, StageRange range,
                   PassSpace& space, Cancel& cancel) const override;
  void run_shard(const ShardArgs<T>& shard, PassSpace& space, PanelLoss<T>& loss,
                 Cancel& cancel) const override;
  std::vector<TouchedTable> touched_tables() const override { return plan_.tables; }
  void pack_row_noise(const T* mean, const T* second, const T* drawn, const Part& part,
                      T* packed_first, T* packed_second) const override;
  void run_row_noise(const RowNoiseArgs<T>& shard, PassSpace& space, PanelLoss<T>& loss,
                     Cancel& cancel) const override;

 private:
  const GraphPlan& row_noise_plan() const;
  // What is asked between the layers of a panel.
  Cancel* between(Cancel& cancel) const {
    return network_.multiplications() * kPanel >= kLongPanels ? &cancel : nullptr;
  }

  Network network_;
  bool masks_;
  GraphPlan plan_;
  // The same, whose layers work on their own: built on first use.
  mutable std::once_flag row_noise_once_;
  mutable std::unique_ptr<const GraphPlan> row_noise_plan_;
};

}  // namespace ribbit::cpu
