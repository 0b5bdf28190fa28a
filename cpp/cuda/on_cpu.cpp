// All of cuda/ for the CPU, in one file that g++ compiles; for tests.
#define RIBBIT_CUDA_ON_CPU 1

#include "cuda/device.cu"
#include "cuda/leapfrog.cu"
#include "cuda/random.cu"
