// What has the same bits on different instruction sets and processors, by digests written down
// here. "Everywhere": integers, normals and sums in double of a fixed shape, on every set. "Fused":
// sets that have a fused multiply-add and divide exactly (avx2, neon): formulas of one number, and
// products forward, whose sums have the shape of a tile. Sums over rows are in neither: the rows
// ride in the lanes. Arguments are made of random words without rounding, and are never NaN, whose
// bits processors choose. `check_bits write` prints the digests of the first set there is.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "core/likelihood_hd.h"
#include "core/op_table.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/system/dispatch.h"
#include "tests/accuracy.h"

namespace {

using ribbit::cpu::InstructionSet;
using ribbit::cpu::KernelTable;
using ribbit::cpu::kPanel;

// Where vectors begin, as the core's own arrays do.
template <class T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <class U>
  explicit Aligned(const Aligned<U>&) {}
  T* allocate(std::size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t{64}); }
  bool operator==(const Aligned&) const { return true; }
};
template <class T>
using Numbers = std::vector<T, Aligned<T>>;

// FNV-1a on 64 bits (Fowler, Noll and Vo).
struct Digest {
  std::uint64_t value = 0xcbf29ce484222325ull;
  template <class T>
  void add(const Numbers<T>& numbers) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(numbers.data());
    for (std::size_t i = 0; i < numbers.size() * sizeof(T); ++i) {
      value = (value ^ bytes[i]) * 0x100000001b3ull;
    }
  }
};

// Multiples of 2^-20 in [-size, size), and every eighth number 2^-12 as large.
template <class T>
Numbers<T> numbers(std::size_t n, double size, std::uint32_t address) {
  Numbers<std::uint32_t> words(n);
  ribbit::cpu::instruction_set().fill_words(words.data(), static_cast<std::int64_t>(n), 0, 11,
                                            address, 0, 0);
  Numbers<T> out;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = (static_cast<double>(words[i] >> 11) * 0x1p-20 - 1.0) * size;
    out.push_back(static_cast<T>(i % 8 == 7 ? x * 0x1p-12 : x));
  }
  return out;
}

// ---- everywhere ---------------------------------------------------------------------------------
template <class T>
std::uint64_t normals(const InstructionSet& set, const KernelTable<T>& table) {
  Digest digest;
  Numbers<std::uint32_t> words(1003);
  set.fill_words(words.data(), 1003, 4 * 0xfffffff0ull, 5, 6, 7, 8);
  digest.add(words);
  const auto mean = numbers<T>(4099, 3.0, 1), scale = numbers<T>(4099, 0.5, 2);
  Numbers<T> z(4099), out(4099);
  table.fill_normal(z.data(), 4099, 8, 77, 1, 2, 3);
  table.reparameterize(mean.data(), scale.data(), out.data(), 4099, 8, 78, 1, 2, 3);
  digest.add(z);
  digest.add(out);
  return digest.value;
}

template <class T>
std::uint64_t sums(const InstructionSet&, const KernelTable<T>& table) {
  Digest digest;
  const auto a = numbers<T>(3001, 3.0, 3), b = numbers<T>(3001, 2.0, 4);
  auto p = numbers<T>(3001, 1.0, 5), q = numbers<T>(3001, 1.0, 6);
  digest.add(Numbers<double>{table.dot_weighted(a.data(), b.data(), 3001)});
  double isokinetic[3];
  table.isokinetic_sums(a.data(), b.data(), p.data(), 3001, isokinetic);
  digest.add(Numbers<double>(isokinetic, isokinetic + 3));
  table.kick_drift(q.data(), p.data(), a.data(), b.data(), 3001, T(0.125), T(0.3));
  digest.add(p);
  digest.add(q);
  Numbers<T> tree(230);
  table.tree_sum(a.data(), 231, 12, 230, tree.data());
  digest.add(tree);
  return digest.value;
}

template <class T>
std::uint64_t masks(const InstructionSet&, const KernelTable<T>& table) {
  Digest digest;
  const ribbit::cpu::MaskStream stream{9, 1, 2, 3, 0x60000000u, 1.6, false};
  const auto from = numbers<T>(37 * kPanel, 2.0, 7);
  Numbers<T> value(from.size()), signs(from.size());
  table.mask_panel(stream, nullptr, nullptr, 5, 29, 37, from.data(), value.data(), nullptr, false);
  table.sign_panel(stream, nullptr, 5, 29, 37, signs.data());
  digest.add(value);
  digest.add(signs);
  return digest.value;
}

// ---- fused --------------------------------------------------------------------------------------
template <class T>
std::uint64_t activations(const InstructionSet&, const KernelTable<T>& table) {
  Digest digest;
  const std::int64_t n = 20003;
  const auto z = numbers<T>(static_cast<std::size_t>(n), 20.0, 8);
  Numbers<T> value(z.size()), derivative(z.size());
  for (int code = 0; code < ribbit::kActivationCount; ++code) {
    table.activation_forward_derivative(code, z.data(), n, value.data(), derivative.data());
    digest.add(value);
    digest.add(derivative);
  }
  return digest.value;
}

