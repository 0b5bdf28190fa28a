#pragma once
// The bytes of chains: named fields. One function of a struct writes and reads its fields:
//
//   template <class A> void fields(A& a) {
//     a("step", step);
//     a("position", position, chains);
//   }
//
// The bytes start with a FieldsHead. Each field is a FieldHead and its numbers, little-endian and
// padded to 8 bytes. A field with 2 axes has a row for each chain, also if the row is one number.
// rb.State of Python reads, splits and joins them by bindings/bind_fields.cpp.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ribbit {

inline constexpr char kFieldsMagic[8] = {'R', 'I', 'B', 'B', 'I', 'T', 'C', 'H'};
inline constexpr std::uint32_t kFieldsVersion = 1;

struct FieldsHead {
  char magic[8];
  std::uint32_t version, count;
};

// dtype: a code of NumPy, or 'S' for text. axes: at most 2; the shape is 1 beyond them.
struct FieldHead {
  char name[32];
  char dtype;
  std::uint8_t axes;
  char padding[6];
  std::uint64_t shape[2];
};
static_assert(sizeof(FieldsHead) == 16 && sizeof(FieldHead) == 56);

template <class V>
constexpr char dtype_code() {
  if constexpr (std::is_same_v<V, float>) return 'f';
  if constexpr (std::is_same_v<V, double>) return 'd';
  if constexpr (std::is_same_v<V, std::int64_t>) return 'q';
  if constexpr (std::is_same_v<V, std::uint64_t>) return 'Q';
  if constexpr (std::is_same_v<V, std::uint32_t>) return 'I';
  if constexpr (std::is_same_v<V, std::uint8_t>) return 'B';
  if constexpr (std::is_same_v<V, char>) return 'S';
}

class FieldWriter {
 public:
  // reserve: about as many bytes as there will be.
  explicit FieldWriter(std::size_t reserve = 0) {
    bytes_.reserve(reserve);
    bytes_.assign(sizeof(FieldsHead), '\0');
  }

  template <class V>
  void operator()(const char* name, const V& value) {
    put(name, &value, 0, 1, 1);
  }
  // An empty text has no field.
  void operator()(const char* name, const std::string& text) {
    if (!text.empty()) put(name, text.data(), 1, text.size(), 1);
  }
  // An empty array has no field. each: false if all chains share one row; then there is 1 axis.
  template <class V>
  void operator()(const char* name, const std::vector<V>& values, std::int64_t chains,
                  bool each = true) {
    if (values.empty()) return;
    const auto first = each ? static_cast<std::uint64_t>(chains) : values.size();
    put(name, values.data(), each ? 2 : 1, first, values.size() / first);
  }

  // Writes an array with 1 or 2 axes, or a number with none.
  template <class V>
  void put(const char* name, const V* values, int axes, std::uint64_t first, std::uint64_t second) {
    static_assert(std::is_trivially_copyable_v<V>);
    FieldHead head{};
    std::strncpy(head.name, name, sizeof head.name - 1);
    head.dtype = dtype_code<V>();
    head.axes = static_cast<std::uint8_t>(axes);
    head.shape[0] = first;
    head.shape[1] = second;
    bytes_.append(reinterpret_cast<const char*>(&head), sizeof head);
    bytes_.append(reinterpret_cast<const char*>(values), first * second * sizeof(V));
    bytes_.append((8 - bytes_.size() % 8) % 8, '\0');
    ++count_;
  }

  std::string finish() {
    FieldsHead head{};
    std::copy_n(kFieldsMagic, sizeof head.magic, head.magic);
    head.version = kFieldsVersion;
    head.count = count_;
    std::memcpy(bytes_.data(), &head, sizeof head);
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  std::uint32_t count_ = 0;
};

// Reads the bytes of a FieldWriter and throws std::invalid_argument for any others. A missing field
// leaves its value unchanged, because a newer reader has a default for it. No array is allocated
// before its bytes are known to exist.
class FieldReader {
 public:
  struct Field {
    FieldHead head;
    std::string_view data;
  };

