#pragma once
// Native work without the GIL, also on a daemon thread that the end of the interpreter finds there.

#include <pybind11/pybind11.h>

#include <chrono>
#include <thread>

namespace ribbit::bindings {

// Gives the GIL away while it lives. Where the interpreter has ended meanwhile the thread must not
// come back: before Python 3.14 taking the GIL then ends the thread by unwinding its stack, which a
// destructor turns into std::terminate, and no object on that stack can be released without an
// interpreter. The thread rests instead until the process ends, as 3.14 itself makes it do.
class WithoutGil {
 public:
  WithoutGil() : initialized_(Py_IsInitialized() != 0), state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    // Who tears the interpreter down may compute, in a finaliser: for that thread it was gone
    // before.
    if (initialized_ && Py_IsInitialized() == 0) rest();
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // it ended between the two lines: glibc unwinds as an exception does
      rest();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  [[noreturn]] static void rest() {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(24));
  }

  const bool initialized_;
  PyThreadState* const state_;
};

}  // namespace ribbit::bindings
