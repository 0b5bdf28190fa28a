#include "cpu/density/isokinetic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "core/philox_hd.h"
#include "cpu/density/chains.h"
#include "cpu/system/faults.h"

namespace ribbit::cpu {
namespace {

// A slice of one chain's steps, as each member of its team makes them: all members know all numbers
// of the chain, and each moves the chunks that it combines.
template <class T>
class IsokineticPath {
 public:
  IsokineticPath(const Evaluator<T>& evaluator, const IsokineticSteps<T>& all, Member<T>& member,
                 const Slice& slice)
      : evaluator_(evaluator),
        all_(all),
        m_(member),
        chain_(slice.chain),
        begin_(slice.begin(all.num_steps[chain_])),
        end_(slice.end(all.num_steps[chain_])),
        scheme_(integrator_scheme(all.integrator)),
        step_(all.step_size[chain_]),
        dim_(static_cast<double>(evaluator.dim())),
        level_(static_cast<T>(fault_factor(Fault::kNoiseScale, 1.1) *
                              refresh_level(step_, all.length[chain_], dim_))),
        scale_(all.scale != nullptr ? all.scale + chain_ * all.scale_stride : nullptr),
        matrices_(all.mixing.matrices + chain_ * all.mixing.stride),
        velocity_(all.velocity + chain_ * evaluator.dim()),
        turned_(member.shared.far_velocity.data()),
        near_{all.position + chain_ * evaluator.dim(), member.grad, member.grad},
        far_{member.shared.far_position.data(), member.shared.far_grad.data(),
             member.shared.far_grad.data()},
        terms_{all.terms[2 * chain_], all.terms[2 * chain_ + 1]} {
    if (!mixes()) return;
    near_.mixed = member.shared.mixed_grad.data();
    far_.mixed = near_.mixed + evaluator.dim();
  }

  // `ended`: whether the chain has, before and after. False when cancelled.
  bool run(bool* ended) {
    if (*ended || begin_ == end_) return true;
    double* errors = all_.energy_error + chain_ * all_.columns;
    double energy = begin_ > 0 ? all_.energy[chain_] : 0.0;
    for_chunks([&](std::int64_t begin, std::int64_t end) {
      mix(near_.grad, begin, end, near_.mixed + begin);
      note_sums(0, near_.mixed, velocity_, begin, end);
    });
    if (!add_up(0)) return false;
    std::int64_t i = begin_;
    bool finite = true;
    for (; i < end_ && (finite || all_.turns); ++i) {
      const double size = sums_[2];  // of the velocity before the step
      double gained = 0, terms[2];
      if (!flows(&gained)) return false;
      const IsokineticKick last = kick(scheme_.stages);
      gained += last.energy;
      temper(terms);
      const double error = gained - ((terms[0] - terms_[0]) + (terms[1] - terms_[1]));
      // Its square is what warmup and the statistics take.
      finite = std::isfinite(error * error) && std::isfinite(sums_[0]);
      if (finite) {
        std::swap(near_, far_);
        std::copy(terms, terms + 2, terms_);
        energy += gained;
        refresh(i, turned_, last.along, last.keep);
      } else {
        m_.grad = near_.grad;
        refresh(i, velocity_, 0.0, -1.0 / std::sqrt(size));
      }
      if (m_.index == 0) errors[i] = finite ? error : std::numeric_limits<double>::quiet_NaN();
      if (!add_up(1) || !m_.settle()) return false;
    }
    finish(errors + i, energy);
    if (m_.index == 0) *ended = !finite && !all_.turns;
    return true;
  }

 private:
  struct Place {
    T *position, *grad, *mixed;  // (dim,); mixed: the gradient, mixed where anything is
  };
  bool mixes() const { return all_.mixing.count != 0; }

  // Elements [begin, end) of what the matrices make of `in` (dim,), to out (end - begin,).
  void mix(const T* in, std::int64_t begin, std::int64_t end, T* out) const {
    if (!mixes()) return;
    std::int64_t at = begin;
    const T* matrix = matrices_;
    for (std::int64_t k = 0; k < all_.mixing.count; ++k) {
      const InputBlock& block = all_.mixing.blocks[k];
      const std::int64_t first = std::max(at, block.first),
                         last = std::min(end, block.first + block.size());
      if (first < last) {
        std::copy(in + at, in + first, out + (at - begin));
        for (at = first; at < last;) {
          const std::int64_t row = (at - block.first) / block.outputs,
                             column = (at - block.first) % block.outputs,
                             n = std::min(block.outputs - column, last - at);
          kernels<T>().mix_inputs(matrix + row * block.inputs, in + block.first + column,
                                  block.inputs, block.outputs, n, out + (at - begin));
          at += n;
        }
      }
      matrix += block.inputs * block.inputs;
    }
    std::copy(in + at, in + end, out + (at - begin));
  }

