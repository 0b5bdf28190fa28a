/** @file
 * Ribbit for C: posteriors of networks, gradients, chains of HMC and NUTS, SGLD, predictions.
 *
 * The interface is C11 and needs no Python. Every function that can fail returns a status:
 * RIBBIT_OK or an error. ribbit_last_error() has the text of the last error on the same thread,
 * which begins with the name of the function: "[ribbit_sgld] expected batch_rows >= 1". No
 * exception leaves the library. Arrays belong to the caller. They are in C order and have the dtype
 * of the target or of the call. Functions ..._create... make handles, and ..._free frees them (NULL
 * is fine). Functions that take a const handle may run on several threads at once, except those of
 * chains.
 *
 * Draws have the bits of Ribbit for Python for the same seed, chain id, step, target, options,
 * dtype and instruction set, on any number of threads. A log density in Python may round
 * differently from the same formula in C.
 *
 * Shapes use these letters: C chains, P parameters, N rows, D inputs, K outputs, J columns of y.
 * chain_ids is (C,), or NULL for 0, 1, .., C - 1. The ids of a run are distinct. interrupt may be
 * NULL.
 *
 * Structs of options begin with their size. Fill them with ..._init(&options, sizeof options) and
 * set the members that differ from their defaults. New members only come at the end. */
#ifndef RIBBIT_RIBBIT_H
#define RIBBIT_RIBBIT_H

#include <stddef.h>
#include <stdint.h>

/** Marks the functions that the library exports. */
#if defined(__GNUC__)
#define RIBBIT_API __attribute__((visibility("default")))
#else
#define RIBBIT_API
#endif

/** Version of the interface, larger after every addition. Symbols carry the version that added
 * them: RIBBIT_1.0. */
