/* A function for R's .C, which passes pointers to int and double. See hmc.R. */
#include <ribbit/ribbit.h>
#include <stdio.h>

/* Samples a network with one hidden layer on x (rows, inputs) and y (rows,) by HMC. sizes: inputs,
 * hidden width, rows, chains, warmup, draws, new rows. Arrays are in C order, so R passes
 * transposed matrices. draws: (chains, draws, dim) with dim = (inputs + 2) width + 1. mean, sd:
 * (new rows,) of the function at x_new. */
void ribbit_r_hmc(const double* x, const double* y, const int* sizes, const double* noise,
                  const double* step, const double* length, const int* seed, const double* x_new,
                  double* draws, double* mean, double* sd, char** message) {
  const int64_t hidden[] = {sizes[1]}, num_draws = sizes[5];
  const ribbit_option options[] = {{"step_size", NULL, step, 1},
                                   {"trajectory_length", NULL, length, 1}};
  ribbit_network* net = NULL;
  ribbit_target* target = NULL;
  ribbit_chains* chains = NULL;
  ribbit_posterior_options model;
  ribbit_run_options run;
  int failed = ribbit_posterior_options_init(&model, sizeof model) ||
               ribbit_run_options_init(&run, sizeof run);
  model.dtype = RIBBIT_FLOAT64;
  model.scale = *noise;
  run.seed = (uint64_t)*seed, run.chains = sizes[3], run.warmup = sizes[4];
  failed = failed || ribbit_network_create_mlp(sizes[0], hidden, 1, 1, RIBBIT_TANH, &net) ||
           ribbit_target_create_posterior(net, &model, x, y, sizes[2], &target) ||
           ribbit_chains_create(target, "hmc", options, 2, &run, &chains) ||
           ribbit_chains_start(chains, NULL, NULL);
  const int64_t dim = ribbit_target_dim(target);
  for (int64_t made = 0, count = 0; !failed && made < num_draws; made += count) {
    failed = ribbit_chains_advance(chains, num_draws - made, 1, draws + made * dim, num_draws,
                                   &count, NULL);
  }
  failed = failed || ribbit_predict(target, draws, run.chains, num_draws, x_new, sizes[6], mean, sd,
                                    NULL, NULL);
  snprintf(*message, 200, "%s", failed ? ribbit_last_error() : "");
  ribbit_chains_free(chains);
  ribbit_target_free(target);
  ribbit_network_free(net);
}
