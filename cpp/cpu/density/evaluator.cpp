#include "cpu/density/evaluator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "cpu/system/faults.h"

namespace ribbit::cpu {
namespace {

// Known scales, or as many numbers as scales are learned.
template <class T>
std::vector<T> scales_of_noise(const LikelihoodParameters& parameters) {
  std::vector<T> found(static_cast<std::size_t>(std::max(1, parameters.noises)),
                       static_cast<T>(parameters.scale));
  for (std::size_t k = 0; parameters.scales != nullptr && k < found.size(); ++k) {
    found[k] = static_cast<T>(parameters.scales[k]);
  }
  return found;
}

}  // namespace

template <class T>
Evaluator<T>::Evaluator(Network network, std::vector<PriorSegment> prior, LikelihoodKind likelihood,
                        const LikelihoodParameters& parameters, const Rows<T>& x, const T* y,
                        std::int64_t rows, Temperatures temperatures, bool masks, bool concrete,
                        const T* centre, std::optional<LastLayer> last,
                        std::vector<ScaleSegment> scales, const T* weights)
    : network_(std::move(network)),
      last_(std::move(last)),
      masked_(masks),
      concrete_(concrete),
      pass_(make_network_pass<T>(network_, masks, concrete)),
      touched_(last_ ? std::vector<TouchedTable>{} : pass_->touched_tables()),
      prior_(std::move(prior)),
      centre_(centre),
      likelihood_(likelihood),
      traits_(traits_of(likelihood)),
      constants_(likelihood_constants(likelihood, parameters)),
      scales_of_noise_(scales_of_noise<T>(parameters)),
      x_(x),
      y_(y),
      weights_(weights),
      rows_(rows),
      dim_(noise_at() + learned_noises() + pass_->rates()),
      targets_(last_ ? last_->outputs : columns_of(traits_.shape, network_.output_size())),
      all_rows_(rows),
      total_rows_(weights != nullptr ? std::accumulate(weights, weights + rows, 0.0)
                                     : static_cast<double>(rows)),
      temperatures_(temperatures) {
  if (traits_.shape == LikelihoodShape::kMeanAndScale && network_.output_size() % 2 != 0) {
    throw std::invalid_argument("[LogDensity] expected an even number of outputs, got " +
                                std::to_string(network_.output_size()));
  }
  if (noises() != 1 && (noises() != network_.output_size() || !traits_.scales_noise() || last_)) {
    throw std::invalid_argument("[LogDensity] expected 1 scale of the noise or one per output");
  }
  if (concrete && (!masks || pass_->mlp_plan() == nullptr)) {
    throw std::invalid_argument(
        "[LogDensity] expected masks of a network of dense layers to learn rates");
  }
  if (concrete && centre != nullptr) {
    throw std::invalid_argument("[LogDensity] expected priors of mean 0 to learn rates");
  }
  if (!scales.empty()) {
    if (masks || last_) {
      throw std::invalid_argument("[LogDensity] expected learned scales alone");
    }
    const std::int64_t before = dim_;
    for (const ScaleSegment& s : scales) {
      dim_ =
          std::max({dim_, before + s.first + s.count, before + s.global + 1, before + s.slab + 1});
    }
    scales_ = std::make_unique<const Scales<T>>(std::move(scales), network_.dim(), dim_);
  }
  if (last_) {
    const std::int64_t size = last_->alone ? network_.input_size() : network_.output_size();
    const auto terms = static_cast<std::size_t>(last_->terms());
    if (traits_.shape != LikelihoodShape::kQuadratic || masks || dim_ < 1 || last_->outputs < 1 ||
        last_->inputs != size || last_->sd.size() != terms ||
        last_->mean.size() != terms * static_cast<std::size_t>(last_->outputs)) {
      throw std::invalid_argument("[LogDensity] expected a last layer that can be integrated out");
    }
    last_->prepare(temperatures_.posterior);
  }
  std::int64_t end = 0;
  for (PriorSegment& segment : prior_) {
    if (planted(Fault::kPriorPrecision)) segment.a /= std::sqrt(1.05);
    segment.constants = prior_constants(segment.kind, segment.a, segment.b, segment.c);
    for (const double p : segment.constants.p) {
      if (std::isfinite(static_cast<T>(p))) continue;
      throw std::invalid_argument("[LogDensity] expected a prior whose scale the dtype can square");
    }
    if (segment.offset != end || segment.size < 1) {
      throw std::invalid_argument("[LogDensity] expected prior segments that cover theta in order");
    }
    end += segment.size;
  }
  if (end != logits_at()) {
    throw std::invalid_argument("[LogDensity] expected priors for " + std::to_string(logits_at()) +
                                " parameters, got " + std::to_string(end));
  }
  for (const Layer& layer : network_.layers()) {
    for (const Layer::Array& array : layer.arrays()) {
      const bool row_noise = has_row_noise(layer), bias = array.offset == layer.bias_offset;
      if (!row_noise) drawn_[static_cast<std::size_t>(Estimator::kLocal)].push_back(array);
      if (!row_noise || bias)
        drawn_[static_cast<std::size_t>(Estimator::kFlipout)].push_back(array);
    }
  }
  if (traits_.has_constants) {
    row_constant_.resize(static_cast<std::size_t>(rows));
    for (std::int64_t n = 0; n < rows; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < targets_; ++k) {
        sum += constant_of(likelihood, static_cast<double>(y[n * targets_ + k]));
      }
      if (weights_ != nullptr) sum *= static_cast<double>(weights_[n]);
      row_constant_[static_cast<std::size_t>(n)] = sum;
    }
  }
}

