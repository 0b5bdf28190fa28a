// A list of types whose place is their number: what a number that crosses a boundary stands for is
// looked up here alone, at compile time (At<2>) or when the program runs (visit).
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

template <class... Types>
struct Kinds {
  static constexpr int kCount = static_cast<int>(sizeof...(Types));
  template <int Number>
  using At = typename TypeAt<Number, Types...>::Type;
  // body(object of the type that has the number); a number that none has stops the program.
  template <int First = 0, class Body>
  RIBBIT_HD_MEMBER auto visit(int number, const Body& body) {
    if (number == First) return body(At<First>{});
    if constexpr (First + 1 < kCount) {
      return visit<First + 1>(number, body);
    } else {
      unreachable();
    }
  }
  // Whether each type states its place: kKind of an enum class.
  template <int First = 0>
  static constexpr bool in_order() {
    if constexpr (First == kCount) {
      return true;
    } else {
      return static_cast<int>(At<First>::kKind) == First && in_order<First + 1>();
    }
  }
};

}  // namespace ribbit
