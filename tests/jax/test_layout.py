"""The layout that the core has written out, beside the header that jaxlib ships."""

import shutil
import subprocess

import pytest

from tests.support.paths import CPP

jax = pytest.importorskip("jax", reason="needs jaxlib's headers")

# Our struct, theirs, and the fields of both in order.
FIELDS = {
    "Extension Extension_Base": "struct_size type next",
    "Version Api_Version": "struct_size extension_start major_version minor_version",
    "ErrorCreateArgs Error_Create_Args": "struct_size extension_start message code=errc",
    "Api Api": "struct_size extension_start version=api_version internal_api "
    "error_create=XLA_FFI_Error_Create",
    "Buffer Buffer": "struct_size extension_start dtype data rank dims",
    "ByteSpan ByteSpan": "data=ptr size=len",
    "Scalar Scalar": "dtype value",
    "Arguments Args": "struct_size extension_start size types buffers=args",
    "Arguments Rets": "struct_size extension_start size types buffers=rets",
    "Attributes Attrs": "struct_size extension_start size types names values=attrs",
    "CallFrame CallFrame": "struct_size extension_start api context=ctx stage arguments=args "
    "results=rets attributes=attrs",
    "Metadata Metadata": "struct_size version=api_version traits",
    "MetadataExtension Metadata_Extension": "extension=extension_base metadata",
}
NUMBERS = {
    "kInvalidArgument": "Error_Code_INVALID_ARGUMENT",
    "kResourceExhausted": "Error_Code_RESOURCE_EXHAUSTED",
    "kInternal": "Error_Code_INTERNAL",
    "kS64": "DataType_S64",
    "kF32": "DataType_F32",
    "kF64": "DataType_F64",
    "kScalar": "AttrType_SCALAR",
    "kExecute": "ExecutionStage_EXECUTE",
    "kMetadata": "Extension_Metadata",
}
SIZED = "Arguments:Args Attributes:Attrs CallFrame:CallFrame Metadata:Metadata "
SIZED += "Buffer:Buffer ErrorCreateArgs:Error_Create_Args Version:Api_Version"


def checks() -> list[str]:
    """One static assertion per field and number."""
    out = []
    for names, fields in FIELDS.items():
        ours, theirs = names.split()
        for field in fields.split():
            own, _, other = field.partition("=")
            out.append(f"offsetof(x::{ours}, {own}) == offsetof(XLA_FFI_{theirs}, {other or own})")
            out.append(f"sizeof(x::{ours}::{own}) == sizeof(XLA_FFI_{theirs}::{other or own})")
    out += [f"int{{x::{own}}} == int{{XLA_FFI_{other}}}" for own, other in NUMBERS.items()]
    for pair in SIZED.split():
        ours, theirs = pair.split(":")
        last = FIELDS[f"{ours} {theirs}"].split()[-1].partition("=")[0]
        out.append(f"RIBBIT_XLA_SIZE(x::{ours}, {last}) == XLA_FFI_{theirs}_STRUCT_SIZE")
    return out


def compiles(assertions: list[str]) -> str:
    """What a compiler says, "" for nothing."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None or not CPP.is_dir():
        pytest.skip("needs a compiler and the source tree")
    text = '#include "xla/ffi/api/c_api.h"\n#include "cpu/density/xla_ffi.h"\n'
    text += "namespace x = ribbit::cpu::xla;\n"
    text += "\n".join(f"static_assert({one});" for one in assertions)
    call = [compiler, "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", "-xc++", "-"]
    call += [f"-I{CPP}", f"-I{jax.ffi.include_dir()}"]
    done = subprocess.run(call, input=text, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr


def test_every_field_lies_where_xla_puts_it() -> None:
    assert len(checks()) > 100
    assert compiles(checks()) == ""


def test_a_shifted_field_would_be_noticed() -> None:
    wrong = "offsetof(x::Buffer, data) == offsetof(XLA_FFI_Buffer, rank)"
    assert "static assertion failed" in compiles([wrong]) or "static_assert" in compiles([wrong])
