// cuBLASLt as ribbit calls it, on the CPU: factors rounded to TF32 (10 bits behind the leading one,
// to nearest), products and sums in float32, term after term. Refuses what the library refuses, and
// what ribbit must not ask for. With RIBBIT_CUBLASLT_HEADER the compiler holds every function
// against the library's own prototypes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#ifdef RIBBIT_CUBLASLT_HEADER
#include <cublasLt.h>
#else
using cublasStatus_t = int;
using cublasComputeType_t = int;
using cudaDataType_t = int;
using cudaDataType = int;
using cublasLtMatmulDescAttributes_t = int;
using cublasLtMatrixLayoutAttribute_t = int;
using cublasLtMatmulPreferenceAttributes_t = int;
using cudaStream_t = void*;
using cublasLtHandle_t = struct cublasLtContext*;
struct cublasLtMatrixLayoutOpaque_t {
  uint64_t data[14];
};
struct cublasLtMatmulDescOpaque_t {
  uint64_t data[32];
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t data[12];
};
struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;
#endif

namespace {

constexpr int kSuccess = 0, kInvalid = 7, kUnsupported = 15;
constexpr uint64_t kWorkspace = 1 << 20;  // what the algorithm claims to need
constexpr uint64_t kMagic = 0x52494242;   // of an algorithm that the heuristic named

// What tests set: bits behind the leading one, whether they are cut instead of rounded, whether
// ReLU makes 0 of NaN, the most batches, statuses that end three functions at once where they are
// not zero, and descriptors that nobody has destroyed.
int bits = 10, cuts = 0, swallows = 0, most = 1 << 30;
int create = 0, heuristic = 0, check = 0;
long long alive = 0;

cublasStatus_t status(int code) {
  return static_cast<cublasStatus_t>(code);
}

// data: rows, columns, leading dimension, batches, stride
struct Layout {
  uint64_t rows, columns;
  int64_t leading;
  uint64_t batches;
  int64_t stride;
  uint64_t type;
};
Layout& layout(void* given) {
  return *static_cast<Layout*>(given);
}
struct Product {
  uint64_t epilogue;
  uint64_t bias;
  int64_t bias_stride;
  uint64_t compute;
};
Product& product(void* given) {
  return *static_cast<Product*>(given);
}
struct Preference {
  uint64_t workspace;
  uint64_t schemes;
  uint64_t alignments[4];
};
Preference& preference(void* given) {
  return *static_cast<Preference*>(given);
}

template <class T>
bool read(T& to, const void* from, size_t size, size_t expected) {
  if (size != expected) return false;
  to = T(0);
  std::memcpy(&to, from, size);
  return true;
}

float rounded(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  if ((word & 0x7f800000u) == 0x7f800000u) return x;
  const int gone = 23 - bits;
  if (cuts == 0 && gone > 0) word += 1u << (gone - 1);
  word &= ~((1u << gone) - 1u);
  std::memcpy(&x, &word, 4);
  return x;
}

bool aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

// Shapes of D' (n, m) = B' (n, k) A' (k, m), batch by batch.
bool agrees(const Product& what, const Layout& b, const Layout& a, const Layout& d) {
  for (const Layout* one : {&b, &a, &d}) {
    if (one->type != 0 || one->leading < static_cast<int64_t>(one->rows)) return false;
    if (one->batches != d.batches || one->batches < 1) return false;
    if (one->leading % 4 != 0 || one->stride % 4 != 0) return false;  // 16 bytes
  }
  const uint64_t end = what.epilogue;
  const bool known = end == 1 || end == 2 || end == 4 || end == 6;
  const bool biased = (end & 4) == 0 || (what.bias != 0 && what.bias % 16 == 0);
  return known && biased && what.bias_stride % 4 == 0 && what.compute == 77 && b.rows == d.rows &&
         a.columns == d.columns && b.columns == a.rows &&
         (d.batches == 1 || d.stride >= d.leading * static_cast<int64_t>(d.columns));
}

}  // namespace