  explicit FieldReader(std::string_view bytes) {
    FieldsHead head;
    if (bytes.size() < sizeof head) fail("they are truncated");
    std::memcpy(&head, bytes.data(), sizeof head);
    bytes.remove_prefix(sizeof head);
    if (std::memcmp(head.magic, kFieldsMagic, sizeof head.magic) != 0) fail("they start otherwise");
    if (head.version > kFieldsVersion) {
      throw std::invalid_argument("the chains have format " + std::to_string(head.version) +
                                  "; this version reads formats up to " +
                                  std::to_string(kFieldsVersion));
    }
    for (std::uint32_t i = 0; i < head.count; ++i) read_field(bytes);
    if (!bytes.empty()) fail("more bytes follow");
  }

  // The dtype of a field; 0 if there is none.
  char dtype(const char* name) const { return head(name).dtype; }
  // The rows of a field; 0 if there is none.
  std::int64_t rows(const char* name) const {
    return static_cast<std::int64_t>(head(name).shape[0]);
  }

  template <class V>
  void operator()(const char* name, V& value) const {
    const Field* field = find<V>(name);
    if (field == nullptr) return;
    if (field->head.axes != 0) fail(name);
    std::memcpy(&value, field->data.data(), sizeof(V));
  }
  void operator()(const char* name, std::string& text) const {
    const Field* field = find<char>(name);
    if (field == nullptr) return;
    if (field->head.axes != 1) fail(name);
    text = field->data;
  }
  template <class V>
  void operator()(const char* name, std::vector<V>& values, std::int64_t chains) const {
    bool each = true;
    (*this)(name, values, chains, each);
    if (!each) fail(name);
  }
  // Sets `each` to false if all chains share one row.
  template <class V>
  void operator()(const char* name, std::vector<V>& values, std::int64_t chains, bool& each) const {
    const Field* field = find<V>(name);
    if (field == nullptr) return;
    const FieldHead& head = field->head;
    each = head.axes == 2;
    if (head.axes == 0 || (each && head.shape[0] != static_cast<std::uint64_t>(chains))) fail(name);
    values.resize(field->data.size() / sizeof(V));
    std::memcpy(values.data(), field->data.data(), field->data.size());
  }

  [[noreturn]] static void fail(const std::string& why) {
    throw std::invalid_argument("the bytes hold no chains that can continue: " + why);
  }

  // The names of the fields, in the order of the bytes.
  const std::vector<std::string>& names() const { return names_; }
  const Field& field(const std::string& name) const { return fields_.at(name); }

 private:
  void read_field(std::string_view& bytes) {
    Field field;
    if (bytes.size() < sizeof field.head) fail("they are truncated");
    std::memcpy(&field.head, bytes.data(), sizeof field.head);
    bytes.remove_prefix(sizeof field.head);
    const FieldHead& head = field.head;
    const std::uint64_t size = size_of(head.dtype), first = head.shape[0], second = head.shape[1];
    if (head.name[sizeof head.name - 1] != '\0' || head.axes > 2 || size == 0 || first == 0 ||
        second == 0 || (head.axes < 2 && second != 1) || (head.axes < 1 && first != 1)) {
      fail("a field has no shape");
    }
    // The quotients keep the products from overflowing.
    const std::uint64_t most = bytes.size() / size;
    if (first > most || second > most / first) fail("they are truncated");
    const std::uint64_t length = first * second * size, padded = (length + 7) / 8 * 8;
    if (padded > bytes.size()) fail("they are truncated");
    field.data = bytes.substr(0, length);
    bytes.remove_prefix(padded);
    if (!fields_.emplace(head.name, field).second) fail("a field occurs twice");
    names_.emplace_back(head.name);
  }
  FieldHead head(const char* name) const {
    const auto found = fields_.find(name);
    return found == fields_.end() ? FieldHead{} : found->second.head;
  }
  static std::uint64_t size_of(char dtype) {
    switch (dtype) {
      case 'S':
      case 'B':
        return 1;
      case 'f':
      case 'I':
        return 4;
      case 'd':
      case 'q':
      case 'Q':
        return 8;
      default:
        return 0;
    }
  }
  template <class V>
  const Field* find(const char* name) const {
    const auto found = fields_.find(name);
    if (found == fields_.end()) return nullptr;
    if (found->second.head.dtype != dtype_code<V>()) fail(name);
    return &found->second;
  }
  std::map<std::string, Field, std::less<>> fields_;
  std::vector<std::string> names_;
};

}  // namespace ribbit
