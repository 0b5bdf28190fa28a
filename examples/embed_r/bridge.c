/* What R's .C can call: numbers by pointers, doubles alone. See hmc.R. */
#include <ribbit/ribbit.h>
#include <stdio.h>
#include <stdlib.h>

/* HMC of a network of one hidden layer on x (rows, inputs), y (rows,); sizes: inputs, hidden width,
 * rows, chains, warmup, draws, new rows. C order: R hands over transposed matrices. draws: (chains,
 * draws, dim) with dim = (inputs + 2) width + 1; mean, sd: (new rows,) of the function at x_new. */
void ribbit_r_hmc(const double* x, const double* y, const int* sizes, const double* noise,
                  const double* step, const double* length, const int* seed, const double* x_new,
                  double* draws, double* mean, double* sd, char** message) {
  const int64_t hidden[] = {sizes[1]}, chains = sizes[3];
  ribbit_network* net = NULL;
  ribbit_target* target = NULL;
  double* position = NULL;
  ribbit_posterior_options model;
  ribbit_hmc_options run;
  int failed = ribbit_posterior_options_init(&model, sizeof model) ||
               ribbit_hmc_options_init(&run, sizeof run);
  model.dtype = RIBBIT_FLOAT64;
  model.scale = *noise;
  run.seed = (uint64_t)*seed, run.chains = chains, run.warmup = sizes[4], run.draws = sizes[5];
  run.step_size = *step, run.trajectory_length = *length;
  failed = failed || ribbit_network_create_mlp(sizes[0], hidden, 1, 1, RIBBIT_TANH, &net) ||
           ribbit_target_create_posterior(net, &model, x, y, sizes[2], &target);
  if (!failed) {
    position = malloc(sizeof(double) * (size_t)(chains * ribbit_target_dim(target)));
    failed =
        position == NULL || ribbit_target_start(target, run.seed, NULL, chains, position) ||
        ribbit_hmc(target, &run, position, draws, NULL, NULL) ||
        ribbit_predict(target, draws, chains, run.draws, x_new, sizes[6], mean, sd, NULL, NULL);
  }
  snprintf(*message, 200, "%s", failed ? ribbit_last_error() : "");
  free(position);
  ribbit_target_free(target);
  ribbit_network_free(net);
}
