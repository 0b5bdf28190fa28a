#include "cuda/device.h"

#if defined(RIBBIT_CUDA_ON_CPU)

namespace ribbit::cuda {

int device_count() {
  return 1;
}
std::string device_name() {
  return "CPU";
}
int runtime_version() {
  return 0;
}
void check_launch() {}
void check_pointer(const void*, const char*) {}

}  // namespace ribbit::cuda

#else

#include <cuda_runtime_api.h>

namespace ribbit::cuda {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError(std::string("[_cuda] ") + what + ": " + cudaGetErrorName(status) + ", " +
                    cudaGetErrorString(status));
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // no driver: an answer, not an error that the next call should report
  return 0;
}

std::string device_name() {
  int device = 0;
  check(cudaGetDevice(&device), "device_name");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "device_name");
  return properties.name;
}

int runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "runtime_version");
  return version;
}

void check_launch() {
  check(cudaGetLastError(), "launch");
}

void check_pointer(const void* pointer, const char* name) {
  int current = 0;
  check(cudaGetDevice(&current), "check_pointer");
  cudaPointerAttributes attributes;
  check(cudaPointerGetAttributes(&attributes, pointer), "check_pointer");
  const bool on_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  if (on_device && attributes.device == current) return;
  throw std::invalid_argument(
      std::string("[_cuda] expected ") + name + " on the current device, " +
      std::to_string(current) + ", got memory of " +
      (on_device ? "device " + std::to_string(attributes.device) : std::string("the host")));
}

}  // namespace ribbit::cuda

#endif
