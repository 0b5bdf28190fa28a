#pragma once
// Faults that the statistical gates plant to show that they notice them. Only the module
// _core_faults (CMake option RIBBIT_FAULTS) has them. Tests load it in place of _core.

namespace ribbit::cpu {

enum class Fault : int {
  kNone = -1,
  // Every sampler that has the part
  kNoAccept,
  kEnergySign,
  kStaleEnergy,
  kNoKinetic,
  kMomentumVariance,
  kFullKicks,
  kGradientSign,
  kPriorPrecision,
  kNoiseScale,
  kNoBatchScale,
  // NUTS
  kEqualWeights,
  kLastState,
  kNewSubtree,
  kNoInnerCheck,
  // MCLMC
  kKickEnergy,
  kStrongKicks,
  // Stochastic gradients
  kNoRoot2,
  kNoNoise,
  kHalfGradient,
  kUnscaledVelocity,
  // Fits
  kMeanKl,
  kKlScale,
  kKlPerBatch,
  kInvertedDropout,
  kCount,
};

#ifdef RIBBIT_FAULTS
inline constexpr const char* kFaultNames[] = {
    "no accept step",
    "wrong sign of the energy",
    "stale energy",
    "missing kinetic term",
    "momentum variance +10 %",
    "full instead of half kicks",
    "wrong sign of the gradient",
    "prior precision +5 %",
    "noise scale +10 %",
    "missing N/n",
    "equal weights of states",
    "last state of a subtree",
    "new subtree always accepted",
    "no U-turn check inside a subtree",
    "energy of the kicks +10 %",
    "kicks +20 %",
    "missing sqrt 2",
    "no noise",
    "half the gradient",
    "velocity not rescaled",
    "mean instead of sum KL",
    "KL +10 %",
    "KL counted once per batch",
    "inverted dropout scaling",
};
static_assert(sizeof kFaultNames == static_cast<int>(Fault::kCount) * sizeof *kFaultNames);

inline Fault planted_fault = Fault::kNone;  // changes only while no other call runs
inline bool planted(Fault fault) {
  return planted_fault == fault;
}
// A factor that is 1 without the fault.
inline double fault_factor(Fault fault, double wrong) {
  return planted(fault) ? wrong : 1.0;
}
#else
constexpr bool planted(Fault) {
  return false;
}
constexpr double fault_factor(Fault, double) {
  return 1.0;
}
#endif

}  // namespace ribbit::cpu
