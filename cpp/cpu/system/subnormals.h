#pragma once
// Whether the calling thread computes with subnormal numbers: on x86-64 an instruction that meets
// one takes a hundred times as long, which makes a gradient 40 times as slow.

#include <cstdint>

namespace ribbit::cpu {

// While it lives the thread takes subnormal inputs for 0 and rounds subnormal results to 0, or does
// neither; then as before. Other code of the thread, such as NumPy's, never sees the change.
class Subnormals {
 public:
  enum Mode : bool { kKept, kFlushed };

  explicit Subnormals(Mode mode) : before_(control()), own_(with(before_, mode)) {
    if (own_ != before_) set_control(own_);
  }
  ~Subnormals() {
    if (own_ != before_) set_control(before_);
  }
  Subnormals(const Subnormals&) = delete;
  Subnormals& operator=(const Subnormals&) = delete;

 private:
#if defined(__x86_64__)
  using Control = std::uint32_t;                  // MXCSR
  static constexpr Control kFlushBits = 0x8040U;  // FTZ and DAZ
  static Control control() { return __builtin_ia32_stmxcsr(); }
  static void set_control(Control value) { __builtin_ia32_ldmxcsr(value); }
#elif defined(__aarch64__)
  using Control = std::uint64_t;                           // FPCR
  static constexpr Control kFlushBits = Control{1} << 24;  // FZ
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Control = std::uint32_t;
  static constexpr Control kFlushBits = 0;
  static Control control() { return 0; }
  static void set_control(Control) {}
#endif
  static Control with(Control control, Mode mode) {
    return mode == kFlushed ? control | kFlushBits : control & ~kFlushBits;
  }

  const Control before_, own_;
};

}  // namespace ribbit::cpu
