#include "cpu/density/evaluator.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace ribbit::cpu {

template <class T>
Evaluator<T>::Evaluator(Network network, std::vector<PriorSegment> prior, LikelihoodKind likelihood,
                        const LikelihoodParameters& parameters, const Rows<T>& x, const T* y,
                        std::int64_t rows, Temperatures temperatures, bool masks, bool concrete,
                        const T* centre)
    : network_(std::move(network)),
      masked_(masks),
      concrete_(concrete),
      plan_(network_, masks, concrete),
      graph_(network_.plain() ? nullptr : std::make_unique<const GraphPlan>(network_, masks)),
      row_noise_plan_(network_.plain() ? nullptr
                                       : std::make_unique<const GraphPlan>(network_, masks, false)),
      prior_(std::move(prior)),
      centre_(centre),
      likelihood_(likelihood),
      traits_(traits_of(likelihood)),
      constants_(likelihood_constants(likelihood, parameters)),
      x_(x),
      y_(y),
      rows_(rows),
      dim_(network_.dim() + (traits_.learns_noise ? 1 : 0) + plan_.rates),
      targets_(columns_of(traits_.shape, network_.output_size())),
      temperatures_(temperatures) {
  if (traits_.shape == LikelihoodShape::kMeanAndScale && network_.output_size() % 2 != 0) {
    throw std::invalid_argument("[LogDensity] expected an even number of outputs, got " +
                                std::to_string(network_.output_size()));
  }
  if (concrete && graph_) {
    throw std::invalid_argument("[LogDensity] expected a network of dense layers to learn rates");
  }
  if (concrete && centre != nullptr) {
    throw std::invalid_argument("[LogDensity] expected priors of mean 0 to learn rates");
  }
  std::int64_t end = 0;
  for (const PriorSegment& segment : prior_) {
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
      row_constant_[static_cast<std::size_t>(n)] = sum;
    }
  }
}

template <class T>
std::int64_t Evaluator<T>::shard_count(std::int64_t rows) const {
  // Each shard costs a pass over dim scalars: cheap while they stay in cache, else it needs more
  // rows to be worth it.
  const std::int64_t rows_per_shard =
      dim_ * static_cast<std::int64_t>(sizeof(T)) > (128 << 10) ? 1024 : 256;
  std::int64_t shards = 1;
  if (graph_) {
    // A panel is work enough for a shard, as long as adding up the shards costs little beside it.
    constexpr std::int64_t kPerParameter = 16;  // multiplications
    const std::int64_t work = 3 * rows * network_.multiplications();
    while (shards < kMostShards && rows >= 2 * shards * kPanel &&
           work >= 2 * shards * kPerParameter * dim_) {
      shards *= 2;
    }
    return shards;
  }
  while (shards < kMostShards && rows >= 2 * shards * rows_per_shard) shards *= 2;
  return shards;
}

template <class T>
const Batch<T>& Evaluator<T>::full_batch() const {
  std::call_once(packed_once_, [this] {
    auto batch = std::make_unique<Batch<T>>();
    if (graph_) {
      batch->x.rows = rows_;  // packed panel by panel: a copy of images would double their memory
    } else {
      pack_rows(x_, network_.input_size(), nullptr, rows_, batch->x);
    }
    pack_rows(y_, targets_, nullptr, rows_, batch->y);
    for (const double c : row_constant_) batch->constant += c;
    full_batch_ = std::move(batch);
  });
  return *full_batch_;
}

template <class T>
Batch<T> Evaluator<T>::batch_of(const std::int64_t* subset, std::int64_t count) const {
  Batch<T> batch;
  if (graph_) {
    batch.x.rows = count;
    batch.numbers = subset;
  } else {
    pack_rows(x_, network_.input_size(), subset, count, batch.x);
  }
  pack_rows(y_, targets_, subset, count, batch.y);
  batch.scale = static_cast<double>(rows_) / static_cast<double>(count);
  for (std::int64_t i = 0; !row_constant_.empty() && i < count; ++i) {
    batch.constant += row_constant_[static_cast<std::size_t>(subset[i])];
  }
  return batch;
}

