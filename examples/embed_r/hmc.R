# Ribbit from R: HMC on a small network. First compile the bridge, once:
#   include=$(python -c 'import ribbit; print(ribbit.get_include())')
#   gcc -shared -fPIC -I"$include" bridge.c -o bridge.so "$include"/../lib/libribbit.so.1 \
#     -Wl,-rpath,"$include"/../lib
#   Rscript hmc.R bridge.so
dyn.load(commandArgs(trailingOnly = TRUE)[1])

hmc <- function(x, y, x_new, width = 8, noise = 0.1, step = 0.01, length = 1, chains = 4,
                warmup = 300, draws = 300, seed = 1) {
  dim <- (ncol(x) + 2) * width + 1
  found <- .C("ribbit_r_hmc", t(x), as.double(y),
              as.integer(c(ncol(x), width, nrow(x), chains, warmup, draws, nrow(x_new))),
              as.double(noise), as.double(step), as.double(length), as.integer(seed), t(x_new),
              draws = double(chains * draws * dim), mean = double(nrow(x_new)),
              sd = double(nrow(x_new)), message = strrep(" ", 200))
  if (nzchar(found$message)) stop(found$message)
  # R's first index runs fastest: (dim, draws, chains)
  list(draws = array(found$draws, c(dim, draws, chains)), mean = found$mean, sd = found$sd)
}

x <- matrix(0:39) / 20 - 1
p <- hmc(x, x^2, matrix(0.5))
cat(sprintf("f(0.5) = %.3f +- %.3f\n", p$mean, p$sd))
