#pragma once
// Faults that tests plant to show that the statistical gates notice them. Only the module
// _core_faults (CMake option RIBBIT_FAULTS) has them. Tests load it in place of _core.

namespace ribbit::cpu {

enum class Fault {
  kNone,
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
  kDropoutScale,
};

#ifdef RIBBIT_FAULTS
struct NamedFault {
  Fault fault;
  const char* name;
};
inline constexpr NamedFault kFaults[] = {
    {Fault::kNoAccept, "no accept step"},
    {Fault::kEnergySign, "wrong sign of the energy"},
    {Fault::kStaleEnergy, "stale energy"},
    {Fault::kNoKinetic, "missing kinetic term"},
    {Fault::kMomentumVariance, "momentum variance +10 %"},
    {Fault::kFullKicks, "full instead of half kicks"},
    {Fault::kGradientSign, "wrong sign of the gradient"},
    {Fault::kPriorPrecision, "prior precision +5 %"},
    {Fault::kNoiseScale, "noise scale +10 %"},
    {Fault::kNoBatchScale, "missing N/n"},
    {Fault::kEqualWeights, "equal weights of states"},
    {Fault::kLastState, "last state of a subtree"},
    {Fault::kNewSubtree, "new subtree always accepted"},
    {Fault::kNoInnerCheck, "no U-turn check inside a subtree"},
    {Fault::kKickEnergy, "energy of the kicks +10 %"},
    {Fault::kStrongKicks, "kicks +20 %"},
    {Fault::kNoRoot2, "missing sqrt 2"},
    {Fault::kNoNoise, "no noise"},
    {Fault::kHalfGradient, "half the gradient"},
    {Fault::kUnscaledVelocity, "velocity not rescaled"},
    {Fault::kMeanKl, "mean instead of sum KL"},
    {Fault::kKlScale, "KL +10 %"},
    {Fault::kKlPerBatch, "KL counted once per batch"},
    {Fault::kDropoutScale, "dropout scaled by 1 - rate"},
};

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
