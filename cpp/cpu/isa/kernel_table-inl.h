#pragma once
// What an instruction set offers: one table of function pointers per scalar type. The files in
// this folder are compiled once per instruction set, so nothing here may have a body.

#include <cstddef>
#include <cstdint>

#include "core/window_hd.h"

namespace ribbit {
enum class LikelihoodKind : int;  // core/likelihood_hd.h
struct LikelihoodConstants;       // as well
struct PriorConstants;            // of core/prior_hd.h
enum class PriorKind : int;       // core/prior_hd.h
struct Permutation;               // core/permutation_hd.h
}  // namespace ribbit

namespace ribbit::cpu {

// Rows of data in a panel. A panel is (features, kPanel): row r of a feature is lane r.
inline constexpr int kPanel = 32;
// Products of so few columns are added up by rows: every kGramLanes-th in one sum.
inline constexpr int kFewColumns = 8, kGramLanes = 8;

// How a gradient moves parameters; the formulas are in update-inl.h.
enum UpdateRule : int {
  kRuleLangevin = 0,
  kRuleFriction = 1,
  kRuleAdam = 2,
  kRuleKinetic = 3,
  kRuleCount
};
// moments: how many arrays a rule needs in addition to the position, the first moment before the
// second. A Langevin step that is given a second moment is preconditioned by it.
struct RuleRow {
  const char* name;
  int moments;
};
inline constexpr RuleRow kRules[] = {{"langevin", 0}, {"friction", 1}, {"adam", 2}, {"kinetic", 2}};
static_assert(sizeof kRules == kRuleCount * sizeof *kRules);

// The constants of one step. Unused ones are ignored.
template <class T>
struct UpdateStep {
  T step;                       // factor of the gradient
  T noise;                      // sd of the noise; 0: none is drawn
  T keep;                       // friction, kinetic: what a step leaves of the velocity
  T decay1, decay2;             // of the running moments
  T correct1, correct2;         // adam: 1 / (1 - decay^t)
  T epsilon;                    // added to the root of the second moment
  T scale;                      // preconditioner: of the gradient in the second moment
  bool adapt;                   // preconditioner: whether the second moment moves
  std::uint64_t first_element;  // of the range, a multiple of 4
  std::uint64_t key;            // of the noise
  std::uint32_t c1, c2, c3;     // of the noise
};

// The constants of one step of a mean-field Gaussian: an ascent on
//   samples * (gradients of the likelihood) + entropy * sum log sd - shrink / 2 * (mean^2 + sd^2).
template <class T>
struct VariationalStep {
  T step, decay1, decay2, correct1, correct2, epsilon;  // Adam, as in UpdateStep
  T samples;  // 1 / number of weight samples behind the gradients
  T entropy;  // weight of the entropy
  T shrink;   // weight / variance of a normal prior in closed form, else 0
};

// A range of parameters and their moments, (n,) each.
template <class T>
struct VariationalArrays {
  const T* mean_gradient;
  const T* scale_gradient;  // by sd = softplus(rho)
  T *mean, *rho, *mean_first, *mean_second, *rho_first, *rho_second;
  const T* centre;  // that the mean is shrunk to; null: 0
};

// Where the masks of one dropout layer come from, or other noise for each row and unit.
struct MaskStream {
  std::uint64_t key;
  std::uint32_t c1, c2, c3;
  std::uint32_t threshold;  // rate * 2^32: smaller words drop the unit
  double keep;              // what a kept unit is multiplied by, 1 / (1 - rate)
  bool shared;              // every row takes the mask of row 0
};

// What a multiplication does to its sums on the way out: nothing, max(0, .), or for the derivative
// of that, 0 where the value above was not positive; or they are added to what is there. Otherwise
// they are multiplied by `scale`.
enum Finish : int {
  kFinishPlain = 0,
  kFinishRelu = 1,
  kFinishStep = 2,
  kFinishAdd = 3,
  kFinishCount
};

// One pass of a convolution over images (height, width, channels, kPanel): at sites (i, j),
//   destination = sum over taps r, s of source(i step + r spread - pad, j step + s spread - pad)
//   W[r, s],
// the source being 0 outside its image.
struct ConvPass {
  std::int64_t height, width, channels;  // of the source, as far as the taps see it
  std::int64_t taps_height, taps_width;
  std::int64_t step_height, step_width;
  std::int64_t pad_height, pad_width;  // may be negative
  std::int64_t rows, columns;          // of sites
  std::int64_t first, row, column;     // site (i, j) is pixel first + i row + j column
  std::int64_t out_channels;           // that are made
  std::int64_t spread_height, spread_width;
  std::int64_t pixel, out_pixel;  // channels of a pixel of the source, of the destination
};

// A part of a trajectory (core/no_u_turn_hd.h): the sum of its momenta, and the momenta at its
// ends, (n,) each.
template <class T>
struct TurnPart {
  T *rho, *first, *last;
};

template <class T>
struct KernelTable {
  int lanes;         // scalars in a vector register
  int tile_outputs;  // most outputs of one matrix tile

