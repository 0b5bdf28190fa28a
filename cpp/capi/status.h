#pragma once
// What every function of the C interface does: a status instead of an exception, a message per
// thread, options that may be older or newer than the library, an interrupt.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "chains/chains.h"
#include "cpu/system/threads.h"
#include "include/ribbit/ribbit.h"

struct ribbit_interrupt {
  std::atomic<bool> set{false};
};
static_assert(std::atomic<bool>::is_always_lock_free);  // set from signal handlers

namespace ribbit::capi {

// Steps left the numbers.
struct NotFinite : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Writes "[function] text" as this thread's message and returns the status. A name of a part of the
// core that begins the text is left out.
int fail(int status, const char* function, const char* text) noexcept;

// Runs the body() of a function of the interface, which returns a status or throws.
template <class Body>
int guarded(const char* function, const Body& body) noexcept {
  try {
    const int status = body();
    return status == RIBBIT_INTERRUPTED ? fail(status, function, "interrupted") : status;
  } catch (const std::invalid_argument& error) {
    return fail(RIBBIT_ERROR_ARGUMENT, function, error.what());
  } catch (const FunctionFailed& error) {
    return fail(RIBBIT_ERROR_FUNCTION, function, error.what());
  } catch (const NotFinite& error) {
    return fail(RIBBIT_ERROR_NOT_FINITE, function, error.what());
  } catch (const std::bad_alloc& error) {
    return fail(RIBBIT_ERROR_MEMORY, function, error.what());
  } catch (const std::length_error&) {
    return fail(RIBBIT_ERROR_MEMORY, function, "expected arrays that fit into memory");
  } catch (const std::exception& error) {
    return fail(RIBBIT_ERROR_INTERNAL, function, error.what());
  } catch (...) {
    return fail(RIBBIT_ERROR_INTERNAL, function, "expected no such exception");
  }
}

// Throws std::invalid_argument with "[function] expected ...".
[[noreturn]] void refuse(const char* function, const std::string& expected);
inline void needs(bool good, const char* function, const char* expected) {
  if (!good) refuse(function, expected);
}

constexpr int kInterrupted = RIBBIT_INTERRUPTED;

class InterruptPoll final : public cpu::Poll {
 public:
  explicit InterruptPoll(const ribbit_interrupt* interrupt) : interrupt_(interrupt) {}
  bool stop() override { return interrupt_ != nullptr && interrupt_->set.load(); }

 private:
  const ribbit_interrupt* interrupt_;
};

// Options of a caller whose struct may be shorter than ours, or longer where all that is unknown is
// 0. Options: begins with its size; defaults: its values where the caller's ends before.
template <class Options>
Options read_options(const char* function, const Options* given, const Options& defaults) {
  needs(given != nullptr, function, "options, got NULL");
  Options options = defaults;
  const std::size_t size = given->size;
  needs(size >= sizeof(std::size_t) && size < 65536, function,
        "options that their init function has filled");
  std::memcpy(&options, given, std::min(size, sizeof options));
  const char* bytes = reinterpret_cast<const char*>(given);
  needs(size <= sizeof options ||
            std::all_of(bytes + sizeof options, bytes + size, [](char c) { return c == 0; }),
        function, "options of this version of the library, got newer ones");
  options.size = sizeof options;
  return options;
}

// The other way: what an init function writes.
template <class Options>
int init_options(const char* function, Options* out, std::size_t size, const Options& defaults) {
  return guarded(function, [&] {
    needs(out != nullptr && size >= sizeof(std::size_t) && size < 65536, function,
          "a struct and its size");
    std::memset(out, 0, size);
    std::memcpy(out, &defaults, std::min(size, sizeof defaults));
    out->size = size;
    return RIBBIT_OK;
  });
}

}  // namespace ribbit::capi
