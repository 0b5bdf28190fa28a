// Checks words and normals: known answers, the formula in long double, and every instruction set
// against the scalar code, bit by bit. Prints the largest errors; exit code 1 over a bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/normal_hd.h"
#include "core/ops_hd.h"
#include "core/permutation_hd.h"
#include "core/philox_hd.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/system/dispatch.h"
#include "tests/accuracy.h"

namespace {

using ribbit::Ops;
using ribbit::cpu::InstructionSet;
using ribbit::cpu::KernelTable;

void check_known_answers() {
  // Random123 1.14, kat_vectors: philox4x32 10
  struct Known {
    std::uint32_t counter[4], key[2], answer[4];
  };
  const Known known[] = {{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                         {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                          {0xffffffff, 0xffffffff},
                          {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                         {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                          {0xa4093822, 0x299f31d0},
                          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Known& k : known) {
    const std::uint64_t key = (static_cast<std::uint64_t>(k.key[1]) << 32) | k.key[0];
    ribbit::Word64 c[1][4] = {{k.counter[0], k.counter[1], k.counter[2], k.counter[3]}};
    ribbit::philox4x32<1>(c, key);
    for (int i = 0; i < 4; ++i)
      if (static_cast<std::uint32_t>(c[0][i]) != k.answer[i]) fail("philox4x32-10", "known answer");
    for (const std::string& name : ribbit::cpu::available_instruction_sets()) {
      std::uint32_t words[4];
      ribbit::cpu::instruction_set_named(name).fill_words(
          words, 4, std::uint64_t{4} * k.counter[0], key, k.counter[1], k.counter[2], k.counter[3]);
      if (std::memcmp(words, k.answer, sizeof words) != 0) fail(name.c_str(), "known answer");
    }
  }
  if (ribbit::counter_purpose(9, 3, 0x1234567890ull) != 0x09000312u ||
      ribbit::counter_step(0x1234567890ull) != 0x34567890u || ribbit::counter_block(11) != 2)
    fail("philox4x32-10", "address");
}

// One pair of words: scalar normals against the formula in long double.
template <class T>
void check_row_noise(std::uint32_t w0, std::uint32_t w1, double* worst) {
  T z0, z1;
  ribbit::box_muller<T>(w0, w1, z0, z1);
  // -2 ln u1 without cancellation near 1
  const Real below_one = (static_cast<Real>(0xffffffffu - w0) + 0.5L) * 0x1p-32L;
  const Real u1 = (static_cast<Real>(w0) + 0.5L) * 0x1p-32L;
  const Real radius = std::sqrt(-2 * (w0 > 0x80000000u ? std::log1p(-below_one) : std::log(u1)));
  const Real angle = 2 * kPi * ((static_cast<Real>(w1) + 0.5L) * 0x1p-32L);
  const Real e0 = std::fabs(z0 - radius * std::cos(angle));
  const Real e1 = std::fabs(z1 - radius * std::sin(angle));
  const double e = static_cast<double>(std::fmax(e0, e1) / radius);
  if (!(e <= *worst)) *worst = e;
}

template <class T>
void check_normals() {
  std::vector<std::uint32_t> edges = {0,          1,          2,          0x1fffffff, 0x20000000,
                                      0x3fffffff, 0x40000000, 0x5a827999, 0x5fffffff, 0x60000000,
                                      0x7ffffffe, 0x7fffffff, 0x80000000, 0x80000001, 0x9fffffff,
                                      0xa0000000, 0xb504f333, 0xbfffffff, 0xc0000000, 0xdfffffff,
                                      0xe0000000, 0xfffffffe, 0xffffffff};
  double worst = 0.0;
  for (const std::uint32_t w0 : edges)
    for (const std::uint32_t w1 : edges) check_row_noise<T>(w0, w1, &worst);
  std::vector<std::uint32_t> words((1 << 20) / kReduction);
  ribbit::cpu::instruction_set().fill_words(words.data(), std::ssize(words), 0, 7, 1, 2, 3);
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    check_row_noise<T>(words[i], words[i + 1], &worst);
    // small and large u1: shift the word towards either end
    const unsigned shift = words[i + 1] & 31u;
    check_row_noise<T>(words[i] >> shift, words[i + 1], &worst);
    check_row_noise<T>(~(words[i] >> shift), words[i + 1], &worst);
  }
  const double bound = sizeof(T) == 4 ? 2.6e-7 : 5e-16;
  T largest, unused;
  ribbit::box_muller<T>(0, 0, largest, unused);
  std::printf("scalar    %s normals: error %.2e of the radius (bound %.1e), largest %.6f\n",
              type_name<T>(), worst, bound, static_cast<double>(largest));
  if (!(worst <= bound)) fail("normals", "accuracy");
  if (std::fabs(static_cast<double>(largest) - std::sqrt(66.0 * std::log(2.0))) > 1e-6)
    fail("normals", "largest value");
}

// Every instruction set against the scalar formula, bit by bit.
template <class T>
void check_stream(const char* where, const InstructionSet& set, const KernelTable<T>& table) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 31, 64, 127, 128, 129, 1000, 40000}) {
    const std::uint64_t first = n % 2 == 0 ? 0 : 4 * 0xfffffffeull - 400;  // c0 wraps in the second
    const std::uint64_t key = 0x0123456789abcdefull + static_cast<std::uint64_t>(n);
    const std::size_t size = static_cast<std::size_t>(n);
    std::vector<std::uint32_t> words(size + 4 + 1, 77);
    std::vector<T> z(size + 1, T(77)), mean(size), scale(size), out(size + 1, T(77));
    set.fill_words(words.data(), n + 4, first, key, 5, 6, 7);
    if (words.back() != 77) fail(where, "fill_words wrote past the end");
    table.fill_normal(z.data(), n, first, key, 5, 6, 7);
    for (std::size_t i = 0; i < size; ++i) {
      mean[i] = static_cast<T>(i) * T(0.01);
      scale[i] = T(1) / static_cast<T>(i + 1);
    }
    table.reparameterize(mean.data(), scale.data(), out.data(), n, first, key, 5, 6, 7);
    if (z.back() != T(77) || out.back() != T(77)) fail(where, "wrote past the end");
    for (std::size_t i = 0; i < size; ++i) {
      ribbit::Word64 c[1][4] = {{static_cast<std::uint32_t>((first + i) / 4), 5, 6, 7}};
      ribbit::philox4x32<1>(c, key);
      T pair[2];
      const std::size_t at = i % 4 / 2 * 2;
      const auto w0 = static_cast<std::uint32_t>(c[0][at]);
      const auto w1 = static_cast<std::uint32_t>(c[0][at + 1]);
      if (words[i] != static_cast<std::uint32_t>(c[0][i % 4])) fail(where, "word");
      ribbit::box_muller<T>(w0, w1, pair[0], pair[1]);
      const T want = pair[i % 2];
      const T moved = Ops<T>::fma(scale[i], want, mean[i]);
      if (std::memcmp(&z[i], &want, sizeof want) != 0) fail(where, "normal");
      if (std::memcmp(&out[i], &moved, sizeof moved) != 0) fail(where, "reparameterized normal");
      if (failures > 20) return;
    }
  }
}

// Rows of an epoch, many at once against one at a time: sizes just above a power of four, of which
// most numbers go several ways through the rounds, and sizes beyond 32 bits.
void check_orders() {
  for (const std::uint64_t size : {1ull, 2ull, 5ull, 31ull, 927ull, 1025ull, 65'537ull, 50'000ull,
                                   (1ull << 33) + 7, (1ull << 62) - 1}) {
    const ribbit::Permutation order = ribbit::make_permutation(size, 11 + size, 3, 5);
    for (const std::int64_t most : {1, 7, 32, 33, 500}) {
      const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(size, most));
      const std::uint64_t begin = size - static_cast<std::uint64_t>(count);
      for (const std::string& name : ribbit::cpu::available_instruction_sets()) {
        std::vector<std::int64_t> rows(static_cast<std::size_t>(count) + 1, -1);
        ribbit::cpu::instruction_set_named(name).permute_rows(order, begin, count, rows.data());
        for (std::int64_t i = 0; i < count; ++i) {
          const auto wanted = ribbit::permute(order, begin + static_cast<std::uint64_t>(i));
          if (rows[static_cast<std::size_t>(i)] != static_cast<std::int64_t>(wanted)) {
            fail(name.c_str(), "order of an epoch");
          }
        }
        if (rows.back() != -1) fail(name.c_str(), "order of an epoch, past its end");
      }
    }
  }
}

}  // namespace

int main() {
  check_known_answers();
  check_orders();
  check_normals<float>();
  check_normals<double>();
  for_each_table(
      [](const auto& set, const auto& table, const auto&) { check_stream(set.name, set, table); });
  return report("check_random");
}