  // Cuts outs into ceil(outs / tile_outputs) nearly equal tiles, each (ins, tile) in C order.
  // Tiles first..last-1 are written. weight: (ins, outs), or (outs, ins) when transposed. The ins
  // may be a part of all_ins, that behind the first `skip`: then the tiles are those of all.
  void (*pack_tiles)(const T* weight, std::int64_t ins, std::int64_t outs, bool transposed,
                     std::int64_t first, std::int64_t last, std::int64_t all_ins, std::int64_t skip,
                     T* packed);

  // y[o] = (init[o] + sum_k packed[k, o] x[k]) * scale[o], for `panels` panels; kFinishStep: the
  // sum where scale[o] > 0, else 0. x: (panels, ins, kPanel), y and scale: (panels, outs, kPanel);
  // init, scale: null means 0, 1.
  void (*multiply)(const T* packed, const T* init, const T* x, T* y, const T* scale, Finish finish,
                   std::int64_t ins, std::int64_t outs, std::int64_t panels);
  // The same on weights as they are, (ins, outs), transposed (outs, ins). tile: scratch of ins
  // times tile_outputs.
  void (*multiply_unpacked)(const T* weight, bool transposed, const T* init, const T* x, T* y,
                            const T* scale, Finish finish, std::int64_t ins, std::int64_t outs,
                            std::int64_t panels, T* tile);

  // grad[i, o] += sum over rows of a[i] d[o]; a: (panels, ins, kPanel), d: (panels, outs, kPanel),
  // zeros behind the last row; grad: (ins, outs); inputs first..last-1 only. bias[o] += sum over
  // rows of d[o] when first = 0; null: none. scratch: (panels, outs rounded up to whole vectors,
  // kPanel).
  void (*weight_gradient)(const T* a, const T* d, std::int64_t rows, std::int64_t ins,
                          std::int64_t outs, std::int64_t first, std::int64_t last, T* scratch,
                          T* grad, T* bias);
  // out[o] += sum over rows and panels of d[o], for d (panels, outs, kPanel).
  void (*sum_rows)(const T* d, std::int64_t panels, std::int64_t outs, T* out);

  // packed: tiles of (taps height, taps width, channels) -> out_channels; init: (out_channels,) or
  // null; add: to what the destination holds (init is not looked at).
  void (*convolve)(const T* packed, const T* init, const T* source, T* destination,
                   const ConvPass& pass, bool add);
  // Gradient of a convolution's weights (groups, kernel height, kernel width, channels and out
  // channels of a group) and bias (null: none), added. x: (height, width, channels, kPanel), d:
  // (out_height, out_width, out_channels, kPanel). Rows of sites first..last-1, at most
  // convolution_rows(window) of them. scratch: convolution_scratch(window) scalars.
  void (*convolution_gradient)(const T* x, const T* d, const Window& window, std::int64_t first,
                               std::int64_t last, T* scratch, T* grad, T* bias);
  std::int64_t (*convolution_rows)(const Window& window);
  std::int64_t (*convolution_scratch)(const Window& window);

