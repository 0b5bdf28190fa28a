#pragma once
// Chains of HMC or NUTS.

#include <string>
#include <utility>
#include <vector>

#include "chains/chains.h"
#include "chains/fields.h"
#include "chains/hamiltonian_state.h"
#include "chains/nuts.h"
#include "density/density.h"

namespace ribbit {

// Whether loaded chains are of a target, by fingerprints: yes; they have other parts, because the
// bytes come from another language; or one of the two is unknown.
enum class Match { kSame, kOtherParts, kUnknown };

// D: the density. K: Hmc or Nuts.
template <class T, class D, class K>
class HamiltonianChains final : public Chains<T> {
 public:
  static constexpr bool kTrees = std::is_same_v<K, Nuts>;

  HamiltonianChains(const D& density, const K& kernel, Run run, Fingerprint fingerprint);
  // Takes the fields of save(), except the fields of the run.
  void read(const FieldReader& reader, Match match);

  bool start(const T* position, cpu::Poll* poll) override;
  bool advance(Block<T>& block, std::int64_t most, double seconds, cpu::Poll* poll) override;
  std::string save() const override;
  Summary summary() const override;
  bool position(T* out, cpu::Poll* poll) const override;
  std::uint64_t step() const override { return state_.step; }
  std::int64_t full_dim() const override { return dim() + weights_; }
  const std::vector<Statistic>& columns() const override { return columns_; }

 private:
  using State = HamiltonianState<T>;
  // A call of advance(). It works on a copy of the state.
  struct Call {
    State& state;
    Totals& totals;
    Block<T>& block;
    const std::vector<std::int64_t>& keep;  // transitions of the rows, counted from 0
    double seconds;
    cpu::Poll* poll;
    T* kept = nullptr;                   // (chains, capacity, dim) positions of the rows
    cpu::Buffer<T> reduced{};            // memory of `kept` without the integrated layer
    std::vector<std::uint64_t> steps{};  // steps of the rows that are filled
  };

  std::int64_t dim() const { return density_.dim(); }
  std::int64_t chains() const { return Chains<T>::chains(); }
  std::size_t count() const { return this->run_.chain_ids.size(); }

  void check_kernel() const;
  void check_finite(const char* name, const std::vector<T>& values) const;
  bool evaluate_all(State& state, cpu::Poll* poll) const;
  void check_same_density(const State& before, const State& now) const;
  std::vector<std::int64_t> kept_transitions(const Block<T>& block, std::int64_t most) const;

  // Each of these returns false when cancelled.
  bool move(Call& call, std::int64_t most) const;
  bool move_hmc(Call& call, std::uint64_t from, std::uint64_t stop, double seconds) const;
  bool move_nuts(Call& call, std::uint64_t from) const;
  bool renew_mass(State& state, cpu::Poll* poll) const;
  bool complete_rows(Call& call) const;

  const D& density_;
  const K kernel_;
  const std::int64_t weights_;  // of the layer that is integrated out
  const std::vector<Statistic> columns_;
  State state_;
  Totals totals_;
};

}  // namespace ribbit
