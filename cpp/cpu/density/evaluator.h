#pragma once
// The log posterior of a network on data and its gradient, evaluated by teams of threads:
//
//   log density = (log likelihood / likelihood_temperature + log prior) / temperature
//
// Rows are cut into at most 16 shards by (N, dim) alone; a shard adds its panels in order and a
// fixed tree adds the shards, so no result depends on the number of threads or chains, nor on how
// many processes have the rows (row_group.h).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/likelihood_hd.h"
#include "core/network.h"
#include "core/prior_hd.h"
#include "cpu/density/last_layer.h"
#include "cpu/density/touched_rows.h"
#include "cpu/density/workspaces.h"
#include "cpu/network/scales.h"
#include "cpu/system/shards.h"

namespace ribbit::cpu {

// Parameters are combined in chunks of this size; sums over the prior add chunks in order.
inline constexpr std::int64_t kChunk = 2048;
static_assert(kChunk == kScaleChunk);
// Flops that pay for a thread's barriers where it takes part in a single shard, also where the
// threads share their cores with others (30 us of work).
inline constexpr double kWorthThread = 4e6;

// A run of parameters under one prior (kinds and constants of core/prior_hd.h).
struct PriorSegment {
  std::int64_t offset, size;
  PriorKind kind;
  double a, b, c;
  PriorConstants constants{};  // that follow, by the evaluator
};

struct Temperatures {
  double posterior = 1.0;
  double likelihood = 1.0;
};

// What an evaluation is asked for.
struct Wanted {
  bool values, gradient;
  double prior = 1.0;  // weight of the prior's gradient; 0: neither gradient nor value
};

// Of a shard's features and targets (integrated.cpp).
template <class T>
struct Products;

struct NoPreparation {
  template <class Space>
  void operator()(Space&) const {}
};

template <class T>
class Evaluator {
 public:
  // x: rows of network.input_size(), y: (rows, targets()); both must outlive this object. masks:
  // dropout layers are active, and every pass needs to be told which masks. concrete: their rates
  // are learned, the last parameters are their logits, and the prior's segments end before them.
  // A rate p of K units before weights W with prior N(0, sd^2) adds K H(p), H the binary entropy,
  // and makes the prior's part -|W|^2 / (2 (1 - p) sd^2), without the constants (Gal, Hron and
  // Kendall 2017, eq. 3 and 4, with W divided by 1 - p). centre: (dim,), what the
  // prior is centred at; must outlive this object; null: 0, as learned rates need. last: the layer
  // behind the network is integrated out (last_layer.h): likelihood is a Gaussian, and neither
  // theta nor the prior's segments have its weights. Where it is alone, the network is that layer.
  // scales: those that are learned, the last parameters, without masks and with all layers; the
  // prior is of positions, not of the weights. weights: (rows,), how often each row's term of the
  // log likelihood counts; must outlive this object; null: once.
  Evaluator(Network network, std::vector<PriorSegment> prior, LikelihoodKind likelihood,
            const LikelihoodParameters& parameters, const Rows<T>& x, const T* y, std::int64_t rows,
            Temperatures temperatures, bool masks = false, bool concrete = false,
            const T* centre = nullptr, std::optional<LastLayer> last = std::nullopt,
            std::vector<ScaleSegment> scales = {}, const T* weights = nullptr);

  // Cuts all rows into that many shards, in place of those by shapes; before the first use.
  void set_shards(std::int64_t shards);
  // The rows are those of one rank of a group, from whose shards the rest is known; total: of
  // all ranks. Before the first use, on every rank; false where the exchange ended it.
  bool join(const RowGroup& group, std::int64_t total);

