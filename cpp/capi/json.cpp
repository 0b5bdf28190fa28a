#include "capi/json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#if defined(_LIBCPP_VERSION)
#include <locale.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#endif

namespace ribbit::capi {
namespace {

[[noreturn]] void refuse_json(const std::string& expected) {
  throw std::invalid_argument("expected " + expected + " in a description");
}

// Whether all of a text is a finite double in C's notation, whatever the locale.
bool reads(const std::string& text, double& value) {
#if defined(_LIBCPP_VERSION)  // whose from_chars reads doubles in new systems alone
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  char* end = nullptr;
  value = strtod_l(text.c_str(), &end, plain);
  return !text.empty() && text[0] != '+' && *end == '\0' && std::isfinite(value);
#else
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return !text.empty() && error == std::errc() && end == last;
#endif
}

}  // namespace

class Json::Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json document() {
    Json value = read(0);
    skip();
    if (at_ != text_.size()) fail("an end");
    return value;
  }

 private:
  static constexpr int kDeepest = 64;

  [[noreturn]] void fail(const char* what) const {
    refuse_json(std::string(what) + " at character " + std::to_string(at_));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  bool take(char sign) {
    skip();
    if (peek() != sign) return false;
    ++at_;
    return true;
  }
  void need(char sign) {
    if (!take(sign)) fail((std::string("'") + sign + "'").c_str());
  }
  bool word(std::string_view name) {
    if (text_.substr(at_, name.size()) != name) return false;
    at_ += name.size();
    return true;
  }

  Json read(int depth) {
    if (depth > kDeepest) fail("fewer levels");
    skip();
    Json value;
    if (take('{')) {
      value.kind_ = Kind::kMembers;
      if (take('}')) return value;
      do {
        skip();
        value.names_.push_back(string());
        need(':');
        value.items_.push_back(read(depth + 1));
      } while (take(','));
      need('}');
    } else if (take('[')) {
      value.kind_ = Kind::kItems;
      if (take(']')) return value;
      do value.items_.push_back(read(depth + 1));
      while (take(','));
      need(']');
    } else if (peek() == '"') {
      value.kind_ = Kind::kText;
      value.text_ = string();
    } else if (word("true")) {
      value.kind_ = Kind::kTrue;
    } else if (word("false")) {
      value.kind_ = Kind::kFalse;
    } else if (!word("null")) {
      value.kind_ = Kind::kNumber;
      value.text_ = digits();
    }
    return value;
  }

  // Python writes Infinity and NaN, too; nothing that is read may be one.
  std::string digits() {
    const std::size_t first = at_;
    while (std::string_view("+-.eE0123456789").find(peek()) != std::string_view::npos &&
           peek() != '\0') {
      ++at_;
    }
    const std::string found(text_.substr(first, at_ - first));
    double value = 0;
    if (!reads(found, value)) fail("a value");
    return found;
  }

  // Escaped characters beyond ASCII become '?': no name that is looked for has one.
  std::string string() {
    if (peek() != '"') fail("a string");
    ++at_;
    std::string out;
    while (peek() != '"') {
      if (at_ >= text_.size()) fail("the end of a string");
      char sign = text_[at_++];
      if (sign == '\\') {
        sign = peek();
        ++at_;
        if (sign == 'u') {
          if (text_.size() - at_ < 4) fail("four digits");
          at_ += 4;
          sign = '?';
        } else if (std::string_view("\"\\/").find(sign) == std::string_view::npos) {
          if (std::string_view("bfnrt").find(sign) == std::string_view::npos) fail("an escape");
          sign = ' ';
        }
      }
      out.push_back(sign);
    }
    ++at_;
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

Json Json::parse(std::string_view text) {
  return Reader(text).document();
}

const Json* Json::find(std::string_view name) const {
  if (kind_ != Kind::kMembers) refuse_json("an object with \"" + std::string(name) + "\"");
  for (std::size_t i = names_.size(); i-- > 0;) {
    if (names_[i] == name) return &items_[i];
  }
  return nullptr;
}

const Json& Json::at(std::string_view name) const {
  const Json* found = find(name);
  if (found == nullptr) refuse_json("\"" + std::string(name) + "\"");
  return *found;
}

const std::vector<Json>& Json::items() const {
  if (kind_ != Kind::kItems) refuse_json("a list");
  return items_;
}

const std::string& Json::text() const {
  if (kind_ != Kind::kText) refuse_json("a string");
  return text_;
}

double Json::number() const {
  if (kind_ != Kind::kNumber) refuse_json("a number");
  double value = 0;
  reads(text_, value);
  return value;
}

std::int64_t Json::whole() const {
  std::int64_t value = 0;
  const char* end = text_.data() + text_.size();
  const bool good = kind_ == Kind::kNumber && !text_.empty() &&
                    std::from_chars(text_.data(), end, value).ptr == end;
  if (!good) refuse_json("a whole number of 64 bits");
  return value;
}

}  // namespace ribbit::capi
