#pragma once
// The pass of a network of dense layers alone: groups of panels through a table of stages, their
// values and deltas kept until the weight gradients of a whole block are taken together.

#include "cpu/network/mlp_plan.h"
#include "cpu/network/network_pass.h"

namespace ribbit::cpu {

// Its spaces are a Workspace (mlp_pass.h), and for two paths a RowNoiseSpace (mlp_row_noise.h).
template <class T>
class MlpPass final : public NetworkPass<T> {
 public:
  MlpPass(const Network& network, bool masks, bool concrete);

  std::int64_t packed_size() const override { return plan_.packed_size; }
  bool packs_always() const override { return plan_.packs_small(sizeof(T)); }
  void pack(const T* theta, bool backward, const Part& part, T* packed) const override;
  std::unique_ptr<PassSpace> space(PassUse use) const override;
  std::int64_t space_bytes(PassUse use) const override;
  bool large_spaces() const override { return false; }
  std::int64_t shard_count(PassUse use, std::int64_t rows, std::int64_t dim) const override;
  void take_rows(const Rows<T>& x, const std::int64_t* numbers, std::int64_t count,
                 BatchRows<T>& out) const override;
  const T* panels_at(const BatchRows<T>& rows, std::int64_t panel, PassSpace&) const override {
    return rows.panel(panel);
  }
  std::int64_t group() const override { return kGroupPanels; }
  typename NetworkPass<T>::Prefix prefix() const override;
  const T* forward(const T* theta, const T* packed, const T* input, std::int64_t panels,
                   const Masks* masks, std::int64_t first, std::int64_t rows, StageRange range,
                   PassSpace& space, Cancel& cancel) const override;
  void run_shard(const ShardArgs<T>& shard, PassSpace& space, PanelLoss<T>& loss,
                 Cancel& cancel) const override;
  void pack_row_noise(const T* mean, const T* second, const T* drawn, const Part& part,
                      T* packed_first, T* packed_second) const override;
  void run_row_noise(const RowNoiseArgs<T>& shard, PassSpace& space, PanelLoss<T>& loss,
                     Cancel& cancel) const override;
  int rates() const override { return plan_.rates; }
  const MlpPlan* mlp_plan() const override { return &plan_; }

 private:
  MlpPlan plan_;
  std::int64_t inputs_, outputs_;
};

}  // namespace ribbit::cpu
