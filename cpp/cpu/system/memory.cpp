#include "cpu/system/memory.h"

#if defined(__APPLE__)
#include <mach/mach.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cpu/system/large_blocks.h"

namespace ribbit::cpu {
namespace {

// The number in a file, or behind a word in it; negative when there is none.
std::int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = -1;
  return file >> value ? value : -1;
}
std::int64_t number_behind(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value) {
    if (name == word) return value;
  }
  return -1;
}

#if defined(__APPLE__)
// What can be taken without writing anything to disk: macOS has no such figure of its own.
std::int64_t available() {
  vm_statistics64_data_t pages;
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages),
                        &count) != KERN_SUCCESS) {
    return -1;
  }
  const auto free = std::int64_t{pages.free_count} + pages.inactive_count + pages.purgeable_count;
  return free * static_cast<std::int64_t>(vm_kernel_page_size);
}
#else
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
#endif

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
    char* end = nullptr;
    const long long bytes = std::strtoll(text, &end, 10);
    if (end != text && *end == '\0' && bytes >= 0) return bytes;
  }
  std::int64_t bytes = available();
  struct Group {
    std::string limit, usage, stat, active, inactive;
  };
  const std::string one = "/sys/fs/cgroup/memory/", two = "/sys/fs/cgroup/";
  const Group groups[] = {{two + "memory.max", two + "memory.current", two + "memory.stat",
                           "active_file", "inactive_file"},
                          {one + "memory.limit_in_bytes", one + "memory.usage_in_bytes",
                           one + "memory.stat", "total_active_file", "total_inactive_file"}};
  for (const Group& group : groups) {
    const std::int64_t most = number_in(group.limit), used = number_in(group.usage);
    if (most < 0 || used < 0) continue;
    // Cached pages of files count as used, but are given back.
    const std::int64_t cached =
        std::max<std::int64_t>(0, number_behind(group.stat, group.active)) +
        std::max<std::int64_t>(0, number_behind(group.stat, group.inactive));
    const std::int64_t left = std::max<std::int64_t>(0, most - used + cached);
    bytes = bytes < 0 ? left : std::min(bytes, left);
  }
  return bytes;
}

void require_memory(std::int64_t bytes, const std::string& what) {
  constexpr std::int64_t kWorthAsking = 1 << 20;
  if (bytes < kWorthAsking) return;
  std::int64_t free = free_memory();
  if (free < 0 || bytes <= free) return;
  if (drop_blocks() > 0) free = free_memory();
  if (bytes <= free) return;
  throw OutOfMemory("[ribbit] expected at least " + size_named(bytes) + " of free memory for " +
                    what + ", got " + size_named(free));
}

}  // namespace ribbit::cpu