template <class T>
std::uint64_t deltas(const InstructionSet&, const KernelTable<T>& table) {
  Digest digest;
  const int outputs = 6;
  const auto f = numbers<T>(outputs * kPanel, 4.0, 9);
  Numbers<T> y(outputs * kPanel), delta(outputs * kPanel);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<T>(i % 2);
  for (const auto kind : {ribbit::LikelihoodKind::kGaussian, ribbit::LikelihoodKind::kCategorical,
                          ribbit::LikelihoodKind::kBernoulli, ribbit::LikelihoodKind::kPoisson}) {
    double ll = 0.0, noise = 0.0;
    table.likelihood_panel(kind, ribbit::likelihood_constants(kind, {0.5, 4.0}), f.data(), y.data(),
                           outputs, 27, T(0.5), 1.75, delta.data(), &ll, &noise);
    digest.add(delta);
  }
  return digest.value;
}

template <class T>
std::uint64_t products(const InstructionSet&, const KernelTable<T>& table) {
  Digest digest;
  const std::int64_t ins = 23, panels = 2;
  const auto x = numbers<T>(static_cast<std::size_t>(panels * ins * kPanel), 1.0, 10);
  for (std::int64_t outs = 1; outs <= 20; ++outs) {
    const auto size = static_cast<std::size_t>(ins * outs), out = static_cast<std::size_t>(outs);
    const auto weight = numbers<T>(size, 1.0, 11), init = numbers<T>(out, 1.0, 12);
    Numbers<T> packed(size), y(out * panels * kPanel);
    const std::int64_t tiles = (outs + table.tile_outputs - 1) / table.tile_outputs;
    for (const bool transposed : {false, true}) {
      table.pack_tiles(weight.data(), ins, outs, transposed, 0, tiles, ins, 0, packed.data());
      table.multiply(packed.data(), init.data(), x.data(), y.data(), nullptr,
                     ribbit::cpu::kFinishRelu, ins, outs, panels);
      digest.add(y);
    }
  }
  return digest.value;
}

// 5 x 4 images of 3 channels under 3 x 3 kernels, padded by one.
template <class T>
std::uint64_t convolutions(const InstructionSet&, const KernelTable<T>& table) {
  Digest digest;
  const auto x = numbers<T>(5 * 4 * 3 * kPanel, 1.0, 13);
  for (std::int64_t outs = 1; outs <= 16; ++outs) {
    const std::int64_t ins = 3 * 3 * 3;
    const auto size = static_cast<std::size_t>(ins * outs), out = static_cast<std::size_t>(outs);
    const auto weight = numbers<T>(size, 1.0, 14), init = numbers<T>(out, 1.0, 15);
    Numbers<T> packed(size), y(5 * 4 * out * kPanel);
    const std::int64_t tiles = (outs + table.tile_outputs - 1) / table.tile_outputs;
    table.pack_tiles(weight.data(), ins, outs, false, 0, tiles, ins, 0, packed.data());
    const ribbit::cpu::ConvPass pass{5, 4, 3, 3, 3, 1, 1, 1, 1, 5, 4, 0, 4, 1, outs, 1, 1, 3, outs};
    table.convolve(packed.data(), init.data(), x.data(), y.data(), pass, false);
    digest.add(y);
  }
  return digest.value;
}

// ---- the table ----------------------------------------------------------------------------------
template <class T>
using Formula = std::uint64_t (*)(const InstructionSet&, const KernelTable<T>&);

struct Line {
  const char* name;
  bool everywhere;
  Formula<float> f32;
  Formula<double> f64;
  std::uint64_t digest_f32, digest_f64;
};

const Line kLines[] = {
    {"normals", true, normals<float>, normals<double>, 0x826ad081e3fbc43eull,
     0x85a84fb3af38e159ull},
    {"sums", true, sums<float>, sums<double>, 0x5215a729f38fab82ull, 0x1b03f979f9930b27ull},
    {"masks", true, masks<float>, masks<double>, 0x5a2c5948313205c1ull, 0x0b5806158b870c58ull},
    {"activations", false, activations<float>, activations<double>, 0xe10f2d621d6771f8ull,
     0xc46be6518efa200cull},
    {"deltas", false, deltas<float>, deltas<double>, 0xfca82cb34330f30full, 0x863efedf9161f1b7ull},
    {"products", false, products<float>, products<double>, 0x87fae720e9c6b454ull,
     0x6184d4ec43b34827ull},
    {"convolutions", false, convolutions<float>, convolutions<double>, 0x94ed0db3b687c5eaull,
     0xa9f0470fb197638aull},
};

void compare(const char* set, const char* name, const char* type, std::uint64_t got,
             std::uint64_t want) {
  std::printf("%-9s %s %-13s 0x%016llx\n", set, type, name, static_cast<unsigned long long>(got));
  if (got != want) fail(name, "other bits than are written down");
}

}  // namespace

int main(int argc, char** argv) {
  const bool write = argc > 1 && std::strcmp(argv[1], "write") == 0;
  for (const std::string& name : ribbit::cpu::available_instruction_sets()) {
    const InstructionSet& set = ribbit::cpu::instruction_set_named(name);
    for (const Line& line : kLines) {
      if (!line.everywhere && name != "avx2" && name != "neon" && !write) continue;
      const std::uint64_t f32 = line.f32(set, *set.f32), f64 = line.f64(set, *set.f64);
      compare(set.name, line.name, "f32", f32, write ? f32 : line.digest_f32);
      compare(set.name, line.name, "f64", f64, write ? f64 : line.digest_f64);
    }
  }
  return report("check_bits");
}
