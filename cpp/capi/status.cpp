// Messages, threads, interrupts and facts about the library.

#include "capi/status.h"

#include "cpu/system/dispatch.h"

namespace ribbit::capi {
namespace {

// No destructor: a thread may end after the library is unloaded. An error needs no memory.
thread_local char message[1024] = "";

}  // namespace

int fail(int status, const char* text) noexcept {
  std::strncpy(message, text, sizeof message - 1);
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
  guarded([&] {
    name = cpu::instruction_set().name;
    return RIBBIT_OK;
  });
  return name;
}

int ribbit_num_threads(void) {
  int count = 0;
  guarded([&] {
    count = cpu::num_threads();
    return RIBBIT_OK;
  });
  return count;
}

int ribbit_set_num_threads(int count) {
  return guarded([&] {
    cpu::set_num_threads(count);
    return RIBBIT_OK;
  });
}

int ribbit_interrupt_create(ribbit_interrupt** out) {
  return guarded([&] {
    needs(out != nullptr, "ribbit_interrupt_create", "a place for the handle, got NULL");
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
