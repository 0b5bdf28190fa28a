#pragma once
// A reader of JSON (RFC 8259) that is as small as a description of a posterior allows.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ribbit::capi {

class Json {
 public:
  // Throws std::invalid_argument for what is no JSON, and deeper than 64.
  static Json parse(std::string_view text);

  // Of an object; throws where there is none. find: null where there is none.
  const Json& at(std::string_view name) const;
  const Json* find(std::string_view name) const;
  // Throw where the value is of another kind; a whole number has no fraction or exponent.
  const std::vector<Json>& items() const;
  const std::string& text() const;
  double number() const;
  std::int64_t whole() const;
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_list() const { return kind_ == Kind::kItems; }
  bool is_true() const { return kind_ == Kind::kTrue; }

 private:
  enum class Kind { kNull, kTrue, kFalse, kNumber, kText, kItems, kMembers };
  class Reader;

  Kind kind_ = Kind::kNull;
  std::string text_;         // of a number: its digits
  std::vector<Json> items_;  // of an object: the values of names_
  std::vector<std::string> names_;
};

}  // namespace ribbit::capi