template <class T>
void Evaluator<T>::run_shard(const Member<T>& m, const T* theta, std::int64_t shard,
                             Wanted wanted) const {
  if (graph_) return graph_shard(m, theta, shard, wanted);
  const Batch<T>& batch = m.batch;
  const std::int64_t begin = m.first_panel(shard), end = m.last_panel(shard);
  const PanelLikelihood<T> likelihood(*this, batch, theta, wanted.values);
  const std::int64_t outputs = network_.output_size();
  T* grad = m.shard_grad(shard, dim_);
  const T* packed = packs(m) ? m.shared.packed.data() : nullptr;
  Workspace<T>& space = m.own;
  if (wanted.gradient) {
    std::fill(grad, grad + dim_, T(0));
    clear_narrow_sums(plan_, space);
  }
  double ll = 0, noise = 0;
  std::vector<double> rates(static_cast<std::size_t>(plan_.rates), 0.0);
  std::vector<double> panel_rates(static_cast<std::size_t>(space.group()) * rates.size());
  for (std::int64_t block = begin; block < end; block += space.block()) {
    const std::int64_t stop = std::min(block + space.block(), end);
    for (std::int64_t p = block; p < stop; p += space.group()) {
      const std::int64_t at = p - block, count = std::min(space.group(), stop - p);
      const T* f = forward_group(plan_, theta, packed, batch.x.panel(p), at, count, wanted.gradient,
                                 space, m.masks, p * kPanel, batch.x.rows - p * kPanel);
      T* delta = output_delta(plan_, at, space);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t place = i * outputs * kPanel;
        likelihood(batch, p + i, f + place, delta + place, ll, noise);
      }
      if (!wanted.gradient) continue;
      std::fill(panel_rates.begin(), panel_rates.end(), 0.0);
      backward_group(plan_, theta, packed, batch.x.panel(p), at, count, true, space,
                     panel_rates.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(count) * rates.size(); ++i) {
        rates[i % rates.size()] += panel_rates[i];
      }
    }
    if (wanted.gradient) {
      const std::int64_t rows = std::min(stop * kPanel, batch.x.rows) - block * kPanel;
      block_gradient(plan_, batch.x.panel(block), 0, rows, 0, 1, space, space.scratch(), grad);
    }
    if (m.team.cancel().check()) return;
  }
  if (wanted.gradient) add_narrow_sums(plan_, space, grad);
  if (likelihood.learned && wanted.gradient) {
    grad[noise_at()] = static_cast<T>(likelihood.weight * noise);
  }
  for (std::size_t l = 0; wanted.gradient && l < rates.size(); ++l) {
    grad[logits_at() + static_cast<std::int64_t>(l)] = static_cast<T>(rates[l]);
  }
  m.shared.shard_ll[shard] = ll;
}

// Whether weights are worth packing: not large ones for the few panels of a chain of one thread,
// which read them once.
template <class T>
bool Evaluator<T>::packs(const Member<T>& m) const {
  constexpr std::int64_t kFewPanels = 4;
  return graph_ || m.team.size() > 1 || m.shards > 1 || plan_.packs_small(sizeof(T)) ||
         panel_count(m.batch.x.rows) > kFewPanels;
}

// Fills the team's shards; theta may have been written by its owner just before. Ends with a
// barrier; false when cancelled.
template <class T>
bool Evaluator<T>::run_shards(const Member<T>& m, const T* theta, Wanted wanted) const {
  T* packed = m.shared.packed.data();
  const auto pack = [&](int member, int members) {
    if (graph_) {
      pack_graph(*graph_, theta, wanted.gradient, member, members, packed);
    } else {
      pack_weights(plan_, theta, wanted.gradient, member, members, packed);
    }
  };
  if (!packs(m)) {
    run_shard(m, theta, 0, wanted);
    return !m.team.cancel().cancelled();
  }
  if (chunk_count() == 1) {
    // Member<T> 0 owns all of theta: packing the little there is costs less than another barrier.
    if (m.index == 0) pack(0, 1);
  } else {
    if (!m.barrier()) return false;
    pack(m.index, m.team.size());
  }
  if (!m.barrier()) return false;
  if (m.splits()) return split_shard(m, theta, wanted);
  for (std::int64_t s = m.first(m.shards); s < m.last(m.shards); ++s) {
    run_shard(m, theta, s, wanted);
  }
  return m.barrier();
}

// 1 - p of the learned rate before the weights at an offset; 1 where there is none.
template <class T>
double Evaluator<T>::keep_of(const T* theta, std::int64_t offset) const {
  for (std::size_t s = 1; s < plan_.stages.size(); ++s) {
    const Stage &below = plan_.stages[s - 1], &stage = plan_.stages[s];
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
  for (std::size_t s = 1; s < plan_.stages.size(); ++s) {
    const Stage &below = plan_.stages[s - 1], &stage = plan_.stages[s];
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