  // Pools (pool-inl.h). x, dx: (height, width, channels, kPanel), y, d: those of the window; deltas
  // are added to dx.
  void (*max_pool)(const T* x, const Window& window, T* y);
  void (*max_pool_backward)(const T* x, const T* y, const T* d, const Window& window, bool add,
                            T* dx);
  void (*average_pool)(const T* x, const Window& window, T* y);
  void (*average_pool_backward)(const T* d, const Window& window, bool add, T* dx);

  // Norms (norm-inl.h). z, d: (sites, channels, kPanel); what belongs to a channel: (channels,);
  // to a channel and row: (channels, kPanel).
  // sums += z^2 over sites
  void (*add_squares)(const T* z, std::int64_t sites, std::int64_t channels, T* sums);
  // r: sums of squares in, 1 / sqrt(sum / sites + epsilon) out; scale = gamma r
  void (*response)(std::int64_t sites, std::int64_t channels, const T* gamma, T epsilon, T* r,
                   T* scale);
  // out = max(z scale + beta, tau); tau null: -infinity
  void (*response_apply)(const T* z, std::int64_t sites, std::int64_t channels, const T* scale,
                         const T* beta, const T* tau, T* out);
  // d *= slope (null: 1), 0 where tau cut; sums += d, sums of d z, and what tau cut (3, channels,
  // kPanel)
  void (*response_delta)(const T* z, std::int64_t sites, std::int64_t channels, const T* scale,
                         const T* beta, const T* tau, const T* slope, T* d, T* sums);
  // dz = scale d - shrink z, or added to dz
  void (*response_backward)(const T* z, const T* d, std::int64_t sites, std::int64_t channels,
                            const T* scale, const T* shrink, bool add, T* dz);
  // out = gamma (z - mean) r + beta over the channels of a site
  void (*layer_norm)(const T* z, std::int64_t sites, std::int64_t channels, const T* gamma,
                     const T* beta, T epsilon, T* out);
  // dz, or added to dz; sums += d, d (z - mean) r (2, channels, kPanel)
  void (*layer_norm_backward)(const T* z, const T* d, std::int64_t sites, std::int64_t channels,
                              const T* gamma, T epsilon, bool add, T* dz, T* sums);

  // One step of an LSTM (lstm-inl.h). gates: (4, units, kPanel) sums on the way in, sigmoid(i),
  // sigmoid(f), tanh(g), sigmoid(o) on the way out; cell: (units, kPanel), before: null for zeros.
  void (*lstm_step)(std::int64_t units, const T* cell_before, T* gates, T* cell, T* state);
  // gates: those values in, deltas of the sums out; dcell: delta of the cell in, of the one before
  // out.
  void (*lstm_backward)(std::int64_t units, const T* cell_before, const T* cell, const T* dstate,
                        T* gates, T* dcell);

  // out = a + b, out += a
  void (*add)(const T* a, const T* b, std::int64_t n, T* out);
  void (*accumulate)(const T* a, std::int64_t n, T* out);

  // The same for one output, in two steps: sums[i] += vectors of rows of a[i] d, sums[ins] += those
  // of d; grad[i] += the lanes of sums[i]. sums: (ins + 1, lanes).
  void (*narrow_accumulate)(const T* a, const T* d, std::int64_t panels, std::int64_t ins, T* sums);
  void (*narrow_reduce)(const T* sums, std::int64_t n, T* grad);

  // x: rows of (rows, features) C order at rows[0..n) (or first.. when rows is null) -> one panel,
  // lanes >= n are zero.
  void (*pack_panel)(const T* x, std::int64_t features, const std::int64_t* rows,
                     std::int64_t first, int n, T* panel);
  // One panel -> rows first..first+n of y (rows, features).
  void (*unpack_panel)(const T* panel, std::int64_t features, std::int64_t first, int n, T* y);

