// A list of types whose place is their number: what a number stands for in a kernel's name.
#pragma once

#include "core/ops_hd.h"

namespace ribbit {

template <int Number, class First, class... Rest>
struct TypeAt {
  using Type = typename TypeAt<Number - 1, Rest...>::Type;
};
template <class First, class... Rest>
struct TypeAt<0, First, Rest...> {
  using Type = First;
};

// Whether each type states its place: kKind, of an enum class.
template <int Number, class First, class... Rest>
struct InOrder {
  static constexpr bool kValue =
      static_cast<int>(First::kKind) == Number && InOrder<Number + 1, Rest...>::kValue;
};
template <int Number, class... Rest>
struct InOrder<Number, void, Rest...> {
  static constexpr bool kValue = true;
};

template <class... Types>
struct Kinds {
  static constexpr int kCount = static_cast<int>(sizeof...(Types));
  static constexpr bool kInOrder = InOrder<0, Types..., void>::kValue;
  template <int Number>
  using At = typename TypeAt<Number, Types...>::Type;
};

}  // namespace ribbit