  const Network& network() const { return network_; }
  const NetworkPass<T>& network_pass() const { return *pass_; }
  const std::vector<PriorSegment>& prior() const { return prior_; }
  const T* centre() const { return centre_; }
  bool scaled() const { return scales_ != nullptr; }
  LikelihoodKind likelihood() const { return likelihood_; }
  const LikelihoodTraits& traits() const { return traits_; }
  const Temperatures& temperatures() const { return temperatures_; }
  const LikelihoodConstants& constants() const { return constants_; }
  // Scales of the noise, 1 or one for each output; and how many of them are parameters.
  std::int64_t noises() const { return static_cast<std::int64_t>(scales_of_noise_.size()); }
  std::int64_t learned_noises() const { return traits_.learns_noise ? noises() : 0; }
  // (noises(),): the logarithms in theta where they are learned, else the known scales.
  const T* noise_of(const T* theta) const {
    return traits_.learns_noise ? theta + noise_at() : scales_of_noise_.data();
  }
  const Rows<T>& x() const { return x_; }
  const T* y() const { return y_; }
  const T* row_weights() const { return weights_; }
  bool masked() const { return masked_; }
  bool concrete() const { return concrete_; }
  const LastLayer* last() const { return last_ ? &*last_ : nullptr; }
  std::int64_t dim() const { return dim_; }
  // Of all processes of a group.
  std::int64_t rows() const { return all_rows_; }
  // Number of the first row that is here.
  std::int64_t first_row() const {
    return group_ != nullptr ? group_->first_row(group_->rank, all_rows_) : 0;
  }
  const RowGroup* group() const { return group_.get(); }
  std::int64_t targets() const { return targets_; }
  // Terms of the log likelihood that depend on y alone, weighted, (rows,), or {}.
  const std::vector<double>& row_constants() const { return row_constant_; }
  // Parameters that an estimator draws once for all rows.
  const std::vector<Layer::Array>& drawn(Estimator estimator) const {
    return drawn_[static_cast<std::size_t>(estimator)];
  }
  // Where in theta the log noise and the logits of learned rates lie.
  std::int64_t noise_at() const { return last_ && last_->alone ? 0 : network_.dim(); }
  std::int64_t logits_at() const { return dim_ - pass_->rates(); }

  // How batches are cut, by shapes alone.
  std::int64_t shard_count(std::int64_t rows, PassUse use = PassUse::kGradient) const {
    if (rows == all_rows_ && use == PassUse::kGradient) return full_shards();
    return pass_->shard_count(use, rows, dim_);
  }
  // How a call on some chains goes over a batch: a group's ranks take chain after chain, each with
  // all of its threads, so that they exchange in the same order.
  struct Cut {
    const RowGroup* group;  // null: all rows of the batch are here
    std::int64_t shards, own, pieces, teams;
    std::int64_t threads() const { return most_threads(teams, pieces); }
  };
  Cut cut_of(const Batch<T>& batch, std::int64_t chains) const {
    const bool all = group_ != nullptr && &batch == &full_batch();
    const std::int64_t shards = all ? full_shards() : shard_count(batch.x.rows);
    if (all) return {group_.get(), shards, group_->own_shards(), group_->own_shards(), 1};
    return {nullptr, shards, shards, pieces(batch.x.rows, shards), chains};
  }
  // Calls body(team, member, chain, first_thread) as for_each_chain does.
  template <class Body>
  static void run_chains(const Cut& cut, Crew& crew, std::int64_t chains, Cancel& cancel,
                         const Body& body);
  std::int64_t full_shards() const {
    return shards_ > 0 ? shards_ : pass_->shard_count(PassUse::kGradient, all_rows_, dim_);
  }
  std::int64_t chunk_count() const { return (dim_ + kChunk - 1) / kChunk; }
  std::int64_t pieces(std::int64_t rows, std::int64_t shards) const;  // threads a chain is worth
  double gradient_flops(std::int64_t rows) const {                    // of one gradient
    const auto products = static_cast<double>(last_ ? last_->products() : 0);
    return static_cast<double>(rows) *
           (4.0 * products + 6.0 * static_cast<double>(std::max(dim_, network_.multiplications())));
  }

  // All rows: built on first use. Streamed rows stay where they lie, where a shard packs its own.
  const Batch<T>& full_batch() const;
  // The same, packed beforehand wherever the network does that.
  const Batch<T>& packed_batch() const;
  // The rows of subset (count,); fetched: where they are, with a group.
  Batch<T> batch_of(const std::int64_t* subset, std::int64_t count,
                    const FetchedRows<T>* fetched) const;

