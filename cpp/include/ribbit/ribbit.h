/** @file
 * Ribbit for C: posteriors of networks, their gradients, Hamiltonian Monte Carlo, predictions.
 *
 * C11, no Python. Every function that can fail returns a status, RIBBIT_OK or an error, whose text
 * ribbit_last_error() gives on the same thread; no exception leaves the library. Arrays are the
 * caller's, in C order, of the dtype that the target or the call states; what is written is
 * written there. Handles are made by ..._create... and given back to ..._free (NULL is fine).
 * Functions that take a const handle may run on several threads at once.
 *
 * Draws are those of Ribbit for Python, bit for bit, for the same (seed, chain id, step), target,
 * dtype and instruction set, whatever the number of threads. Shapes below: C chains, P parameters,
 * N rows, D inputs, K outputs, J columns of y. chain_ids is (C,), or NULL for 0, 1, .., C - 1, and
 * interrupt may be NULL.
 *
 * Structs of options begin with their size: fill them with their ..._init(&options, sizeof options)
 * and set what differs. Members are only ever added at the end. */
#ifndef RIBBIT_RIBBIT_H
#define RIBBIT_RIBBIT_H

#include <stddef.h>
#include <stdint.h>

/** What the library shows. */
#if defined(__GNUC__)
#define RIBBIT_API __attribute__((visibility("default")))
#else
#define RIBBIT_API
#endif