template <class T>
void Evaluator<T>::set_shards(std::int64_t shards) {
  if (shards < 1 || shards > kMostShards) {
    throw std::invalid_argument("[LogDensity] expected shards in 1.." +
                                std::to_string(kMostShards) + ", got " + std::to_string(shards));
  }
  shards_ = shards;
}

template <class T>
bool Evaluator<T>::join(const RowGroup& group, std::int64_t total) {
  if (last_) {
    throw std::invalid_argument("[LogDensity] expected a plain density for rows over ranks");
  }
  set_shards(group.shards);
  if (group.ranks < 2) return true;
  if (group.rank < 0 || group.rank >= group.ranks || total < 1) {
    throw std::invalid_argument("[LogDensity] expected a rank among the ranks of the rows");
  }
  const auto first_row = [&](int rank) { return group.first_row(rank, total); };
  if (group.shards < group.ranks || group.panels != panel_count(total) ||
      first_row(group.rank + 1) - first_row(group.rank) != rows_) {
    throw std::invalid_argument("[LogDensity] expected the rows of the rank's shards");
  }
  group_ = std::make_unique<const RowGroup>(group);
  all_rows_ = total;
  if (row_constant_.empty()) return true;
  // Added in the order of the rows, as one process does.
  std::vector<double> each(static_cast<std::size_t>(total));
  std::vector<std::int64_t> sizes;
  for (int r = 0; r < group.ranks; ++r) {
    sizes.push_back((first_row(r + 1) - first_row(r)) * static_cast<std::int64_t>(sizeof(double)));
  }
  if (!group.exchange->meet(false, 0) ||
      !group.exchange->gather(reinterpret_cast<const std::byte*>(row_constant_.data()),
                              reinterpret_cast<std::byte*>(each.data()), sizes)) {
    return false;
  }
  all_constants_ = std::accumulate(each.begin(), each.end(), 0.0);
  return true;
}

template <class T>
std::unique_ptr<Batch<T>> Evaluator<T>::all_rows(bool streamed) const {
  auto batch = std::make_unique<Batch<T>>();
  if (streamed) {
    batch->x.rows = rows_;
    batch->x.features = network_.input_size();
    batch->x.source = x_;
  } else {
    pass_->take_rows(x_, nullptr, rows_, batch->x);
  }
  pack_rows(y_, targets_, nullptr, rows_, batch->y);
  if (weights_ != nullptr) pack_rows(weights_, 1, nullptr, rows_, batch->weights);
  for (const double c : row_constant_) batch->constant += c;
  if (group_ != nullptr) batch->constant = all_constants_;
  return batch;
}

