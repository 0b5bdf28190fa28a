#pragma once
// Mean-field steps whose rows go along two paths (mlp_row_noise.h): shards of a batch, or a batch
// split over the team.

#include "cpu/density/evaluator.h"
#include "cpu/density/mean_field.h"

namespace ribbit::cpu {

// Adds one sample's gradients to mean_gradient and scale_gradient. shared.theta holds the drawn
// weights. split: the batch is split over the team; else m.own is a space of kRowNoise. False when
// cancelled; ends with a barrier. prior: the weight of the sampled log prior, 0 without it.
template <class T>
bool row_noise_gradient(const Evaluator<T>& evaluator, const Member<T>& m, bool split,
                        const VariationalSteps& steps, std::int64_t i, std::int64_t sample,
                        const T* mean, double prior);

}  // namespace ribbit::cpu
