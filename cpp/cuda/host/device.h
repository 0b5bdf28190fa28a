#pragma once
// Facts about the devices of this machine, and errors of the runtime. Nothing here waits for a
// device.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace ribbit::cuda {

using StreamHandle = void*;  // cudaStream_t; null is the default stream

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

int device_count();         // 0 without a driver
std::string device_name();  // of the current device
// Why kernels of this module cannot run on the current device; empty when they can.
std::string device_problem();
int runtime_version();  // of the runtime linked in, 1000 major + 10 minor
void check_launch();    // throws DeviceError
// Throws std::invalid_argument unless the memory is the current device's.
void check_pointer(const void* pointer, const char* name);

}  // namespace ribbit::cuda