#define RIBBIT_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/** @defgroup status Status
 * @{ */

/** Statuses that functions return. */
enum {
  RIBBIT_OK = 0,              /**< done */
  RIBBIT_ERROR_ARGUMENT = 1,  /**< an argument is out of its range */
  RIBBIT_ERROR_MEMORY = 2,    /**< there is not enough memory */
  RIBBIT_ERROR_FUNCTION = 3,  /**< a log density of the caller did not return 0 */
  RIBBIT_ERROR_INTERNAL = 4,  /**< another error */
  RIBBIT_INTERRUPTED = 5,     /**< an interrupt or a progress callback ended the call; no error */
  RIBBIT_ERROR_NOT_FINITE = 6 /**< a step of SGLD gave numbers that are not finite */
};

/** Returns the message of the last function that failed on this thread, or "". The text is valid
 * until the next function fails. */
RIBBIT_API const char* ribbit_last_error(void);

/** @} */

/** @defgroup library The library
 * @{ */

RIBBIT_API const char* ribbit_version(void); /**< version of Ribbit, such as "0.1.0" */
RIBBIT_API int ribbit_abi_version(void);     /**< RIBBIT_ABI_VERSION of the loaded library */
RIBBIT_API const char* ribbit_instruction_set(void); /**< such as "avx2"; NULL on failure */
RIBBIT_API int ribbit_num_threads(void);             /**< default: cores of this process */
RIBBIT_API int ribbit_set_num_threads(int count);    /**< at least 1 */

/** A flag that ends running calls with RIBBIT_INTERRUPTED within about 20 ms. Any thread and any
 * signal handler may set it. It stays set until it is cleared. */
typedef struct ribbit_interrupt ribbit_interrupt;
RIBBIT_API int ribbit_interrupt_create(ribbit_interrupt** out);      /**< not set */
RIBBIT_API void ribbit_interrupt_free(ribbit_interrupt* interrupt);  /**< frees it */
RIBBIT_API void ribbit_interrupt_set(ribbit_interrupt* interrupt);   /**< ends calls that use it */
RIBBIT_API void ribbit_interrupt_clear(ribbit_interrupt* interrupt); /**< allows the next call */

/** @} */

/** @defgroup networks Networks
 * @{ */

/** Dtypes. */
enum { RIBBIT_FLOAT32 = 0, RIBBIT_FLOAT64 = 1 };

/** Ops of layers. */
enum {
  RIBBIT_DENSE = 0,
  RIBBIT_ACTIVATION = 1,
  RIBBIT_DROPOUT = 2, /**< returns its input */
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

/** A row of the layer table: a layer turns one value into the next. Value 0 is the input of the
 * network, and value r + 1 is the output of row r. In Python, Model.table has these columns, and
 * Model.rates has the rates. */
typedef struct ribbit_layer {
  int64_t op;       /**< an op */
  int64_t in_size;  /**< size of the input of a data row */
  int64_t out_size; /**< size of the output of a data row */
  /** Offset of the first array in the parameters, or -1. Dense: (in, out); norms: gamma. */
  int64_t weight;
  int64_t bias;  /**< offset of the second array, or -1. Norms: beta */
  int64_t third; /**< offset of the third array, or -1. Norms: tau; LSTM: recurrent */
  /** Activation: its code; embedding: tokens; LSTM: 1 gives all states; convolution, group norm:
   * groups. */
  int64_t argument;
  int64_t index;           /**< number of the layer in messages */
  int64_t input;           /**< number of the input value */
  int64_t second;          /**< number of the second input of a sum, else -1 */
  int64_t height;          /**< height of the input image (height, width, channels) */
  int64_t width;           /**< width of the input image */
  int64_t channels;        /**< channels of the input image */
  int64_t kernel_height;   /**< height of the window */
  int64_t kernel_width;    /**< width of the window */
  int64_t stride_height;   /**< rows between neighbouring windows */
  int64_t stride_width;    /**< columns between neighbouring windows */
  int64_t pad_top;         /**< rows of zeros above the image */
  int64_t pad_left;        /**< columns of zeros left of the image */
  int64_t out_height;      /**< height of the output image (height, width, channels) */
  int64_t out_width;       /**< width of the output image */
  int64_t out_channels;    /**< channels of the output image */
  int64_t dilation_height; /**< distance of neighbouring rows of a window */
  int64_t dilation_width;  /**< distance of neighbouring columns of a window */
  double number;           /**< norms: epsilon */
  double rate;             /**< rate of dropout */
} ribbit_layer;

/** Writes zeros, and -1 for each member for which -1 means none. layer_size: sizeof(ribbit_layer).
 */
RIBBIT_API int ribbit_layer_init(ribbit_layer* layer, size_t layer_size);

/** Layers of a network with the offsets of their parameters. */
typedef struct ribbit_network ribbit_network;

/** Makes a network of a table of `count` rows. layer_size: sizeof(ribbit_layer). */
RIBBIT_API int ribbit_network_create(const ribbit_layer* layers, int64_t count, size_t layer_size,
                                     ribbit_network** out);
/** Makes rb.mlp: dense layers with biases and hidden widths (num_hidden,). An activation follows
 * each layer but the last. */
RIBBIT_API int ribbit_network_create_mlp(int64_t inputs, const int64_t* hidden, int64_t num_hidden,
                                         int64_t outputs, int activation, ribbit_network** out);
/** Makes the network of a description: JSON in UTF-8 of Posterior.describe() of Python. */
RIBBIT_API int ribbit_network_create_json(const char* json, ribbit_network** out);
RIBBIT_API void ribbit_network_free(ribbit_network* network);         /**< its targets stay valid */
RIBBIT_API int64_t ribbit_network_dim(const ribbit_network* network); /**< P; 0 for NULL */
RIBBIT_API int64_t ribbit_network_inputs(const ribbit_network* network);  /**< D; 0 for NULL */
RIBBIT_API int64_t ribbit_network_outputs(const ribbit_network* network); /**< K; 0 for NULL */

/** Writes the raw outputs (samples, N, K) of weights theta (samples, P) at x (N, D), all of one
 * dtype. */
RIBBIT_API int ribbit_network_apply(const ribbit_network* network, int dtype, const void* theta,
                                    int64_t samples, const void* x, int64_t rows, void* out,
                                    const ribbit_interrupt* interrupt);

/** @} */

/** @defgroup targets Targets of samplers
 * @{ */

/** Priors and their numbers a, b, c. Numbers that are not named are 0. */
enum {
  RIBBIT_NORMAL = 0,          /**< N(0, a^2) */
  RIBBIT_LAPLACE = 1,         /**< scale a */
  RIBBIT_STUDENT_T = 2,       /**< a degrees of freedom, scale b */
  RIBBIT_LOGISTIC = 3,        /**< scale a */
  RIBBIT_SCALE_MIXTURE = 4,   /**< a N(0, b^2) + (1 - a) N(0, c^2) */
  RIBBIT_GAMMA_PRECISION = 5, /**< log of a scale; 1 / scale^2 ~ Gamma(a, rate b) */
  RIBBIT_HALF_NORMAL = 6,     /**< log of a scale; scale ~ |N(0, a^2)| */
  RIBBIT_HALF_CAUCHY = 7      /**< log of a scale; scale ~ half-Cauchy of scale a */
};

/** The prior of the parameters [offset, offset + size). Segments cover all parameters in order.
 * Logarithms of learned noises come last. */
typedef struct ribbit_prior {
  int64_t offset; /**< first parameter */
  int64_t size;   /**< number of parameters */
  int64_t kind;   /**< a prior */
  double a;       /**< first number */
  double b;       /**< second number */
  double c;       /**< third number */
} ribbit_prior;

/** Likelihoods. */
enum {
  RIBBIT_GAUSSIAN = 0,         /**< y ~ N(f, scale^2) */
  RIBBIT_GAUSSIAN_LEARNED = 1, /**< each output's log scale is one more parameter */
  RIBBIT_HETEROSCEDASTIC = 2,  /**< outputs are means, then raw scales */
  RIBBIT_CATEGORICAL = 3,      /**< logits; y is a label 0..K-1 */
  RIBBIT_BERNOULLI = 4,        /**< logits; y is 0 or 1 */
  RIBBIT_POISSON = 5,          /**< log rates; y is a count */
  RIBBIT_STUDENT_T_NOISE = 6,  /**< shape is the degrees of freedom */
  RIBBIT_STUDENT_T_NOISE_LEARNED = 7,
  RIBBIT_HETEROSCEDASTIC_FLOORED = 8
};

/** log density = (log likelihood / likelihood_temperature + log prior) / temperature */
typedef struct ribbit_posterior_options {
  size_t size;        /**< size of the struct */
  int32_t dtype;      /**< dtype of x, y, positions and gradients; default RIBBIT_FLOAT32 */
  int32_t likelihood; /**< default RIBBIT_GAUSSIAN */
  double scale;       /**< known scale of the noise; default 1 */
  double shape;       /**< StudentT: degrees of freedom */
  double temperature; /**< temperature of the posterior; default 1 */
  double likelihood_temperature; /**< default 1 */
  const ribbit_prior* prior;     /**< (num_prior,); NULL: N(0, 1) for every parameter */
  int64_t num_prior;             /**< number of segments */
  const void* centre;            /**< (P,) means of the priors, copied; NULL: 0 */
  int64_t num_scales;   /**< number of noise scales: 1 for all outputs, or K. Default 0 means
                           K if they are learned, else 1 */
  const double* scales; /**< (num_scales,) known scales, copied; NULL: `scale` for each */
  int32_t marginalize;  /**< 1: HMC and NUTS without a given step size, length or mass
                           integrate out a last dense layer if that pays, as in Python; 0:
                           never; default 1 */
  int32_t reserved;     /**< 0 */
} ribbit_posterior_options;
/** Writes the defaults; size: sizeof(ribbit_posterior_options). */
RIBBIT_API int ribbit_posterior_options_init(ribbit_posterior_options* options, size_t size);

/** A distribution that samplers draw from: a posterior or a function. */
typedef struct ribbit_target ribbit_target;

/** Makes the posterior of a network on x (N, D) and y (N, J), finite and of the dtype of the
 * options. Both are not copied: keep them unchanged while the target lives. The network may be
 * freed at once. */
RIBBIT_API int ribbit_target_create_posterior(const ribbit_network* network,
                                              const ribbit_posterior_options* options,
                                              const void* x, const void* y, int64_t rows,
                                              ribbit_target** out);

/** Makes the posterior of a description: json.dumps(posterior.describe()) of Python, which is also
 * the entry "predictive" of the header of saved draws. dtype must be the description's. x = y =
 * NULL and rows = 0 make a target for predictions alone. If the description has units
 * (standardize=True), x and y are in the user's units, and the target keeps standardised copies.
 * Learned scales of weights and dropout masks are refused. */
RIBBIT_API int ribbit_target_create_json(const char* json, int dtype, const void* x, const void* y,
                                         int64_t rows, ribbit_target** out);

/** A log density of your own in float64. It writes grad (n,) and *lp at x (n,) and returns 0.
 * Samplers reject numbers that are not finite. Another return code ends the call with
 * RIBBIT_ERROR_FUNCTION. */
typedef int (*ribbit_log_density)(size_t n, const double* x, double* grad, double* lp, void* user);
/** Makes a target of a function of `dim` numbers. The function gets `user`. threadsafe: 1 if
 * several threads may call it at once. */
RIBBIT_API int ribbit_target_create_function(ribbit_log_density function, int64_t dim, void* user,
                                             int threadsafe, ribbit_target** out);
RIBBIT_API void ribbit_target_free(ribbit_target* target);         /**< frees it, not x and y */
RIBBIT_API int64_t ribbit_target_dim(const ribbit_target* target); /**< P; 0 for NULL */
RIBBIT_API int ribbit_target_dtype(const ribbit_target* target);   /**< dtype of positions */

/** Writes starts (C, P). A network has weights from N(0, 2 / fan_in), biases 0 (He et al. 2015) and
 * learned log noise 0. A function has standard normals. */
RIBBIT_API int ribbit_target_start(const ribbit_target* target, uint64_t seed,
                                   const uint32_t* chain_ids, int64_t chains, void* position);

/** Writes the tempered log density at theta (C, P) as two terms (C, 2), likelihood and prior, and
 * the gradient (C, P) of their sum. grad may be NULL. subset: (subset_rows,) numbers of rows, whose
 * likelihood counts N / subset_rows times; NULL: all rows. A function has no rows, and its second
 * term is 0. */
RIBBIT_API int ribbit_value_and_grad(const ribbit_target* target, const void* theta, int64_t chains,
                                     const int64_t* subset, int64_t subset_rows, double* terms,
                                     void* grad, const ribbit_interrupt* interrupt);

/** Makes num_steps[c] >= 1 leapfrog steps of size step_size[c] for each chain. position, momentum
 * and grad (C, P), the gradient at the position, are overwritten by their values at the end. terms
 * (C, 2) are the terms at the end. inverse_mass: diagonal (P,), or NULL for ones. After
 * RIBBIT_INTERRUPTED or an error the arrays have no useful content. */
RIBBIT_API int ribbit_leapfrog(const ribbit_target* target, int64_t chains, void* position,
                               void* momentum, void* grad, const void* inverse_mass,
                               const double* step_size, const int64_t* num_steps, double* terms,
                               const ribbit_interrupt* interrupt);

/** @} */

/** @defgroup samplers Samplers
 * @{ */

/** One option of a kernel: a text or numbers. Give each option once. An option that you do not give
 * has its default. The text "None" is Python's None: the default, but ones for inverse_mass_matrix
 * of "nuts". Texts are matched exactly, so "none" and "" are refused, and so is NULL without
 * numbers. */
typedef struct ribbit_option {
  const char* name;      /**< such as "step_size" */
  const char* text;      /**< such as "auto"; NULL if the option has numbers */
  const double* numbers; /**< (count,) numbers, not read if there is a text; 1 and 0 are True and
                            False */
  int64_t count;         /**< 1 for a single number */
} ribbit_option;

/** A row of the table of options. */
typedef struct ribbit_option_info {
  const char* kernel;        /**< "hmc" or "nuts" */
  const char* name;          /**< name of the option */
  const char* default_value; /**< default, as written in Python; None depends on the target */
  const char* must_be;       /**< which values are accepted */
  const char* documentation; /**< what the option does */
} ribbit_option_info;
/** Writes row `index` of the table of all kernels. Behind the last row it returns
 * RIBBIT_ERROR_ARGUMENT. The texts live as long as the library. */
RIBBIT_API int ribbit_kernel_option(int64_t index, ribbit_option_info* out);

/** Which chains a run has, and which of their transitions give draws. */
typedef struct ribbit_run_options {
  size_t size;               /**< size of the struct */
  uint64_t seed;             /**< seed of all random numbers; default 0 */
  int64_t chains;            /**< number of chains C; default 1 */
  const uint32_t* chain_ids; /**< (C,) distinct ids, copied; NULL: 0, 1, .., C - 1 */
  int64_t warmup;            /**< transitions before the first draw; default 500 */
  int64_t thin;              /**< transitions per draw; default 1 */
  int32_t save_warmup;       /**< 1: each transition of warmup gives a draw too; default 0 */
  int32_t reserved;          /**< 0 */
} ribbit_run_options;
/** Writes the defaults; size: sizeof(ribbit_run_options). */
RIBBIT_API int ribbit_run_options_init(ribbit_run_options* options, size_t size);

/** Chains of a kernel on a target: positions, warmup and counters. The draws of a chain depend on
 * the seed, its id and the number of the transition alone. Threads and the lengths of calls change
 * no bit. One thread at a time may use the chains. */
typedef struct ribbit_chains ribbit_chains;

/** Makes new chains. kernel: "hmc" (Neal 2011) or "nuts" (Hoffman and Gelman 2014). options:
 * (num_options,) of the kernel, copied, or NULL. The target must outlive the chains. Call
 * ribbit_chains_start() next. */
RIBBIT_API int ribbit_chains_create(const ribbit_target* target, const char* kernel,
                                    const ribbit_option* options, int64_t num_options,
                                    const ribbit_run_options* run, ribbit_chains** out);
/** Makes chains from bytes of ribbit_chains_save(). Seed, chain ids, warmup, positions and the
 * results of warmup come from the bytes. The options and thin and save_warmup of `run` are those of
 * this call. Bytes of another kernel, target or instruction set are refused. */
RIBBIT_API int ribbit_chains_load(const ribbit_target* target, const char* kernel,
                                  const ribbit_option* options, int64_t num_options,
                                  const ribbit_run_options* run, const void* bytes, size_t size,
                                  ribbit_chains** out);
/** Frees the chains, not their target. */
RIBBIT_API void ribbit_chains_free(ribbit_chains* chains);

/** Starts new chains at position (C, P), and finds the first step sizes. NULL: the positions of
 * ribbit_target_start(). */
RIBBIT_API int ribbit_chains_start(ribbit_chains* chains, const void* position,
                                   const ribbit_interrupt* interrupt);

/** Makes transitions until there are `most` draws, warmup ends, or `seconds` have passed. In warmup
 * `most` counts transitions, which give draws with save_warmup alone. count: the number of new
 * draws of each chain, which may be 0 or fewer than `most`; call again for more. draws: (C, stride,
 * P) with stride >= most, or NULL; each chain's first `count` rows are written. After an error or
 * RIBBIT_INTERRUPTED the chains are as before the call. */
RIBBIT_API int ribbit_chains_advance(ribbit_chains* chains, int64_t most, double seconds,
                                     void* draws, int64_t stride, int64_t* count,
                                     const ribbit_interrupt* interrupt);
/** Writes a statistic of the draws of the last ribbit_chains_advance(): the first `count` numbers
 * of each row of out (C, stride), with stride >= count. ribbit_chains_statistic_info() has their
 * type. */
RIBBIT_API int ribbit_chains_statistic(const ribbit_chains* chains, const char* name, void* out,
                                       int64_t stride);
/** A row of the table of statistics. */
typedef struct ribbit_statistic_info {
  const char* name; /**< such as "acceptance_rate", as in draws.stats of Python */
  int32_t dtype;    /**< 'd': double, 'q': int64_t, '?': uint8_t, 0 or 1 */
} ribbit_statistic_info;
/** Writes row `index` of the table of the chains' statistics. Behind the last row it returns
 * RIBBIT_ERROR_ARGUMENT. */
RIBBIT_API int ribbit_chains_statistic_info(const ribbit_chains* chains, int64_t index,
                                            ribbit_statistic_info* out);
/** Writes the positions (C, P) of the chains. */
RIBBIT_API int ribbit_chains_position(const ribbit_chains* chains, void* out);

/** Counts of a run. Means and sums are over all transitions of all chains since they were made or
 * loaded, warmup included. ribbit_chains_statistic() has the statistics of draws alone. */
typedef struct ribbit_summary {
  size_t size;            /**< size of the struct */
  int64_t chains;         /**< number of chains C */
  int64_t step;           /**< transitions of each chain, warmup included */
  int32_t warming_up;     /**< 1: the next transition belongs to warmup */
  int32_t reserved;       /**< 0 */
  int64_t divergences;    /**< diverging transitions, warmup included */
  int64_t gradients;      /**< gradients, warmup included */
  double acceptance_rate; /**< mean, warmup included; 0 before the first transition */
  double step_size;       /**< mean step size of the next transition; 0 before the start */
} ribbit_summary;
/** Fills a struct whose size is set. */
RIBBIT_API int ribbit_chains_summary(const ribbit_chains* chains, ribbit_summary* out);

/** Writes the chains as bytes. size: capacity of `bytes` before the call, number of bytes after it.
 * NULL for `bytes` asks for the number alone. */
RIBBIT_API int ribbit_chains_save(const ribbit_chains* chains, void* bytes, size_t* size);

/** Progress of ribbit_sgld(). */
typedef struct ribbit_progress {
  size_t size;            /**< size of the struct */
  int64_t done;           /**< steps of this call so far, warmup included */
  int64_t total;          /**< steps that this call makes */
  int64_t divergences;    /**< 0 */
  double acceptance_rate; /**< 1 */
} ribbit_progress;
/** Called on the thread that called ribbit_sgld(). Any value but 0 ends the run. */
typedef int (*ribbit_progress_callback)(const ribbit_progress* progress, void* user);

/** Options of ribbit_sgld(). */
typedef struct ribbit_sgld_options {
  size_t size;               /**< size of the struct */
  uint64_t seed;             /**< seed of all random numbers */
  int64_t chains;            /**< number of chains C; default 1 */
  const uint32_t* chain_ids; /**< (C,) distinct ids or NULL */
  uint64_t first_step;       /**< steps of the chains before this call */
  int64_t warmup;            /**< steps before the first draw; default 0 */
  int64_t draws;             /**< draws of each chain */
  int64_t thin;              /**< steps per draw; default 1 */
  double step_size;          /**< step size > 0; no default */
  const double* factors;     /**< (warmup + draws * thin,) factors of the step size; NULL: 1 */
  int64_t batch_rows;        /**< rows of a minibatch, 1..N; default 128 */
  ribbit_progress_callback progress; /**< called after every draw and 1,000 steps; or NULL */
  void* user;                        /**< argument of progress */
  const ribbit_interrupt* interrupt; /**< or NULL */
} ribbit_sgld_options;
/** Writes the defaults; size: sizeof(ribbit_sgld_options). */
RIBBIT_API int ribbit_sgld_options_init(ribbit_sgld_options* options, size_t size);

/** Runs stochastic gradient Langevin dynamics (Welling and Teh 2011) on a posterior: rb.SGLD with a
 * given step size. position (C, P) moves. draws: (C, draws, P), or NULL. made: steps of this call,
 * or NULL. If a step is not finite, the status is RIBBIT_ERROR_NOT_FINITE, and position is the one
 * after `made` steps. */
RIBBIT_API int ribbit_sgld(const ribbit_target* target, const ribbit_sgld_options* options,
                           void* position, void* draws, int64_t* made);

/** @} */

/** @defgroup predictions Predictions
 * @{ */

/** Writes the prediction of draws (C, num_draws, P) of a posterior at x (N, D). mean: (N, M)
 * float64 of the function or of probabilities. M is K, or K / 2 for a heteroscedastic likelihood.
 * epistemic_sd: (N, M), the sd of the draws' means. aleatoric: the sd of the noise (N, M), or the
 * mean entropy (N,) for classes. The last two may be NULL. x and the results are in the user's
 * units if the target's description has units. */
RIBBIT_API int ribbit_predict(const ribbit_target* target, const void* draws, int64_t chains,
                              int64_t num_draws, const void* x, int64_t rows, double* mean,
                              double* epistemic_sd, double* aleatoric,
                              const ribbit_interrupt* interrupt);

/** @} */

#ifdef __cplusplus
}
#endif

#endif