  template <class Body>
  void for_chunks(const Body& body) const {
    const std::int64_t count = evaluator_.chunk_count();
    for (std::int64_t c = m_.first(count); c < m_.last(count); ++c) {
      body(c * kChunk, std::min(evaluator_.dim(), (c + 1) * kChunk));
    }
  }
  const T* scale(std::int64_t begin) const { return scale_ != nullptr ? scale_ + begin : nullptr; }

  // Sums over a chunk, into one of two sets: a member may write one while another still reads the
  // other.
  void note_sums(int set, const T* grad, const T* velocity, std::int64_t begin, std::int64_t end) {
    const std::int64_t place = set * evaluator_.chunk_count() + begin / kChunk;
    kernels<T>().isokinetic_sums(grad + begin, scale(begin), velocity + begin, end - begin,
                                 m_.shared.chunk_sums.data() + 3 * place);
  }
  // The chunks in order, whatever the team. False when cancelled.
  bool add_up(int set) {
    if (!m_.barrier()) return false;
    const std::int64_t count = evaluator_.chunk_count();
    const double* sums = m_.shared.chunk_sums.data() + 3 * set * count;
    std::fill(sums_, sums_ + 3, 0.0);
    for (std::int64_t c = 0; c < 3 * count; ++c) sums_[c % 3] += sums[c];
    return true;
  }

  IsokineticKick kick(int stage) const {
    const double step = scheme_.kick[stage] * step_;
    const double size = fault_factor(Fault::kStrongKicks, 1.2) *
                        fault_factor(Fault::kFullKicks, 2.0) *
                        fault_factor(Fault::kGradientSign, -1.0) * step;
    IsokineticKick made = isokinetic_kick(sums_[0], sums_[1], sums_[2], size, dim_);
    if (planted(Fault::kStrongKicks)) {
      made.energy = isokinetic_kick(sums_[0], sums_[1], sums_[2], step, dim_).energy;
    }
    made.energy *= fault_factor(Fault::kNoKinetic, 0.0) * fault_factor(Fault::kKickEnergy, 1.1);
    return made;
  }

  // All but the last kick of a step: from `near` to `far`, where m_.grad then is the gradient.
  bool flows(double* gained) {
    for (int stage = 0; stage < scheme_.stages; ++stage) {
      const IsokineticKick turn = kick(stage);
      *gained += turn.energy;
      const Place& here = stage == 0 ? near_ : far_;
      const T *u = stage == 0 ? velocity_ : turned_, *q = here.position, *slope = here.mixed;
      const T along = static_cast<T>(turn.along), keep = static_cast<T>(turn.keep),
              far = static_cast<T>(scheme_.drift[stage] * step_);
      for_chunks([&](std::int64_t begin, std::int64_t end) {
        if (mixes()) {  // the whole direction comes first
          kernels<T>().isokinetic_refresh(slope + begin, scale(begin), u + begin, u + begin,
                                          end - begin, along, keep, T(0), turned_ + begin);
        } else {
          kernels<T>().isokinetic_move(slope + begin, scale(begin), u + begin, q + begin,
                                       end - begin, along, keep, far, turned_ + begin,
                                       far_.position + begin);
        }
      });
      if (mixes() && !drift(q, far)) return false;
      m_.grad = far_.grad;
      const Wanted wanted{stage + 1 == scheme_.stages, true};
      if (!evaluator_.run_shards(m_, far_.position, wanted)) return false;
      evaluator_.combine(m_, far_.position, wanted, [&](std::int64_t begin, std::int64_t end) {
        if (!mixes()) note_sums(0, far_.grad, turned_, begin, end);
      });
      if (mixes()) {
        if (!m_.barrier()) return false;  // rows of a block lie in several chunks
        for_chunks([&](std::int64_t begin, std::int64_t end) {
          mix(far_.grad, begin, end, far_.mixed + begin);
          note_sums(0, far_.mixed, turned_, begin, end);
        });
      }
      if (!add_up(0)) return false;
    }
    return true;
  }

  // From q along the mixed direction, to far_.position. False when cancelled.
  bool drift(const T* q, T step) {
    if (!m_.barrier()) return false;
    alignas(64) T away[kChunk];
    for_chunks([&](std::int64_t begin, std::int64_t end) {
      mix(turned_, begin, end, away);
      kernels<T>().isokinetic_drift(scale(begin), away, q + begin, end - begin, step,
                                    far_.position + begin);
    });
    return true;
  }