  // Workspaces for all threads of a call, kept between calls; and what a thread needs for the
  // values of its rows.
  std::unique_ptr<CallSpace<T>> acquire(int threads, std::int64_t chains, std::int64_t shards,
                                        std::int64_t rows, PassUse use = PassUse::kGradient) const;
  void release(std::unique_ptr<CallSpace<T>> space) const;

  // Runs body(member, chain) on the threads of each chain; passes: gradients in all. prepare: told
  // of the space of each team before. order (chains,): which chain comes first; null: 0, 1, ...
  // False when cancelled.
  template <class Body, class Prepare = NoPreparation>
  bool on_chains(std::int64_t chains, const Batch<T>& batch, double passes, T* grad, Poll* poll,
                 const Body& body, const Prepare& prepare = {},
                 const std::int64_t* order = nullptr) const;
  // The same for work that can be cut: body(member, slice), each chain's slices in order, at most
  // `most` of them.
  template <class Body, class Prepare>
  bool on_slices(std::int64_t chains, std::int64_t most, const Batch<T>& batch, double passes,
                 T* grad, Poll* poll, const Body& body, const Prepare& prepare,
                 const std::int64_t* order = nullptr) const;

  // Whether the members of a team may be twins: each moves its own copy of the few parameters,
  // packs it, and adds up the shards of all, so that they meet once for a gradient and what one of
  // them has written is not fetched by the others but for the shards' sums. For that run_shards()
  // and combine() need grad, theta and a turn of the member itself, a new turn for every gradient.
  bool may_be_twins(std::int64_t shards) const {
    return chunk_count() == 1 && shards > 1 && group_ == nullptr && scales_ == nullptr && !last_ &&
           !concrete_ && touched_.empty();
  }

  // By all members of a team, in this order: fills the team's shards (theta may have been written
  // by its owner just before; ends with a barrier, false when cancelled),
  bool run_shards(const Member<T>& m, const T* theta, Wanted wanted) const;
  // adds them up and calls next(begin, end) on each chunk of the member's,
  template <class Next>
  void combine(const Member<T>& m, const T* theta, Wanted wanted, const Next& next) const;
  // adds what goes by learned rates (a barrier must lie between; ends with one),
  bool rate_terms(const Member<T>& m, const T* theta, Wanted wanted) const;
  // and, after a barrier and by one member, the untempered terms.
  void sum_terms(const Member<T>& m, double* log_likelihood, double* log_prior) const;

  // By all members of a team: weights (K, J) of the layer that is integrated out, given theta, from
  // normals (K, J); by its first member's hand. Ends with a barrier, false when cancelled.
  bool draw_last(const Member<T>& m, const T* theta, const double* normals, T* weights) const;

  // What a member does of every matrix.
  Part part(const Member<T>& m) const;

  // What the prior sees of the parameters [begin, end) of theta, at most kChunk: theta + begin, or
  // their distances from the centre, written to space (end - begin,).
  const T* from_centre(const T* theta, std::int64_t begin, std::int64_t end, T* space) const {
    if (centre_ == nullptr) return theta + begin;
    subtract_centre(theta, begin, end, space);
    return space;
  }

