// The extension module ribbit._core: a table of contents.

#include "bindings/array.h"

#ifdef RIBBIT_FAULTS
#include "bindings/faults.h"
#endif

// Without the GIL: what is shared by calls is atomic, made once or behind a lock, here and in the
// core, which runs without it anyway. An array must not be written to while a call reads it, as
// everywhere in NumPy.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "Native core of ribbit. Arrays are checked, never converted.";
  ribbit::bindings::bind_system(module);
  ribbit::bindings::bind_codes(module);
  ribbit::bindings::bind_random(module);
  ribbit::bindings::bind_density(module);
  ribbit::bindings::bind_forward(module);
  ribbit::bindings::bind_mixture(module);
  ribbit::bindings::bind_pointer(module);
  ribbit::bindings::bind_options(module);
  ribbit::bindings::bind_chains(module);
  ribbit::bindings::bind_fields(module);
  ribbit::bindings::bind_tuner(module);
#ifdef RIBBIT_FAULTS
  ribbit::bindings::bind_faults(module);
#endif
}