template <class T>
const Batch<T>& Evaluator<T>::packed_batch() const {
  std::call_once(packed_once_, [this] { packed_batch_ = all_rows(false); });
  return *packed_batch_;
}

template <class T>
const Batch<T>& Evaluator<T>::full_batch() const {
  // One shard may be split over threads, and what is integrated out looks at its rows twice.
  if (!x_.streamed || last_ || full_shards() == 1) return packed_batch();
  std::call_once(streamed_once_, [this] { streamed_batch_ = all_rows(true); });
  return *streamed_batch_;
}

template <class T>
Batch<T> Evaluator<T>::batch_of(const std::int64_t* subset, std::int64_t count,
                                const FetchedRows<T>* fetched) const {
  const bool here = fetched == nullptr;
  const std::int64_t* numbers = here ? subset : nullptr;
  Batch<T> batch;
  pass_->take_rows(here ? x_ : fetched->inputs(x_), numbers, count, batch.x);
  pack_rows(here ? y_ : fetched->y.data(), targets_, numbers, count, batch.y);
  if (weights_ != nullptr) {
    pack_rows(here ? weights_ : fetched->weights.data(), 1, numbers, count, batch.weights);
  }
  batch.scale = static_cast<double>(all_rows_) / static_cast<double>(count);
  for (std::int64_t i = 0; !row_constant_.empty() && i < count; ++i) {
    batch.constant += here ? row_constant_[static_cast<std::size_t>(subset[i])]
                           : fetched->constants[static_cast<std::size_t>(i)];
  }
  return batch;
}

template <class T>
void Evaluator<T>::run_shard(const Member<T>& m, const T* theta, std::int64_t shard,
                             Wanted wanted) const {
  ShardLikelihood<T> likelihood(*this, m.batch, theta, wanted.values);
  T* grad = wanted.gradient ? m.shard_grad(shard, dim_) : nullptr;
  std::uint8_t* marks = nullptr;
  if (wanted.gradient && marks_rows(m)) {
    marks = m.shared.marks.data() + shard * touched_.marks();
    touched_.clear(dim_, grad, marks);
  } else if (wanted.gradient) {
    std::fill(grad, grad + dim_, T(0));
  }
  const T* packed = packs(m) ? packed_of(m) : nullptr;
  pass_->run_shard(
      {m.batch.x, m.first_panel(shard), m.last_panel(shard), theta, packed, m.masks, grad, marks},
      m.own, likelihood, m.team.cancel());
  for (std::size_t k = 0; wanted.gradient && k < likelihood.noise.size(); ++k) {
    grad[noise_at() + static_cast<std::int64_t>(k)] =
        static_cast<T>(likelihood.panel.weight * likelihood.noise[k]);
  }
  m.shared.shard_ll[shard] = likelihood.ll;
}

// Whether weights are worth packing: not large ones for the few panels of a chain of one thread,
// which read them once.
template <class T>
bool Evaluator<T>::packs(const Member<T>& m) const {
  constexpr std::int64_t kFewPanels = 4;
  return m.team.size() > 1 || m.shards > 1 || pass_->packs_always() ||
         panel_count(m.batch.x.rows) > kFewPanels;
}

template <class T>
Part Evaluator<T>::part(const Member<T>& m) const {
  constexpr std::int64_t kEven = 32;  // chunks of a member, one of which is a small difference
  const std::int64_t chunks = chunk_count();
  Part part{m.index, m.team.size()};
  if (chunks < kEven * m.team.size()) return part;
  part.begin = std::min(dim_, m.first(chunks) * kChunk);
  part.end = std::min(dim_, m.last(chunks) * kChunk);
  return part;
}

