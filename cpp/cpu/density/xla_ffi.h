#pragma once
// The part of XLA's typed foreign function interface that a handler on the host reads.
//
// The interface is one of C, stable between releases: each struct begins with its own size, and
// fields are only ever added behind those that are there. The layout is that of jaxlib's
// xla/ffi/api/c_api.h, version 0.3, whose part below is the same since 0.1; a test compiles both
// and compares every offset (tests/jax/test_layout.py). Written out here because jaxlib is not
// needed to build Ribbit, and a handler compiled on the user's machine would need a compiler there.

#include <cstddef>
#include <cstdint>

namespace ribbit::cpu::xla {

inline constexpr int kMajor = 0, kOldestMinor = 1, kNewestMinor = 3;  // versions of this layout

struct Error;  // theirs

enum ErrorCode : int { kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13 };
enum DataType : int { kS64 = 5, kF32 = 11, kF64 = 12 };
enum ArgumentType : int { kBuffer = 1 };  // of arguments and results
enum AttributeType : int { kScalar = 3 };
enum Stage : int { kExecute = 3 };
enum ExtensionType : int { kMetadata = 1 };

struct Extension {
  std::size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extension_start;
  int major_version, minor_version;
};

struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extension_start;
  const char* message;
  ErrorCode code;
};

struct Api {
  std::size_t struct_size;
  Extension* extension_start;
  Version version;
  const void* internal_api;
  Error* (*error_create)(ErrorCreateArgs* args);
  // more functions
};

struct Buffer {
  std::size_t struct_size;
  Extension* extension_start;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;  // (rank,)
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

// Arguments, and results.
struct Arguments {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  ArgumentType* types;  // (size,)
  Buffer** buffers;     // (size,)
};

struct Attributes {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  AttributeType* types;  // (size,)
  ByteSpan** names;      // (size,), sorted
  void** values;         // (size,)
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension_start;
  const Api* api;
  void* context;
  Stage stage;
  Arguments arguments, results;
  Attributes attributes;
  // a future
};

struct Metadata {
  std::size_t struct_size;
  Version version;  // out
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension extension;
  Metadata* metadata;
};

// The size of a struct as it states it: up to its last field, without padding.
#define RIBBIT_XLA_SIZE(type, last) (offsetof(type, last) + sizeof(type::last))

}  // namespace ribbit::cpu::xla
