// All of cuda/ for the CPU, in one file that g++ compiles; for tests.
#define RIBBIT_CUDA_ON_CPU 1

#include "cuda/host/device.cu"
#include "cuda/host/leapfrog.cu"
#include "cuda/host/random.cu"