  void (*multiply_in_place)(T* a, const T* b, std::int64_t n);
  // out = sum of `count` buffers over a fixed binary tree: buffers + k * stride.
  void (*tree_sum)(const T* buffers, std::int64_t stride, std::int64_t count, std::int64_t n,
                   T* out);
  // p += kick * g; q += drift * m * p (m null: 1).
  void (*kick_drift)(T* q, T* p, const T* g, const T* m, std::int64_t n, T kick, T drift);
  bool (*all_finite)(const T* a, std::int64_t n);
  // Whether parts of a trajectory turn, in double (no_u_turn-inl.h): adds to sums, six or two; then
  // a.rho += b.rho, or rho = a + b. inverse_mass null: 1.
  void (*turn_products)(const TurnPart<T>& a, const TurnPart<T>& b, const T* inverse_mass,
                        std::int64_t n, double* sums);
  void (*leaf_turn_products)(const T* a, const T* b, const T* inverse_mass, std::int64_t n, T* rho,
                             double* sums);

  void (*activation_forward)(int code, const T* z, std::int64_t n, T* value);
  void (*activation_forward_derivative)(int code, const T* z, std::int64_t n, T* value,
                                        T* derivative);
  // One panel: value = from * mask (they may be the same), and the derivative (null: none) times
  // the mask, or the mask itself when assigned. rows: (n,) numbers, null for first, first + 1, ...
  // samples: (n,), instead of the stream's c2; null: that.
  void (*mask_panel)(const MaskStream& stream, const std::int64_t* rows,
                     const std::uint32_t* samples, std::int64_t first, int n, std::int64_t units,
                     const T* from, T* value, T* derivative, bool assign);
  // Concrete dropout (Gal, Hron and Kendall 2017, eq. 5) of one panel at rate sigmoid(logit): as
  // mask_panel with factors (1 - z) / (1 - rate), z = sigmoid((logit + log u - log(1 - u)) / 0.1);
  // ratio: (units, kPanel) d log factor / d logit, null with derivative null.
  void (*concrete_panel)(const MaskStream& stream, T logit, const std::int64_t* rows,
                         std::int64_t first, int n, std::int64_t units, const T* from, T* value,
                         T* derivative, bool assign, T* ratio);
  // sum of a b c, in double
  double (*dot3)(const T* a, const T* b, const T* c, std::int64_t n);
  // Samples in the lanes (lanes-inl.h). splits: (outs,) partial sums of each output; returns
  // `most`.
  int (*lane_splits)(std::int64_t outs, unsigned char* splits);
  // out: (count, kPanel) elements first .. first + count - 1, multiples of 4, of weights
  // mean + scale * z (limit,), lane l with the normals of samples[l]; those beyond limit are left.
  void (*draw_lanes)(const T* mean, const T* scale, std::int64_t first, std::int64_t count,
                     std::int64_t limit, std::uint64_t key, std::uint32_t c1, std::uint32_t c3,
                     const std::uint64_t* samples, T* out);
  void (*gather_lanes)(const T* const* arrays, std::int64_t first, std::int64_t count, T* out);
  void (*accumulate_lanes)(const T* w, std::int64_t first, std::int64_t count, const T* x,
                           std::int64_t ins, std::int64_t outs, std::int64_t rows,
                           const unsigned char* splits, int most, T* sums);
  void (*finish_lanes)(const T* sums, const unsigned char* splits, std::int64_t outs, int most,
                       std::int64_t n, T* y);
  // Two paths of a layer, one panel (row_noise-inl.h): z += sqrt(c) e, c = e / (2 sqrt(c)) with
  // normals e for each row and unit; signs for each row and unit. rows, first, n as for mask_panel.
  void (*local_noise)(const MaskStream& stream, const std::int64_t* rows, std::int64_t first, int n,
                      std::int64_t units, T* z, T* c);
  void (*sign_panel)(const MaskStream& stream, const std::int64_t* rows, std::int64_t first, int n,
                     std::int64_t units, T* out);
  void (*product)(const T* a, const T* b, std::int64_t n, T* out);
  void (*step_in_place)(T* a, const T* b, std::int64_t n);  // a = 0 where b is not positive
  // y = (y + factor a b) d; d null: 1.
  void (*add_product)(T factor, const T* a, const T* b, const T* d, std::int64_t n, T* y);
  void (*prior_segment)(PriorKind kind, const PriorConstants& constants, const T* theta,
                        std::int64_t n, double weight, double* logp, T* grad);
  void (*likelihood_panel)(LikelihoodKind kind, const LikelihoodConstants& constants, const T* f,
                           const T* y, int outputs, int rows, T scale, double weight, T* delta,
                           double* ll, double* noise_grad);
  // weights: (kPanel,) of the rows, 0 in lanes without one: how often the terms of each count.
  void (*weighted_likelihood_panel)(LikelihoodKind kind, const LikelihoodConstants& constants,
                                    const T* f, const T* y, const T* weights, int outputs, T scale,
                                    double weight, T* delta, double* ll, double* noise_grad);
  // One draw's outputs f (outputs, kPanel) into running moments over draws, in double: first, sum
  // and squares of the means or probabilities relative to the first draw's (begin: this one), extra
  // += variance of the noise, or for classification the rows' entropies (kPanel). scale: of the
  // noise. values: (outputs, kPanel) to work in.
  void (*moments_panel)(LikelihoodKind kind, const LikelihoodConstants& constants, const T* f,
                        int outputs, double scale, bool begin, T* values, double* first,
                        double* sum, double* squares, double* extra);
  double (*dot_weighted)(const T* p, const T* m, std::int64_t n);