 private:
  std::unique_ptr<Batch<T>> all_rows(bool streamed) const;
  bool share(const Member<T>& m, const T* theta, Wanted wanted) const;
  bool run_scaled(const Member<T>& m, const T* theta, Wanted wanted) const;
  bool run_weights(const Member<T>& m, const T* theta, Wanted wanted) const;
  void run_shard(const Member<T>& m, const T* theta, std::int64_t shard, Wanted wanted) const;
  // Whether rows of large tables are marked by shard. A single shard adds to the gradient itself,
  // and what ranks exchange is dense.
  bool marks_rows(const Member<T>& m) const {
    return !touched_.empty() && m.shards > 1 && m.group == nullptr;
  }
  // Elements [begin, end) of m.grad from several shards, all of them here.
  void add_shards(const Member<T>& m, std::int64_t begin, std::int64_t end) const {
    const T* shard_grads = m.shard_grads(dim_);
    if (!touched_.empty()) {
      touched_.sum(shard_grads, dim_, m.shards, m.shared.marks.data(), begin, end, m.grad);
      return;
    }
    kernels<T>().tree_sum(shard_grads + begin, dim_, m.shards, end - begin, m.grad + begin);
  }
  bool split_shard(const Member<T>& m, const T* theta, Wanted wanted) const;
  void prepare_split(TeamSpace<T>& space, std::int64_t rows, int members) const;
  bool packs(const Member<T>& m) const;
  // Where the member finds the packed weights.
  T* packed_of(const Member<T>& m) const {
    return m.shared.packed.data() + (m.twin ? m.index * pass_->packed_size() : 0);
  }
  bool pack_weights(const Member<T>& m, const T* theta, bool backward) const;
  // Of a last layer that is integrated out.
  LastLayerNoise last_layer_noise(const T* theta) const;
  bool sum_products(const Member<T>& m, const T* theta, bool gradient) const;
  bool integrated_shards(const Member<T>& m, const T* theta, Wanted wanted) const;
  void keep_shards(TeamSpace<T>& space, std::int64_t rows, std::int64_t shards) const;
  bool kept_forward(const Member<T>& m, std::int64_t shard, const T* theta, const T* packed,
                    Products<T>& products) const;
  void kept_backward(const Member<T>& m, std::int64_t shard, const T* theta, const T* packed,
                     T* grad) const;
  double keep_of(const T* theta, std::int64_t offset) const;
  void subtract_centre(const T* theta, std::int64_t begin, std::int64_t end, T* space) const;

  Network network_;
  std::optional<LastLayer> last_;
  bool masked_, concrete_;
  std::unique_ptr<const NetworkPass<T>> pass_;
  TouchedRows touched_;  // tables whose rows are marked; with a last layer that is integrated: none
  std::vector<PriorSegment> prior_;
  const T* centre_;
  LikelihoodKind likelihood_;
  LikelihoodTraits traits_;
  LikelihoodConstants constants_;
  std::vector<T> scales_of_noise_;
  Rows<T> x_;
  const T *y_, *weights_;
  std::int64_t rows_, dim_, targets_;
  std::int64_t all_rows_, shards_ = 0;  // of all ranks; as they were set, 0: by shapes
  std::unique_ptr<const RowGroup> group_;
  double all_constants_ = 0;                 // of the rows of all ranks
  double total_rows_;                        // the sum of their weights
  std::unique_ptr<const Scales<T>> scales_;  // null: there are none
  Temperatures temperatures_;
  // Of each Estimator: parameters that it draws once for all rows: flipout's biases, and all of
  // layers without a second path.
  std::vector<Layer::Array> drawn_[3];
  std::vector<double> row_constant_;  // terms of the log likelihood that depend on y alone, or {}

  // Built on first use.
  mutable std::once_flag packed_once_, streamed_once_;
  mutable std::unique_ptr<Batch<T>> packed_batch_, streamed_batch_;
  mutable std::mutex spaces_mutex_;
  mutable std::vector<std::unique_ptr<CallSpace<T>>> spaces_;  // workspaces no call holds
};

// The log likelihood of a batch at theta, a panel at a time. Here alone the likelihood is scaled by
// N / n and divided by the temperatures.
template <class T>
struct PanelLikelihood {
  const Batch<T>& batch;
  LikelihoodKind kind;
  const LikelihoodConstants& constants;
  int noises, width;     // scales of the noise, and outputs of each
  std::int64_t learned;  // scales that are parameters
  bool values;
  double weight;    // of the gradient
  const T* scales;  // (noises,), or their logs where they are learned

  PanelLikelihood(const Evaluator<T>& evaluator, const Batch<T>& rows, const T* theta, bool wanted)
      : batch(rows),
        kind(evaluator.likelihood()),
        constants(evaluator.constants()),
        noises(static_cast<int>(evaluator.noises())),
        width(static_cast<int>(evaluator.network().output_size()) / noises),
        learned(evaluator.learned_noises()),
        values(wanted),
        weight(rows.scale /
               (evaluator.temperatures().likelihood * evaluator.temperatures().posterior)),
        scales(evaluator.noise_of(theta)) {}

