#pragma once
// How many cores the control group of this process may use (Linux, versions 1 and 2).

#include <string>

namespace ribbit::cpu {

// The tightest limit of the group and the groups around it, rounded down, at least 1; 0: none.
// groups: the text of /proc/self/cgroup. root: where the groups are mounted, /sys/fs/cgroup.
int cpu_quota(const std::string& groups, const std::string& root);

// Of this process.
int cpu_quota();

}  // namespace ribbit::cpu
