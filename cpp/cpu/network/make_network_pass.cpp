#include "cpu/network/graph_network_pass.h"
#include "cpu/network/mlp_network_pass.h"

namespace ribbit::cpu {

template <class T>
std::unique_ptr<const NetworkPass<T>> make_network_pass(const Network& network, bool masks,
                                                        bool concrete) {
  if (network.plain()) return std::make_unique<const MlpPass<T>>(network, masks, concrete);
  return std::make_unique<const GraphPass<T>>(network, masks);
}

#define RIBBIT_INSTANTIATE(T) \
  template std::unique_ptr<const NetworkPass<T>> make_network_pass(const Network&, bool, bool);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
