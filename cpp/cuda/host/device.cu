#include "cuda/host/device.h"

#if defined(RIBBIT_CUDA_ON_CPU)

namespace ribbit::cuda {

int device_count() {
  return 1;
}
std::string device_name() {
  return "CPU";
}
std::string device_problem() {
  return "";
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

__global__ void probe() {}  // compiled for the same devices as every kernel of the module

std::string text_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status);
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError(std::string("[_cuda] ") + what + ": " + text_of(status));
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

std::string device_problem() {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaError_t status = cudaGetDeviceCount(&device);
  if (status == cudaSuccess && device == 0) status = cudaErrorNoDevice;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  cudaFuncAttributes attributes;
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, probe);
  cudaGetLastError();  // an answer, not an error that the next call should report
  if (status == cudaSuccess) return "";
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    const std::string major_text = std::to_string(major);
    const std::string minor_text = std::to_string(minor);
    return "no code for compute capability " + major_text + "." + minor_text +
           " (8.0 or more, unless built with -DCMAKE_CUDA_ARCHITECTURES=" + major_text +
           minor_text + ")";
  }
  return text_of(status);
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
