// The extension module ribbit._core: a table of contents.

#include "bindings/array.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Native core of ribbit. Arrays are checked, never converted.";
  ribbit::bindings::bind_system(module);
  ribbit::bindings::bind_codes(module);
  ribbit::bindings::bind_random(module);
  ribbit::bindings::bind_density(module);
  ribbit::bindings::bind_forward(module);
  ribbit::bindings::bind_pointer(module);
}
