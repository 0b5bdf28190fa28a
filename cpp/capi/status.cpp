// Messages, threads, interrupts and facts about the library.

#include "capi/status.h"

#include <cstdio>
#include <string_view>

#include "cpu/system/dispatch.h"

namespace ribbit::capi {
namespace {

// No destructor: a thread may end after the library is unloaded. An error needs no memory.
thread_local char message[1024] = "";

}  // namespace

int fail(int status, const char* function, const char* text) noexcept {
  const std::string_view all(text);
  const std::size_t end = all.find("] ");
  // Callers know environment variables, but no parts of the core.
  const bool named = end != all.npos && all.starts_with('[') && !all.starts_with("[RIBBIT_");
  std::snprintf(message, sizeof message, "[%s] %s", function, text + (named ? end + 2 : 0));
  return status;
}

void refuse(const char* function, const std::string& expected) {
  throw std::invalid_argument("[" + std::string(function) + "] expected " + expected);
}

}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

const char* ribbit_last_error(void) {
  return message;
}

const char* ribbit_version(void) {
  return RIBBIT_VERSION;
}

int ribbit_abi_version(void) {
  return RIBBIT_ABI_VERSION;
}

const char* ribbit_instruction_set(void) {
  const char* name = nullptr;
  guarded("ribbit_instruction_set", [&] {
    name = cpu::instruction_set().name;
    return RIBBIT_OK;
  });
  return name;
}

int ribbit_num_threads(void) {
  int count = 0;
  guarded("ribbit_num_threads", [&] {
    count = cpu::num_threads();
    return RIBBIT_OK;
  });
  return count;
}

int ribbit_set_num_threads(int count) {
  return guarded("ribbit_set_num_threads", [&] {
    cpu::set_num_threads(count);
    return RIBBIT_OK;
  });
}

int ribbit_interrupt_create(ribbit_interrupt** out) {
  constexpr const char* kName = "ribbit_interrupt_create";
  return guarded(kName, [&] {
    needs(out != nullptr, kName, "a place for the handle, got NULL");
    *out = new ribbit_interrupt;
    return RIBBIT_OK;
  });
}

void ribbit_interrupt_free(ribbit_interrupt* interrupt) {
  delete interrupt;
}

void ribbit_interrupt_set(ribbit_interrupt* interrupt) {
  if (interrupt != nullptr) interrupt->set.store(true);
}

void ribbit_interrupt_clear(ribbit_interrupt* interrupt) {
  if (interrupt != nullptr) interrupt->set.store(false);
}