// By all members, where theta may have been written just before; ends with a barrier, false when
// cancelled.
template <class T>
bool Evaluator<T>::pack_weights(const Member<T>& m, const T* theta, bool backward) const {
  T* packed = packed_of(m);
  if (m.twin) {
    pass_->pack(theta, backward, Part{}, packed);
    return true;
  }
  if (chunk_count() == 1) {
    // Member<T> 0 owns all of theta: packing the little there is costs less than another barrier.
    if (m.index == 0) pass_->pack(theta, backward, Part{}, packed);
  } else {
    if (!m.barrier()) return false;
    pass_->pack(theta, backward, part(m), packed);
  }
  return m.barrier();
}

// Fills the team's shards; theta may have been written by its owner just before. Ends with a
// barrier; false when cancelled.
template <class T>
bool Evaluator<T>::run_shards(const Member<T>& m, const T* theta, Wanted wanted) const {
  return scales_ != nullptr ? run_scaled(m, theta, wanted) : run_weights(m, theta, wanted);
}

// With learned scales: from positions to weights and back, each member its chunks. The shards are
// added up here, so that combine() finds the gradient by z where it lies.
template <class T>
bool Evaluator<T>::run_scaled(const Member<T>& m, const T* theta, Wanted wanted) const {
  if (!m.barrier()) return false;  // a chunk needs log scales that another member may have moved
  T* w = m.shared.weights.data();
  const std::int64_t first = m.first(chunk_count()), last = m.last(chunk_count());
  for (std::int64_t c = first; c < last; ++c) {
    scales_->weights(theta, c, w, m.shared.multipliers.data());
  }
  if (!run_weights(m, w, wanted)) return false;
  if (!wanted.gradient) return true;
  for (std::int64_t c = first; c < last; ++c) {
    const std::int64_t begin = c * kChunk, end = std::min(dim_, begin + kChunk);
    if (m.shards > 1 && m.group == nullptr) {
      add_shards(m, begin, end);
    }
    scales_->chain_rule(w, c, m.shared.multipliers.data(), m.grad, m.shared.scale_sums.data());
  }
  return m.barrier();
}

template <class T>
bool Evaluator<T>::run_weights(const Member<T>& m, const T* theta, Wanted wanted) const {
  if (last_) return integrated_shards(m, theta, wanted);
  if (!packs(m)) {
    run_shard(m, theta, 0, wanted);
    return !m.team.cancel().cancelled();
  }
  m.own_pieces(m.own_shards());
  if (!pack_weights(m, theta, wanted.gradient)) return false;
  if (m.splits()) return split_shard(m, theta, wanted);
  if (!m.each_piece(m.own_shards(),
                    [&](std::int64_t s) { run_shard(m, theta, m.first_shard() + s, wanted); })) {
    return false;
  }
  return m.group != nullptr ? share(m, theta, wanted) : m.barrier();
}

// From the sums of the rank's shards to those of all: log likelihoods of the shards, and the
// gradient where combine() then finds it. Ends with a barrier; false when the ranks agree to end.
template <class T>
bool Evaluator<T>::share(const Member<T>& m, const T* theta, Wanted wanted) const {
  Exchange& others = *m.group->exchange;
  const bool leads = m.index == 0;
  const auto agreed = [&](bool on) {
    if (!on) m.team.cancel().cancel();
  };
  if (!m.barrier()) return false;
  if (!wanted.gradient) {
    if (leads) {
      const double* own = m.shared.shard_ll + m.group->own_first();
      const std::vector<double> sent(own, own + m.group->own_shards());
      std::vector<std::int64_t> sizes;
      for (int r = 0; r < m.group->ranks; ++r) {
        sizes.push_back((m.group->first_shard(r + 1) - m.group->first_shard(r)) *
                        static_cast<std::int64_t>(sizeof(double)));
      }
      agreed(others.meet(m.wish->wished(), place_of(theta, dim_)) &&
             others.gather(reinterpret_cast<const std::byte*>(sent.data()),
                           reinterpret_cast<std::byte*>(m.shared.shard_ll), sizes));
    }
    return m.team.gather();
  }
  GradientExchange<T>& exchange = *m.shared.exchange;
  exchange.pack(m.shared.shard_grads.data(), m.first(dim_), m.last(dim_), wanted.values);
  if (!m.barrier()) return false;
  if (leads) {
    agreed(others.meet(m.wish->wished(), place_of(theta, dim_)) &&
           exchange.swap(wanted.values, m.shared.shard_ll));
  }
  if (!m.team.gather()) return false;
  const std::int64_t slice = exchange.slice_size();
  exchange.add(m.first(slice), m.last(slice), wanted.values);
  if (!m.barrier()) return false;
  if (leads) agreed(exchange.gather(wanted.values, m.grad));
  return m.team.gather();
}

