// The Python side of the extension: an empty abi3 module whose loading runs the op registrations.
//
// The few declarations stand here, copied from the layout that PEP 384 froze for every Python 3, so
// that building needs no Python headers (Debian ships them apart from Python).
#include <cstddef>

extern "C" {

struct PyObject;
struct PyModuleDef {
  ptrdiff_t reference_count;
  void* type;
  PyObject* (*init)();
  ptrdiff_t index;
  PyObject* copy;
  const char* name;
  const char* doc;
  ptrdiff_t size;
  void* methods;
  void* slots;
  void* traverse;
  void* clear;
  void* free;
};
PyObject* PyModule_Create2(PyModuleDef* definition, int abi_version);

__attribute__((visibility("default"))) PyObject* PyInit__C() {
  constexpr int kAbi3 = 3;
  static PyModuleDef definition{};
  definition.reference_count = 1;
  definition.name = "_C";
  definition.size = -1;
  return PyModule_Create2(&definition, kAbi3);
}

}  // extern "C"