extern "C" {

void stand_in(int new_bits, int new_cuts, int new_swallows, int new_most, int new_create,
              int new_heuristic, int new_check) {
  bits = new_bits, cuts = new_cuts, swallows = new_swallows, most = new_most;
  create = new_create, heuristic = new_heuristic, check = new_check;
}
long long stand_in_alive() {
  return alive;
}

size_t cublasLtGetVersion() {
  return 130000;
}
const char* cublasLtGetStatusString(cublasStatus_t code) {
  switch (static_cast<int>(code)) {
    case kInvalid:
      return "an invalid value";
    case kUnsupported:
      return "not supported";
    default:
      return "another status";
  }
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (create != 0) return status(create);
  *handle = reinterpret_cast<cublasLtHandle_t>(&alive);
  return status(kSuccess);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  return status(kSuccess);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (static_cast<int>(scale) != 0) return status(kInvalid);
  *desc = new cublasLtMatmulDescOpaque_t{};
  product(*desc) = {1, 0, 0, static_cast<uint64_t>(compute)};
  ++alive;
  return status(kSuccess);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  --alive;
  return status(kSuccess);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, size_t size) {
  bool good = false;
  if (static_cast<int>(attribute) == 7) good = read(product(desc).epilogue, from, size, 4);
  if (static_cast<int>(attribute) == 8) good = read(product(desc).bias, from, size, 8);
  if (static_cast<int>(attribute) == 10) good = read(product(desc).bias_stride, from, size, 8);
  return status(good ? kSuccess : kInvalid);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  *made = new cublasLtMatrixLayoutOpaque_t{};
  layout(*made) = {rows, columns, leading, 1, 0, static_cast<uint64_t>(type)};
  ++alive;
  return status(kSuccess);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) {
  delete made;
  --alive;
  return status(kSuccess);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t made,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* from, size_t size) {
  bool good = false;
  if (static_cast<int>(attribute) == 5) good = read(layout(made).batches, from, size, 4);
  if (static_cast<int>(attribute) == 6) good = read(layout(made).stride, from, size, 8);
  return status(good ? kSuccess : kInvalid);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new cublasLtMatmulPreferenceOpaque_t{};
  preference(*made) = {0, 7, {256, 256, 256, 256}};
  ++alive;
  return status(kSuccess);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  delete made;
  --alive;
  return status(kSuccess);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, size_t size) {
  const int which = static_cast<int>(attribute);
  bool good = false;
  if (which == 1) good = read(preference(made).workspace, from, size, 8);
  if (which == 3) good = read(preference(made).schemes, from, size, 4);
  if (which >= 5 && which <= 8) good = read(preference(made).alignments[which - 5], from, size, 4);
  return status(good ? kSuccess : kInvalid);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t what,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int asked,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  if (heuristic != 0) return status(heuristic);
  const Preference& limits = preference(wanted);
  bool good = asked > 0 && c == d && limits.schemes == 0 && limits.workspace >= kWorkspace;
  for (const uint64_t one : limits.alignments) good = good && one <= 16;
  if (!good || !agrees(product(what), layout(b), layout(a), layout(d))) return status(kUnsupported);
  // The first of two does not run.
  for (int i = 0; i < 2 && i < asked; ++i, ++*count) {
    found[i] = {};
    found[i].algo.data[0] = kMagic * static_cast<uint64_t>(i);
    found[i].workspaceSize = kWorkspace;
    found[i].state = status(i == 0 ? kUnsupported : kSuccess);
  }
  return status(kSuccess);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t what,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* found) {
  if (check != 0) return status(check);
  const bool good = algorithm->data[0] == kMagic && c == d &&
                    agrees(product(what), layout(b), layout(a), layout(d)) &&
                    layout(d).batches <= static_cast<uint64_t>(most);
  found->workspaceSize = kWorkspace;
  found->state = status(good ? kSuccess : kUnsupported);
  return found->state;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t described,
                              const void* alpha, const void* of_b, cublasLtMatrixLayout_t b_layout,
                              const void* of_a, cublasLtMatrixLayout_t a_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* of_d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t size,
                              cudaStream_t) {
  const Product& what = product(described);
  const Layout &b = layout(b_layout), &a = layout(a_layout), &d = layout(d_layout);
  const bool good = handle != nullptr && algorithm->data[0] == kMagic && c == of_d &&
                    c_layout == d_layout && agrees(what, b, a, d) && aligned(of_a) &&
                    aligned(of_b) && aligned(of_d) && workspace != nullptr && size >= kWorkspace &&
                    *static_cast<const float*>(alpha) == 1.0f &&
                    *static_cast<const float*>(beta) == 0.0f;
  if (!good) return status(kInvalid);
  const size_t n = d.rows, m = d.columns, k = a.rows;
  float* row = new float[n];
  for (size_t batch = 0; batch < d.batches; ++batch) {
    const auto at = static_cast<int64_t>(batch);
    const float* right = static_cast<const float*>(of_b) + at * b.stride;
    const float* left = static_cast<const float*>(of_a) + at * a.stride;
    float* value = static_cast<float*>(of_d) + at * d.stride;
    const float* bias = reinterpret_cast<const float*>(what.bias) + at * what.bias_stride;
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) row[j] = 0.0f;
      for (size_t term = 0; term < k; ++term) {
        const float factor = rounded(left[i * static_cast<size_t>(a.leading) + term]);
        const float* line = right + term * static_cast<size_t>(b.leading);
        for (size_t j = 0; j < n; ++j) row[j] += factor * rounded(line[j]);
      }
      for (size_t j = 0; j < n; ++j) {
        float z = row[j];
        if ((what.epilogue & 4) != 0) z += bias[j];
        if ((what.epilogue & 2) != 0 && (swallows != 0 ? !(z > 0.0f) : z <= 0.0f)) z = 0.0f;
        value[i * static_cast<size_t>(d.leading) + j] = z;
      }
    }
  }
  delete[] row;
  return status(kSuccess);
}

}  // extern "C"
