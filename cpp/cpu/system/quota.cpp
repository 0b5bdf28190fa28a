#include "cpu/system/quota.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace ribbit::cpu {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// cpu.max is "200000 100000" or "max 100000": microseconds of processor time per period.
double limit_of_version_2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : kNone;
}

// cpu.cfs_quota_us is -1 where there is no limit.
double limit_of_version_1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period
                                                                                 : kNone;
}

// The tightest limit of a group and all around it. In a container the path may be the host's, of
// which only the root is there.
template <class Limit>
double tightest(const std::string& mount, std::string path, const Limit& limit) {
  double found = kNone;
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    found = std::min(found, limit(mount + path));
    if (path.empty()) return found;
    path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

bool has_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

int cpu_quota(const std::string& groups, const std::string& root) {
  double found = kNone;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const char* mount : {"", "/unified"}) {
        found = std::min(found, tightest(root + mount, path, limit_of_version_2));
      }
    } else if (has_cpu(controllers)) {
      for (const std::string& mount : {std::string("cpu"), controllers}) {
        found = std::min(found, tightest(root + "/" + mount, path, limit_of_version_1));
      }
    }
  }
  return found == kNone ? 0 : static_cast<int>(std::clamp(found, 1.0, 1e6));
}

int cpu_quota() {
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream text;
  text << file.rdbuf();
  return cpu_quota(text.str(), "/sys/fs/cgroup");
}

}  // namespace ribbit::cpu
