// The kernels of one instruction set. Compiled once per set with RIBBIT_ISA naming it; exports one
// symbol, so that the linker can never mix instruction sets.

#include "cpu/isa/concrete-inl.h"
#include "cpu/isa/conv-inl.h"
#include "cpu/isa/dropout-inl.h"
#include "cpu/isa/elementwise-inl.h"
#include "cpu/isa/gram-inl.h"
#include "cpu/isa/isokinetic-inl.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/lanes-inl.h"
#include "cpu/isa/likelihood-inl.h"
#include "cpu/isa/lstm-inl.h"
#include "cpu/isa/mixture-inl.h"
#include "cpu/isa/moments-inl.h"
#include "cpu/isa/no_u_turn-inl.h"
#include "cpu/isa/norm-inl.h"
#include "cpu/isa/permutation-inl.h"
#include "cpu/isa/pool-inl.h"
#include "cpu/isa/prior-inl.h"
#include "cpu/isa/random-inl.h"
#include "cpu/isa/reduce-inl.h"
#include "cpu/isa/row_noise-inl.h"
#include "cpu/isa/tile-inl.h"
#include "cpu/isa/update-inl.h"
#include "cpu/isa/variational-inl.h"
#include "cpu/isa/vec-inl.h"
#include "cpu/isa/weight_gradient-inl.h"

#define RIBBIT_JOIN2(a, b) a##b
#define RIBBIT_JOIN(a, b) RIBBIT_JOIN2(a, b)
#define RIBBIT_TEXT2(a) #a
#define RIBBIT_TEXT(a) RIBBIT_TEXT2(a)

namespace ribbit::cpu {
namespace {

template <class T>
constexpr KernelTable<T> kTable = {
    .lanes = kLanes<T>,
    .tile_outputs = kTileOutputs,
    .pack_tiles = pack_tiles<T>,
    .multiply = multiply<T>,
    .multiply_unpacked = multiply_unpacked<T>,
    .weight_gradient = weight_gradient<T>,
    .sum_rows = sum_rows<T>,
    .convolve = convolve<T>,
    .convolution_gradient = convolution_gradient<T>,
    .convolution_rows = convolution_block<T>,
    .convolution_scratch = convolution_scratch<T>,
    .max_pool = max_pool<T>,
    .max_pool_backward = max_pool_backward<T>,
    .average_pool = average_pool<T>,
    .average_pool_backward = average_pool_backward<T>,
    .add_squares = add_squares<T>,
    .response = response<T>,
    .response_apply = response_apply<T>,
    .response_delta = response_delta<T>,
    .response_backward = response_backward<T>,
    .layer_norm = layer_norm<T>,
    .layer_norm_backward = layer_norm_backward<T>,
    .lstm_step = lstm_step<T>,
    .lstm_backward = lstm_backward<T>,
    .add = add_arrays<T>,
    .accumulate = accumulate<T>,
    .narrow_accumulate = narrow_accumulate<T>,
    .narrow_reduce = narrow_reduce<T>,
    .pack_panel = pack_panel<T>,
    .unpack_panel = unpack_panel<T>,
    .multiply_in_place = multiply_in_place<T>,
    .tree_sum = tree_sum<T>,
    .kick_drift = kick_drift<T>,
    .all_finite = all_finite<T>,
    .turn_products = turn_products<T>,
    .leaf_turn_products = leaf_turn_products<T>,
    .activation_forward = activation_forward<T>,
    .activation_forward_derivative = activation_forward_derivative<T>,
    .mask_panel = mask_panel<T>,
    .concrete_panel = concrete_panel<T>,
    .dot3 = dot3<T>,
    .lane_splits = lane_splits,
    .draw_lanes = draw_lanes<T>,
    .gather_lanes = gather_lanes<T>,
    .accumulate_lanes = accumulate_lanes<T>,
    .finish_lanes = finish_lanes<T>,
    .local_noise = local_noise<T>,
    .sign_panel = sign_panel<T>,
    .product = product<T>,
    .step_in_place = step_in_place<T>,
    .add_product = add_product<T>,
    .prior_segment = prior_segment<T>,
    .likelihood_panel = likelihood_panel<T>,
    .weighted_likelihood_panel = weighted_likelihood_panel<T>,
    .moments_panel = moments_panel<T>,
    .dot_weighted = dot_weighted<T>,
    .fill_normal = fill_normal_block<T>,
    .reparameterize = reparameterize<T>,
    .softplus = softplus_array<T>,
    .update = update<T>,
    .isokinetic_sums = isokinetic_sums<T>,
    .isokinetic_move = isokinetic_move<T>,
    .isokinetic_drift = isokinetic_drift<T>,
    .mix_inputs = mix_inputs<T>,
    .isokinetic_refresh = isokinetic_refresh<T>,
    .noise_gradient = noise_gradient<T>,
    .variational_update = variational_update<T>,
    .sum_log = sum_log<T>,
    .gram = gram_panel<T>,
    .gram_lanes = gram_lanes<T>,
    .gram_finish = gram_finish,
    .sweep = sweep_matrix,
    .fma_loop = fma_loop<T>,
};

}  // namespace

extern const InstructionSet RIBBIT_JOIN(instruction_set_, RIBBIT_ISA);
const InstructionSet RIBBIT_JOIN(instruction_set_, RIBBIT_ISA) = {
    .name = RIBBIT_TEXT(RIBBIT_ISA),
    .f32 = &kTable<float>,
    .f64 = &kTable<double>,
    .fill_words = fill_words,
    .permute_rows = permute_rows,
    .mixture_sums = mixture_sums,
    .mixture_distance = mixture_distance,
    .normal_pairs = normal_pairs,
    .mixture_extent = mixture_extent,
    .mixture_reach = mixture_reach,
    .poisson_sum = poisson_sum,
};

}  // namespace ribbit::cpu
