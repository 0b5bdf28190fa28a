#pragma once
// The scalar type of a call, read from its arrays: one name in Python for float32 and float64.

#include <utility>
#include <variant>

#include "bindings/array.h"

namespace ribbit::bindings {

// body(T{}) for the scalar type T of an array of floats. Throws TypeError for another.
template <class R = void, class Body>
R for_scalar(const py::handle& object, const char* name, const Body& body) {
  const py::array array = array_of(object, name);
  if (holds<float>(array)) return body(0.0F);
  if (holds<double>(array)) return body(0.0);
  throw py::type_error(std::string("[_core] expected ") + name +
                       " of dtype float32 or float64, got " + described(array));
}

// An X of float or of double, as its arrays were when it was made: one class in Python.
template <template <class> class X>
struct Either {
  template <class T>
  Either(X<T> value) : of(std::move(value)) {}

  std::variant<X<float>, X<double>> of;
};

// A method of both X as one function, with the parameters by which pybind11 converts.
template <template <class> class X, class R, class... Parameters>
auto method(R (X<float>::*single)(Parameters...) const,
            R (X<double>::*twice)(Parameters...) const) {
  return [single, twice](const Either<X>& self, Parameters... arguments) -> R {
    const auto* x = std::get_if<X<float>>(&self.of);
    return x != nullptr ? (x->*single)(arguments...)
                        : (std::get<X<double>>(self.of).*twice)(arguments...);
  };
}

}  // namespace ribbit::bindings
