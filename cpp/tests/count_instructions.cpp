// A plugin of qemu-user (7.2 to 8.2): the instructions that a program has executed, written to
// standard error at every getppid(2), its mark. Of one thread. Built and used by tools/aarch64.py.
//
// What is declared here is that part of the interface of plugins, version 1, that is used.

#include <cstddef>
#include <cstdint>
#include <cstdio>

extern "C" {
struct qemu_plugin_tb;  // a translated block
void qemu_plugin_register_vcpu_tb_trans_cb(std::uint64_t id,
                                           void (*call)(std::uint64_t, qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(qemu_plugin_tb* block, int operation, void* counter,
                                              std::uint64_t amount);
std::size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb* block);
void qemu_plugin_register_vcpu_syscall_cb(std::uint64_t id,
                                          void (*call)(std::uint64_t, unsigned, std::int64_t,
                                                       std::uint64_t, std::uint64_t, std::uint64_t,
                                                       std::uint64_t, std::uint64_t, std::uint64_t,
                                                       std::uint64_t, std::uint64_t));

__attribute__((visibility("default"))) extern const int qemu_plugin_version = 1;
}

namespace {

std::uint64_t executed = 0;

void translated(std::uint64_t, qemu_plugin_tb* block) {
  constexpr int kAdd = 0;
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAdd, &executed, qemu_plugin_tb_n_insns(block));
}

void called(std::uint64_t, unsigned, std::int64_t number, std::uint64_t, std::uint64_t,
            std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
            std::uint64_t) {
  constexpr std::int64_t kGetppid = 173;  // of AArch64
  if (number == kGetppid) {
    std::fprintf(stderr, "executed %llu\n", static_cast<unsigned long long>(executed));
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int qemu_plugin_install(std::uint64_t id,
                                                                          const void*, int,
                                                                          char**) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_vcpu_syscall_cb(id, called);
  return 0;
}