/** Grows with every addition; symbols carry the version that brought them: RIBBIT_1.0. */
#define RIBBIT_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/** @defgroup status Status
 * @{ */

/** What functions return. */
enum {
  RIBBIT_OK = 0,              /**< done */
  RIBBIT_ERROR_ARGUMENT = 1,  /**< an argument is out of its range */
  RIBBIT_ERROR_MEMORY = 2,    /**< there is not enough of it */
  RIBBIT_ERROR_FUNCTION = 3,  /**< a log density of the caller's returned something else than 0 */
  RIBBIT_ERROR_INTERNAL = 4,  /**< anything else */
  RIBBIT_INTERRUPTED = 5,     /**< by an interrupt or by the progress callback; no error */
  RIBBIT_ERROR_NOT_FINITE = 6 /**< steps have left the numbers */
};

/** Of the last function that failed on this thread, "" before; valid until the next one fails. */
RIBBIT_API const char* ribbit_last_error(void);

/** @} */

/** @defgroup library The library
 * @{ */

RIBBIT_API const char* ribbit_version(void); /**< of Ribbit, such as "0.1.0" */
RIBBIT_API int ribbit_abi_version(void);     /**< RIBBIT_ABI_VERSION of the library that runs */
RIBBIT_API const char* ribbit_instruction_set(void); /**< whose kernels compute; NULL on failure */
RIBBIT_API int ribbit_num_threads(void);             /**< default: the cores this process may use */
RIBBIT_API int ribbit_set_num_threads(int count);    /**< at least 1 */

/** A flag that ends running calls, within about 20 ms, with RIBBIT_INTERRUPTED. Setting it is safe
 * from any thread and from a signal handler; it stays set until it is cleared. */
typedef struct ribbit_interrupt ribbit_interrupt;
RIBBIT_API int ribbit_interrupt_create(ribbit_interrupt** out);      /**< not set */
RIBBIT_API void ribbit_interrupt_free(ribbit_interrupt* interrupt);  /**< gives it back */
RIBBIT_API void ribbit_interrupt_set(ribbit_interrupt* interrupt);   /**< ends calls that have it */
RIBBIT_API void ribbit_interrupt_clear(ribbit_interrupt* interrupt); /**< for the next call */

/** @} */

/** @defgroup networks Networks
 * @{ */

/** Dtypes. */
enum { RIBBIT_FLOAT32 = 0, RIBBIT_FLOAT64 = 1 };

/** Ops of layers. */
enum {
  RIBBIT_DENSE = 0,
  RIBBIT_ACTIVATION = 1,
  RIBBIT_DROPOUT = 2, /**< hands on what it is given */
  RIBBIT_CONV = 3,
  RIBBIT_MAX_POOL = 4,
  RIBBIT_AVERAGE_POOL = 5,
  RIBBIT_FILTER_RESPONSE_NORM = 6,
  RIBBIT_LAYER_NORM = 7,
  RIBBIT_ADD = 8,
  RIBBIT_EMBEDDING = 9,
  RIBBIT_LSTM = 10,
  RIBBIT_GROUP_NORM = 11
};

/** Activations. */
enum {
  RIBBIT_IDENTITY = 0,
  RIBBIT_RELU = 1,
  RIBBIT_TANH = 2,
  RIBBIT_SILU = 3,
  RIBBIT_SIGMOID = 4,
  RIBBIT_GELU = 5,
  RIBBIT_SOFTPLUS = 6,
  RIBBIT_LEAKY_RELU = 7,
  RIBBIT_ELU = 8
};

/** A row of the layer table: what turns one value into the next. Value 0 is the network's input,
 * r + 1 what row r gives. In Python it is a row of Model.table (columns by these names) and of
 * Model.rates. */
typedef struct ribbit_layer {
  int64_t op;       /**< what the layer does: an op */
  int64_t in_size;  /**< numbers per data row that it takes */
  int64_t out_size; /**< numbers per data row that it gives */
  /** Place of the first array in the parameters, or -1. Dense: (in, out); norms: gamma. */
  int64_t weight;
  int64_t bias;  /**< place of the second, or -1. Norms: beta */
  int64_t third; /**< place of the third, or -1. Norms: tau; LSTM: the recurrent one */
  /** Activation: its code; embedding: tokens; LSTM: 1 gives all states; convolution, group norm:
   * groups. */
  int64_t argument;
  int64_t index;           /**< number of the layer, for messages */
  int64_t input;           /**< the value that is taken */
  int64_t second;          /**< the second value of a sum, else -1 */
  int64_t height;          /**< of the image that is taken, (height, width, channels) */
  int64_t width;           /**< of it */
  int64_t channels;        /**< of it */
  int64_t kernel_height;   /**< of the window */
  int64_t kernel_width;    /**< of it */
  int64_t stride_height;   /**< from one place of the window to the next */
  int64_t stride_width;    /**< along the other axis */
  int64_t pad_top;         /**< rows of zeros above the image */
  int64_t pad_left;        /**< columns of zeros before it */
  int64_t out_height;      /**< of the image that is given, (out_height, out_width, out_channels) */
  int64_t out_width;       /**< of it */
  int64_t out_channels;    /**< of it */
  int64_t dilation_height; /**< from one row of the window to the next */
  int64_t dilation_width;  /**< from one column to the next */
  double number;           /**< norms: epsilon */
  double rate;             /**< dropout */
} ribbit_layer;

/** Zeros, and -1 where that means none; layer_size: sizeof(ribbit_layer). */
RIBBIT_API int ribbit_layer_init(ribbit_layer* layer, size_t layer_size);

/** Layers with the places of their parameters. */
typedef struct ribbit_network ribbit_network;

/** Of a table of count rows; layer_size: sizeof(ribbit_layer). */
RIBBIT_API int ribbit_network_create(const ribbit_layer* layers, int64_t count, size_t layer_size,
                                     ribbit_network** out);
/** Dense layers with biases, of hidden widths (num_hidden,), an activation behind each but the
 * last: rb.mlp. */
RIBBIT_API int ribbit_network_create_mlp(int64_t inputs, const int64_t* hidden, int64_t num_hidden,
                                         int64_t outputs, int activation, ribbit_network** out);
/** Of a description, JSON in UTF-8, as Posterior.describe() in Python gives it. */
RIBBIT_API int ribbit_network_create_json(const char* json, ribbit_network** out);
RIBBIT_API void ribbit_network_free(ribbit_network* network);             /**< targets of it stay */
RIBBIT_API int64_t ribbit_network_dim(const ribbit_network* network);     /**< P; 0 of NULL */
RIBBIT_API int64_t ribbit_network_inputs(const ribbit_network* network);  /**< D; 0 of NULL */
RIBBIT_API int64_t ribbit_network_outputs(const ribbit_network* network); /**< K; 0 of NULL */

/** Raw outputs (samples, N, K) of weights theta (samples, P) at x (N, D), all of one dtype. */
RIBBIT_API int ribbit_network_apply(const ribbit_network* network, int dtype, const void* theta,
                                    int64_t samples, const void* x, int64_t rows, void* out,
                                    const ribbit_interrupt* interrupt);

/** @} */

/** @defgroup targets Targets: what is sampled
 * @{ */

/** Priors, and what a, b, c are; 0 where nothing is named. */
enum {
  RIBBIT_NORMAL = 0,          /**< N(0, a^2) */
  RIBBIT_LAPLACE = 1,         /**< scale a */
  RIBBIT_STUDENT_T = 2,       /**< a degrees of freedom, scale b */
  RIBBIT_LOGISTIC = 3,        /**< scale a */
  RIBBIT_SCALE_MIXTURE = 4,   /**< a N(0, b^2) + (1 - a) N(0, c^2) */
  RIBBIT_GAMMA_PRECISION = 5, /**< of the log of a scale: its precision ~ Gamma(a, rate b) */
  RIBBIT_HALF_NORMAL = 6,     /**< of the log of a scale: |N(0, a^2)| */
  RIBBIT_HALF_CAUCHY = 7      /**< of the log of a scale a */
};

/** The prior of the parameters [offset, offset + size). Segments cover all parameters in order; the
 * logarithms of learned noises are the last ones. */
typedef struct ribbit_prior {
  int64_t offset; /**< of the first parameter */
  int64_t size;   /**< parameters */
  int64_t kind;   /**< a prior */
  double a;       /**< first number of the prior */
  double b;       /**< second */
  double c;       /**< third */
} ribbit_prior;

/** Likelihoods. */
enum {
  RIBBIT_GAUSSIAN = 0,         /**< y ~ N(f, scale^2) */
  RIBBIT_GAUSSIAN_LEARNED = 1, /**< the log of the scale of each output is one more parameter */
  RIBBIT_HETEROSCEDASTIC = 2,  /**< outputs are means, then raw scales */
  RIBBIT_CATEGORICAL = 3,      /**< logits; y is a label 0..K-1 */
  RIBBIT_BERNOULLI = 4,        /**< logits; y is 0 or 1 */
  RIBBIT_POISSON = 5,          /**< log rates; y is a count */
  RIBBIT_STUDENT_T_NOISE = 6,  /**< shape: degrees of freedom */
  RIBBIT_STUDENT_T_NOISE_LEARNED = 7,
  RIBBIT_HETEROSCEDASTIC_FLOORED = 8
};

/** log density = (log likelihood / likelihood_temperature + log prior) / temperature */
typedef struct ribbit_posterior_options {
  size_t size;                   /**< of the struct */
  int32_t dtype;                 /**< of x, y, positions and gradients; default RIBBIT_FLOAT32 */
  int32_t likelihood;            /**< default RIBBIT_GAUSSIAN */
  double scale;                  /**< known scale of the noise; default 1 */
  double shape;                  /**< StudentT: degrees of freedom */
  double temperature;            /**< of the posterior; default 1 */
  double likelihood_temperature; /**< default 1 */
  const ribbit_prior* prior;     /**< (num_prior,); NULL: N(0, 1) of every parameter */
  int64_t num_prior;             /**< segments */
  const void* centre;            /**< (P,) means of the priors, copied; NULL: 0 */
  int64_t num_scales;            /**< scales of the noise: 1 for all outputs, or K, one for each
                                    output; 0: K if they are learned, else 1; default 0 */
  const double* scales;          /**< (num_scales,) known scales, copied; NULL: `scale` of each */
} ribbit_posterior_options;
/** The defaults; size: sizeof(ribbit_posterior_options). */
RIBBIT_API int ribbit_posterior_options_init(ribbit_posterior_options* options, size_t size);

/** What is sampled: a posterior, or a function. */
typedef struct ribbit_target ribbit_target;

/** x: (N, D), y: (N, J), of the options' dtype, finite. They are not copied: they must outlive the
 * target, unchanged. The network may be freed at once. */
RIBBIT_API int ribbit_target_create_posterior(const ribbit_network* network,
                                              const ribbit_posterior_options* options,
                                              const void* x, const void* y, int64_t rows,
                                              ribbit_target** out);

/** The same of a description: json.dumps(posterior.describe()), which is also saved with draws
 * (entry "predictive" of the header). dtype must be that of the description. x = y = NULL and rows
 * = 0 make a target that predicts alone. Descriptions with standardised data, learned scales of
 * weights or dropout masks are refused. */
RIBBIT_API int ribbit_target_create_json(const char* json, int dtype, const void* x, const void* y,
                                         int64_t rows, ribbit_target** out);

/** A log density of your own, in float64: writes grad (n,) and *lp at x (n,) and returns 0. What is
 * not finite is rejected by samplers. Any other code ends the call with RIBBIT_ERROR_FUNCTION. */
typedef int (*ribbit_log_density)(size_t n, const double* x, double* grad, double* lp, void* user);
/** Of a function of dim numbers, handed user; threadsafe: whether several threads may call it at
 * once. */
RIBBIT_API int ribbit_target_create_function(ribbit_log_density function, int64_t dim, void* user,
                                             int threadsafe, ribbit_target** out);
RIBBIT_API void ribbit_target_free(ribbit_target* target); /**< gives it back, not x and y */
RIBBIT_API int64_t ribbit_target_dim(const ribbit_target* target); /**< P; 0 of NULL */
RIBBIT_API int ribbit_target_dtype(const ribbit_target* target);   /**< of positions */

/** Starts (C, P): weights N(0, 2 / fan_in) and biases 0 of a network (He et al. 2015), a learned
 * log noise at 0; standard normals of a function. */
RIBBIT_API int ribbit_target_start(const ribbit_target* target, uint64_t seed,
                                   const uint32_t* chain_ids, int64_t chains, void* position);

/** The tempered log density in two terms (C, 2), likelihood and prior, whose sum it is, and its
 * gradient (C, P) or NULL, at theta (C, P). subset: (subset_rows,) numbers of rows, whose
 * likelihood counts N / subset_rows times; NULL: all rows. A function has no rows, and its second
 * term is 0. */
RIBBIT_API int ribbit_value_and_grad(const ribbit_target* target, const void* theta, int64_t chains,
                                     const int64_t* subset, int64_t subset_rows, double* terms,
                                     void* grad, const ribbit_interrupt* interrupt);

/** num_steps[c] >= 1 leapfrog steps of size step_size[c] of each chain. position, momentum and grad
 * (C, P), the gradient at the position, are overwritten by those at the end; terms (C, 2) are those
 * at the end. inverse_mass: diagonal (P,), or NULL for ones. After RIBBIT_INTERRUPTED or an error
 * the arrays hold nothing of use. */
RIBBIT_API int ribbit_leapfrog(const ribbit_target* target, int64_t chains, void* position,
                               void* momentum, void* grad, const void* inverse_mass,
                               const double* step_size, const int64_t* num_steps, double* terms,
                               const ribbit_interrupt* interrupt);

/** @} */

/** @defgroup samplers Samplers
 * @{ */

/** Where a run is. */
typedef struct ribbit_progress {
  size_t size;            /**< of the struct */
  int64_t done;           /**< transitions of this call, warmup included */
  int64_t total;          /**< that it makes */
  int64_t divergences;    /**< of all chains, after warmup */
  double acceptance_rate; /**< mean over chains and transitions so far */
} ribbit_progress;
/** Called after every transition on the thread that called; something else than 0 ends the run. */
typedef int (*ribbit_progress_callback)(const ribbit_progress* progress, void* user);

/** Of a run of ribbit_hmc(). */
typedef struct ribbit_hmc_options {
  size_t size;               /**< of the struct */
  uint64_t seed;             /**< of all random numbers */
  int64_t chains;            /**< C; default 1 */
  const uint32_t* chain_ids; /**< (C,) or NULL */
  uint64_t first_step;       /**< transitions that the chains made before: where a run goes on */
  int64_t warmup;            /**< transitions that are not kept; default 0 */
  int64_t draws;             /**< draws that are kept of each chain */
  int64_t thin;              /**< transitions per draw; default 1 */
  double step_size;         /**< > 0; 0 (default): found in warmup for each chain, see step_sizes */
  double trajectory_length; /**< > 0: L = ceil(length / step_size) steps; excludes num_steps */
  int64_t num_steps;        /**< L leapfrog steps per trajectory; excludes trajectory_length */
  int32_t randomize_length; /**< 1 (default): steps are uniform on 1, 2, .., 2 L; 0: always L */
  int32_t reserved;         /**< 0 */
  double step_size_jitter;  /**< j in [0, 1): step sizes times uniform(1 - j, 1 + j) */
  double divergence_threshold;       /**< default 1000 */
  int64_t max_num_steps;             /**< cap of a trajectory; default 100000 */
  const void* inverse_mass;          /**< diagonal (P,) of the target's dtype; NULL: ones */
  ribbit_progress_callback progress; /**< or NULL */
  void* user;                        /**< handed to progress */
  const ribbit_interrupt* interrupt; /**< or NULL */
  double target_accept; /**< mean acceptance that warmup tunes step sizes to; default 0.9 */
  /** (C,) or NULL: where the step sizes go that the chains end with. With step_size and warmup 0,
   * also where they come from: so a run goes on. */
  double* step_sizes;
} ribbit_hmc_options;
/** The defaults; size: sizeof(ribbit_hmc_options). */
RIBBIT_API int ribbit_hmc_options_init(ribbit_hmc_options* options, size_t size);

/** Where statistics of the kept draws go, (C, draws) each, or NULL. Names are ArviZ's. */
typedef struct ribbit_hmc_statistics {
  size_t size;             /**< of the struct */
  double* lp;              /**< log density */
  double* acceptance_rate; /**< Metropolis probability */
  double* energy;          /**< Hamiltonian */
  double* energy_error;    /**< how much a trajectory changed it */
  double* step_size;       /**< of the trajectory */
  int64_t* n_steps;        /**< leapfrog steps */
  uint8_t* accepted;       /**< 1: the proposal was taken */
  uint8_t* diverging;      /**< 1: its energy error was over the threshold */
} ribbit_hmc_statistics;
/** All NULL; size: sizeof(ribbit_hmc_statistics). */
RIBBIT_API int ribbit_hmc_statistics_init(ribbit_hmc_statistics* statistics, size_t size);

/** A run of Hamiltonian Monte Carlo (Neal 2011): rb.HMC with a step size that is given, or that
 * dual averaging finds in warmup (Hoffman and Gelman 2014), and a length or number of steps.
 * position: (C, P) starts, overwritten by where the chains are after the last whole transition.
 * draws: (C, options->draws, P), or NULL. statistics: or NULL. made: transitions of this call, or
 * NULL. After RIBBIT_INTERRUPTED the draws of the transitions made are there, and a call with
 * first_step larger by made goes on from position with the same bits, unless step sizes were
 * still being found. */
RIBBIT_API int ribbit_hmc(const ribbit_target* target, const ribbit_hmc_options* options,
                          void* position, void* draws, const ribbit_hmc_statistics* statistics,
                          int64_t* made);

/** Of a run of ribbit_sgld(). */
typedef struct ribbit_sgld_options {
  size_t size;                       /**< of the struct */
  uint64_t seed;                     /**< of all random numbers */
  int64_t chains;                    /**< C; default 1 */
  const uint32_t* chain_ids;         /**< (C,) or NULL */
  uint64_t first_step;               /**< steps that the chains made before: where a run goes on */
  int64_t warmup;                    /**< steps that are not kept; default 0 */
  int64_t draws;                     /**< draws that are kept of each chain */
  int64_t thin;                      /**< steps per draw; default 1 */
  double step_size;                  /**< > 0; no default */
  const double* factors;             /**< (warmup + draws * thin,) of the step size; NULL: 1 */
  int64_t batch_rows;                /**< 1..N; default 128. N: all rows */
  ribbit_progress_callback progress; /**< after every draw and 1,000 steps; acceptance_rate is 1 */
  void* user;                        /**< handed to progress */
  const ribbit_interrupt* interrupt; /**< or NULL */
} ribbit_sgld_options;
/** The defaults; size: sizeof(ribbit_sgld_options). */
RIBBIT_API int ribbit_sgld_options_init(ribbit_sgld_options* options, size_t size);

/** A run of stochastic gradient Langevin dynamics (Welling and Teh 2011) of a posterior: rb.SGLD
 * with a step size that is given. position, draws and made as in ribbit_hmc, in steps; where they
 * are not finite any more, RIBBIT_ERROR_NOT_FINITE, and position is what it was after made. */
RIBBIT_API int ribbit_sgld(const ribbit_target* target, const ribbit_sgld_options* options,
                           void* position, void* draws, int64_t* made);

/** @} */

/** @defgroup predictions Predictions
 * @{ */

/** Of draws (C, num_draws, P) at x (N, D), of a posterior. mean: (N, M) float64, of the function or
 * of probabilities; M = K, or K / 2 of a heteroscedastic likelihood. epistemic_sd: (N, M), how far
 * the draws' means spread; aleatoric: the noise's sd (N, M), or for classes the mean entropy (N,).
 * The last two may be NULL. */
RIBBIT_API int ribbit_predict(const ribbit_target* target, const void* draws, int64_t chains,
                              int64_t num_draws, const void* x, int64_t rows, double* mean,
                              double* epistemic_sd, double* aleatoric,
                              const ribbit_interrupt* interrupt);

/** @} */

#ifdef __cplusplus
}
#endif

#endif