  void (*fill_normal)(T* out, std::int64_t n, std::uint64_t first_element, std::uint64_t key,
                      std::uint32_t c1, std::uint32_t c2, std::uint32_t c3);
  void (*reparameterize)(const T* mean, const T* scale, T* out, std::int64_t n,
                         std::uint64_t first_element, std::uint64_t key, std::uint32_t c1,
                         std::uint32_t c2, std::uint32_t c3);
  void (*softplus)(const T* x, T* out, std::int64_t n);
  // Moves theta (n,) and its moments along g; second null: no preconditioner. False when a
  // parameter is not finite any more.
  bool (*update)(UpdateRule rule, const UpdateStep<T>& step, const T* g, std::int64_t n, T* theta,
                 T* first, T* second);

  // Isokinetic steps on a range of parameters (isokinetic-inl.h); s: scales of the parameters, null
  // for ones. sums (3,): of (s g)^2, (s g) u and u^2, in double.
  void (*isokinetic_sums)(const T* g, const T* s, const T* u, std::int64_t n, double* sums);
  // turned = along (s g) + keep u; moved = q + drift s turned. turned may be u, moved may be q.
  void (*isokinetic_move)(const T* g, const T* s, const T* u, const T* q, std::int64_t n, T along,
                          T keep, T drift, T* turned, T* moved);
  // moved = q + drift s u
  void (*isokinetic_drift)(const T* s, const T* u, const T* q, std::int64_t n, T drift, T* moved);
  // out (n,): the sum over j < inputs of weights[j] in[j * stride + i], in order
  void (*mix_inputs)(const T* weights, const T* in, std::int64_t inputs, std::int64_t stride,
                     std::int64_t n, T* out);
  // turned = along (s g) + keep u + level z, z: normals (n,)
  void (*isokinetic_refresh)(const T* g, const T* s, const T* u, const T* z, std::int64_t n,
                             T along, T keep, T level, T* turned);

  // mean += g, scale += g z with z the normals of an address; first: assigned instead.
  void (*noise_gradient)(const T* g, std::int64_t n, std::uint64_t first_element, std::uint64_t key,
                         std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, bool first, T* mean,
                         T* scale);
  // False when a parameter is not finite any more.
  bool (*variational_update)(const VariationalStep<T>& step, const VariationalArrays<T>& arrays,
                             std::int64_t n);
  double (*sum_log)(const T* x, std::int64_t n);