// 1 - p of the learned rate before the weights at an offset; 1 where there is none.
template <class T>
double Evaluator<T>::keep_of(const T* theta, std::int64_t offset) const {
  const std::vector<Stage>& stages = pass_->mlp_plan()->stages;
  for (std::size_t s = 1; s < stages.size(); ++s) {
    const Stage &below = stages[s - 1], &stage = stages[s];
    if (below.rate < 0 || stage.layer.weight_offset != offset) continue;
    return 1.0 / (1.0 + std::exp(static_cast<double>(theta[logits_at() + below.rate])));
  }
  return 1.0;
}

template <class T>
void Evaluator<T>::subtract_centre(const T* theta, std::int64_t begin, std::int64_t end,
                                   T* space) const {
  for (std::int64_t i = begin; i < end; ++i) space[i - begin] = theta[i] - centre_[i];
}

// After combine(), by member 0: what goes by the learned rates. A barrier follows; false when
// cancelled.
template <class T>
bool Evaluator<T>::rate_terms(const Member<T>& m, const T* theta, Wanted wanted) const {
  if (!concrete_) return true;
  if (m.index != 0 || wanted.prior == 0.0) return m.barrier();
  const double weight = wanted.prior / temperatures_.posterior;
  const std::vector<Stage>& stages = pass_->mlp_plan()->stages;
  for (std::size_t s = 1; s < stages.size(); ++s) {
    const Stage &below = stages[s - 1], &stage = stages[s];
    if (below.rate < 0) continue;
    const Layer& layer = stage.layer;
    const auto segment = std::find_if(prior_.begin(), prior_.end(), [&](const PriorSegment& p) {
      return p.offset == layer.weight_offset;
    });
    const T logit = theta[logits_at() + below.rate];
    const double l = static_cast<double>(logit), odds = std::exp(l), p = odds / (1.0 + odds);
    const double squares =
        kernels<T>().dot_weighted(theta + layer.weight_offset, nullptr, segment->size) /
        (segment->a * segment->a);
    const auto units = static_cast<double>(layer.in_size);
    // H(p) = log(1 + e^l) - p l; 1 / (1 - p) = 1 + e^l
    m.shared.chunk_prior[0] +=
        units * (std::log1p(std::exp(-std::abs(l))) + std::max(l, 0.0) - p * l) -
        0.5 * squares * (1.0 + odds);
    if (wanted.gradient) {
      m.grad[logits_at() + below.rate] +=
          static_cast<T>(weight * (-units * l * p * (1.0 - p) - 0.5 * squares * odds));
    }
  }
  return m.barrier();
}

// After a barrier, by one member: the untempered terms.
template <class T>
void Evaluator<T>::sum_terms(const Member<T>& m, double* log_likelihood, double* log_prior) const {
  double ll = 0, lp = 0;
  for (std::int64_t s = 0; s < m.shards; ++s) ll += m.shared.shard_ll[s];
  for (const double chunk : m.shared.chunk_prior) lp += chunk;
  *log_likelihood = m.batch.scale * (ll + m.batch.constant);
  *log_prior = lp;
}

template class Evaluator<float>;
template class Evaluator<double>;

}  // namespace ribbit::cpu