  // The terms of the log density, as Python tempers them.
  void temper(double* terms) const {
    const Temperatures& t = evaluator_.temperatures();
    evaluator_.sum_terms(m_, terms, terms + 1);
    terms[0] /= t.likelihood * t.posterior;
    terms[1] /= t.posterior;
  }

  // The velocity of the next step, from that of this one; and its sums.
  void refresh(std::int64_t i, const T* from, double along, double keep) {
    const std::uint64_t step = all_.first_step + static_cast<std::uint64_t>(i);
    const std::uint32_t c1 = counter_step(step), c2 = all_.chain_ids[chain_],
                        c3 = counter_purpose(kPurposeRefresh, 0, step);
    alignas(64) T noise[kChunk];
    for_chunks([&](std::int64_t begin, std::int64_t end) {
      if (level_ > T(0)) {
        kernels<T>().fill_normal(noise, end - begin, static_cast<std::uint64_t>(begin), all_.seed,
                                 c1, c2, c3);
      } else {
        std::fill(noise, noise + (end - begin), T(0));
      }
      kernels<T>().isokinetic_refresh(near_.mixed + begin, scale(begin), from + begin, noise,
                                      end - begin, static_cast<T>(along), static_cast<T>(keep),
                                      level_, velocity_ + begin);
      note_sums(1, near_.mixed, velocity_, begin, end);
    });
  }

  // Leaves the chain in the caller's arrays.
  void finish(double* rest, double energy) {
    T* position = all_.position + chain_ * evaluator_.dim();
    T* grad = all_.grad + chain_ * evaluator_.dim();
    if (near_.position != position) {
      for_chunks([&](std::int64_t begin, std::int64_t end) {
        std::copy(near_.position + begin, near_.position + end, position + begin);
        std::copy(near_.grad + begin, near_.grad + end, grad + begin);
      });
    }
    if (m_.index != 0) return;
    std::fill(rest, all_.energy_error + (chain_ + 1) * all_.columns, 0.0);
    std::copy(terms_, terms_ + 2, all_.terms + 2 * chain_);
    all_.energy[chain_] = energy;
  }

  const Evaluator<T>& evaluator_;
  const IsokineticSteps<T>& all_;
  Member<T>& m_;
  const std::int64_t chain_, begin_, end_;  // steps of the call
  const IntegratorScheme scheme_;
  const double step_, dim_;
  const T level_;
  const T* scale_;
  const T* matrices_;
  T *velocity_, *turned_;  // between steps; within one
  Place near_, far_;       // where the chain is, and where the step leads
  double terms_[2];        // of the log density at `near`
  double sums_[3];         // gg, gu, uu of core/isokinetic_hd.h
};

// What a slice should have at least, 0.5 ms of a core: numbers of a chain that another core had
// before come from there, which takes microseconds.
constexpr double kSliceFlops = 2.5e7;

}  // namespace

template <class T>
bool isokinetic(const Evaluator<T>& evaluator, const IsokineticSteps<T>& all, Poll* poll) {
  const Batch<T>& rows = evaluator.full_batch();
  const int stages = integrator_scheme(all.integrator).stages;
  double passes = 0;
  for (std::int64_t c = 0; c < all.chains; ++c) passes += static_cast<double>(all.num_steps[c]);
  passes *= stages;
  const double flops =
      static_cast<double>(all.columns) * stages * evaluator.gradient_flops(rows.x.rows);
  const auto most = static_cast<std::int64_t>(std::clamp(flops / kSliceFlops, 1.0, 64.0));
  const auto ended = std::make_unique<bool[]>(static_cast<std::size_t>(all.chains));
  return evaluator.on_slices(
      all.chains, most, rows, passes, all.grad, poll,
      [&](Member<T>& m, const Slice& slice) {
        bool* over = &ended[static_cast<std::size_t>(slice.chain)];
        return IsokineticPath<T>(evaluator, all, m, slice).run(over);
      },
      [&](TeamSpace<T>& space) {
        for (Buffer<T>* b : {&space.far_position, &space.far_velocity, &space.far_grad}) {
          b->resize(evaluator.dim());
        }
        if (all.mixing.count != 0) space.mixed_grad.resize(2 * evaluator.dim());
        space.chunk_sums.resize(static_cast<std::size_t>(6 * evaluator.chunk_count()));
      });
}

#define RIBBIT_INSTANTIATE(T) \
  template bool isokinetic(const Evaluator<T>&, const IsokineticSteps<T>&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
