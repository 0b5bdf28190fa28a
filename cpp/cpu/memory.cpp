#include "cpu/memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace ribbit::cpu {
namespace {

// The number in a file, negative when there is none.
std::int64_t number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = -1;
  return file >> value ? value : -1;
}

std::int64_t available() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib << 10;
  }
  return -1;
}

// With three digits at least.
std::string size_named(std::int64_t bytes) {
  if (bytes >= std::int64_t{1000} << 20) return std::to_string(bytes >> 20) + " MiB";
  if (bytes >= std::int64_t{1} << 20) {
    const std::int64_t tenths = 10 * bytes >> 20;
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
  }
  return std::to_string(bytes) + " bytes";
}

}  // namespace

std::string workspaces_named(std::int64_t count, std::int64_t bytes) {
  return std::to_string(count) + (count == 1 ? " workspace" : " workspaces") + " of " +
         size_named(bytes) + ", one per thread,";
}

std::int64_t free_memory() {
  if (const char* text = std::getenv("RIBBIT_FREE_MEMORY")) {
    std::int64_t bytes = -1;
    if (std::istringstream(text) >> bytes) return bytes;
  }
  std::int64_t bytes = available();
  // Control groups, version 2 and 1.
  const char* const files[2][2] = {{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
                                   {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                    "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  for (const auto& [limit, usage] : files) {
    const std::int64_t most = number_in(limit), used = number_in(usage);
    if (most < 0 || used < 0) continue;
    // Pages of files count as used, but are given back: what the system has available counts too.
    if (bytes < 0 || most < bytes) bytes = std::max<std::int64_t>(0, most - used);
  }
  return bytes;
}

void require_memory(std::int64_t bytes, const std::string& what) {
  const std::int64_t free = free_memory();
  if (free < 0 || bytes <= free) return;
  throw OutOfMemory("[ribbit] expected at least " + size_named(bytes) + " of free memory for " +
                    what + ", got " + size_named(free));
}

}  // namespace ribbit::cpu