  // Sums of products of the columns z = (features, 1 where `ones`, targets) of the `valid` rows of
  // a panel, in double: gram[i, j] += sum over rows of z[i] z[j], i <= j; what lies below is not
  // meant. gram: (columns, width), width: columns rounded up to whole vectors of doubles.
  // f: (features, kPanel), y: (targets, kPanel); scratch: (columns + width) kPanel.
  void (*gram)(const T* f, std::int64_t features, bool ones, const T* y, std::int64_t targets,
               int valid, const T* weights, double* scratch, double* gram);
  // The same of at most kFewColumns columns and of several panels, of which `rows` rows count: adds
  // to sums (pairs i <= j, kGramLanes) of every kGramLanes-th row, which gram_finish adds up once,
  // behind the last panel. scratch: (panels, columns and one of weights, kPanel).
  void (*gram_lanes)(const T* f, std::int64_t features, bool ones, const T* y, std::int64_t targets,
                     std::int64_t panels, std::int64_t rows, const T* weights, double* scratch,
                     double* sums);
  void (*gram_finish)(const double* sums, std::int64_t columns, std::int64_t width, double* gram);
  // a: (n, stride), the lower triangle of a positive definite matrix: becomes that of minus its
  // inverse; what lies above is overwritten. stride: whole vectors; column: (stride,) to
  // work in. pivots: (n,), their product is the determinant; one is not positive where the matrix
  // was not positive definite.
  void (*sweep)(double* a, std::int64_t n, std::int64_t stride, double* column, double* pivots);

  // Runs `count` independent fused multiply-adds on registers; returns the flops done.
  double (*fma_loop)(std::int64_t count, T* sink);
};

// The noise of y around what a draw predicts, at scale 1: normal, or Student's t. For t let
// w = |z| / sqrt(df + z^2) and v = 1 - 2 (1 + knee) w / (knee + w), which goes from 1 to -1; then
// P(Z < -|z|) = (1 + z^2 / df)^(-df / 2) (ratio[0] + ratio[1] v + ..).
struct NoiseLaw {
  static constexpr int kTerms = 23;
  bool student = false;
  int whole_df = 0;                     // df if it is a whole number up to 16, else 0
  double df = 0.0, inverse_root = 0.0;  // 1 / sqrt(df)
  double norm = 0.0;                    // of the density, times sqrt(df)
  double knee = 0.0, ratio[kTerms] = {};
};
// The draws of one row, in whole blocks of 16. Those that fill the last one have the first draw's
// mean and sd, weight 0 (others 1) and inverse 0 (others 1 / sd).
struct MixtureRow {
  const double *mean, *sd, *inverse, *weight;
  std::int64_t padded;
};
// offset, squares: sums of mean - mean[0] and of its square; variances: of sd^2.
struct MixtureExtent {
  double offset, squares, variances, low, high, thin, wide;  // least and largest mean and sd
};

struct InstructionSet {
  const char* name;
  const KernelTable<float>* f32;
  const KernelTable<double>* f64;
  void (*fill_words)(std::uint32_t* out, std::int64_t n, std::uint64_t first_element,
                     std::uint64_t key, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3);
  // rows (count,): where the rows begin, begin + 1, ... of an epoch go.
  void (*permute_rows)(const Permutation& order, std::uint64_t begin, std::int64_t count,
                       std::int64_t* rows);

  // Sums over the draws of a row (mixture-inl.h). sums: of P(sign Y < x), and with derivatives
  // (3,), of its first and second derivative by x.
  void (*mixture_sums)(const NoiseLaw& law, const MixtureRow& row, double x, double sign,
                       bool derivatives, double* sums);
  double (*mixture_distance)(const NoiseLaw& law, const MixtureRow& row, double y);  // of E|Y - y|
  double (*normal_pairs)(const MixtureRow& row, std::int64_t draws);
  void (*mixture_extent)(const MixtureRow& row, MixtureExtent& out);
  double (*mixture_reach)(const MixtureRow& row, double low, double high, double factor);
  // of P(Y <= count) of counts with the rates row.mean, in [0, infinity); count: whole
  double (*poisson_sum)(const MixtureRow& row, double count);
};

extern const InstructionSet instruction_set_baseline;
extern const InstructionSet instruction_set_avx2;
extern const InstructionSet instruction_set_avx512;
extern const InstructionSet instruction_set_neon;

}  // namespace ribbit::cpu
