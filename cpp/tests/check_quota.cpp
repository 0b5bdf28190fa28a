// What the machine allows. Core limits of control groups, on folders made here: both versions,
// nested groups, containers. Instruction sets: those that GCC's own library finds.

#include <unistd.h>  // mkdtemp of macOS

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/system/dispatch.h"
#include "cpu/system/quota.h"

using ribbit::cpu::cpu_quota;
namespace fs = std::filesystem;

namespace {

class Tree {
 public:
  Tree() {
    std::string name = (fs::temp_directory_path() / "quotaXXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~Tree() { fs::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void put(const std::string& path, const std::string& text) const {
    fs::create_directories((fs::path(root_) / path).parent_path());
    std::ofstream(fs::path(root_) / path) << text << '\n';
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace

int main() {
  {
    const Tree none;
    CHECK(cpu_quota("", none.root()) == 0);
    CHECK(cpu_quota("0::/\nrubbish\n:\n", none.root()) == 0);
    none.put("cpu.max", "max 100000");
    CHECK(cpu_quota("0::/\n", none.root()) == 0);
  }
  {
    const Tree second;  // the tightest of the groups around it counts
    second.put("a/b/cpu.max", "400000 100000");
    second.put("a/cpu.max", "250000 100000");
    CHECK(cpu_quota("0::/a/b\n", second.root()) == 2);
    CHECK(cpu_quota("0::/a\n", second.root()) == 2);
    CHECK(cpu_quota("0::/other\n", second.root()) == 0);
    second.put("a/b/cpu.max", "50000 100000");
    CHECK(cpu_quota("0::/a/b\n", second.root()) == 1);  // never less than a thread
  }
  {
    const Tree container;  // the path is the host's, the files are at the root
    container.put("cpu.max", "300000 100000");
    CHECK(cpu_quota("0::/docker/0123\n", container.root()) == 3);
  }
  {
    const Tree first;
    first.put("cpu,cpuacct/job/cpu.cfs_quota_us", "400000");
    first.put("cpu,cpuacct/job/cpu.cfs_period_us", "100000");
    CHECK(cpu_quota("4:cpu,cpuacct:/job\n3:memory:/\n0::/\n", first.root()) == 4);
    CHECK(cpu_quota("4:cpuset:/job\n", first.root()) == 0);
    first.put("cpu/cpu.cfs_quota_us", "-1");
    first.put("cpu/cpu.cfs_period_us", "100000");
    CHECK(cpu_quota("4:cpu:/\n", first.root()) == 0);
  }
#if defined(__x86_64__) && !defined(__clang__)  // of whose libraries some find nothing
  std::vector<std::string> found;
#if defined(RIBBIT_X86_BASELINE)
  if (__builtin_cpu_supports("x86-64-v2")) found.push_back("baseline");
#endif
#if defined(RIBBIT_X86_AVX2)
  if (__builtin_cpu_supports("x86-64-v3")) found.push_back("avx2");
#endif
#if defined(RIBBIT_X86_AVX512)
  if (__builtin_cpu_supports("x86-64-v4")) found.push_back("avx512");
#endif
  CHECK(ribbit::cpu::available_instruction_sets() == found);
#endif
  return report("check_quota");
}