  // f, delta: (outputs, kPanel) of panel p of the batch. Adds to the log likelihood, where values
  // are wanted, and to its derivatives (learned,) by the log noises, unweighted.
  void operator()(std::int64_t p, const T* f, T* delta, double& ll, double* noise) const {
    const T* y = batch.y.panel(p);
    for (int k = 0; k < noises; ++k) {
      const std::int64_t at = static_cast<std::int64_t>(k) * width * kPanel;
      double* const value = values ? &ll : nullptr;
      double* const slope = learned > 0 ? noise + k : nullptr;
      if (batch.weights.rows > 0) {
        kernels<T>().weighted_likelihood_panel(kind, constants, f + at, y + at,
                                               batch.weights.panel(p), width, scales[k], weight,
                                               delta + at, value, slope);
      } else {
        kernels<T>().likelihood_panel(kind, constants, f + at, y + at, width, batch.x.valid(p),
                                      scales[k], weight, delta + at, value, slope);
      }
    }
  }
  // The gradient by the log noises that the panels [0, panels) of each (panels, learned) add up to.
  double noise_gradient(const std::vector<double>& each, std::int64_t panels,
                        std::int64_t k) const {
    double sum = 0;
    for (std::int64_t p = 0; p < panels; ++p) {
      sum += each[static_cast<std::size_t>(p * learned + k)];
    }
    return weight * sum;
  }
};

// Added up over the panels of a shard, in their order.
template <class T>
struct ShardLikelihood final : PanelLoss<T> {
  PanelLikelihood<T> panel;
  double ll = 0;
  std::vector<double> noise;  // by the log noises that are learned

  ShardLikelihood(const Evaluator<T>& evaluator, const Batch<T>& batch, const T* theta, bool wanted)
      : panel(evaluator, batch, theta, wanted), noise(static_cast<std::size_t>(panel.learned)) {}
  void operator()(std::int64_t p, const T* f, T* delta) override {
    panel(p, f, delta, ll, noise.data());
  }
};

// The member's chunks of the log prior and, when wanted, of grad = sum of shards + prior's. Each
// chunk [begin, end) is then given to `next`, while it is in the first-level cache.
template <class T>
template <class Next>
void Evaluator<T>::combine(const Member<T>& m, const T* theta, Wanted wanted,
                           const Next& next) const {
  const KernelTable<T>& k = kernels<T>();
  T* grad = m.grad;
  T away[kChunk];  // from the centre
  for (std::int64_t c = m.first_chunk(chunk_count()); c < m.last_chunk(chunk_count()); ++c) {
    const std::int64_t begin = c * kChunk, end = std::min(dim_, begin + kChunk);
    if (wanted.gradient && scales_ != nullptr) {
      scales_->gather(m.shared.scale_sums.data(), c, grad);
    } else if (wanted.gradient && m.shards > 1 && m.group == nullptr) {
      add_shards(m, begin, end);
    }
    double logp = 0;
    for (const PriorSegment& segment : prior_) {
      if (wanted.prior == 0.0) break;
      const std::int64_t b = std::max(begin, segment.offset);
      const std::int64_t e = std::min(end, segment.offset + segment.size);
      if (b >= e) continue;
      const double keep = concrete_ ? keep_of(theta, segment.offset) : 1.0;
      const PriorConstants constants =
          keep == 1.0
              ? segment.constants
              : prior_constants(segment.kind, segment.a * std::sqrt(keep), segment.b, segment.c);
      k.prior_segment(segment.kind, constants, from_centre(theta, b, e, away), e - b,
                      wanted.prior / temperatures_.posterior,
                      wanted.values && keep == 1.0 ? &logp : nullptr,
                      wanted.gradient ? grad + b : nullptr);
    }
    if (!m.twin || m.index == 0) m.shared.chunk_prior[static_cast<std::size_t>(c)] = logp;
    next(begin, end);
  }
}

}  // namespace ribbit::cpu
