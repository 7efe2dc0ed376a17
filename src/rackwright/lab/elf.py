"""A shared library that holds nothing but its name: what the linker's cache lists and dlopen(3) loads.

Stand-in packages ship it where the vendor ships a library: ld.so.conf.d and ldconfig then work for real.
"""

from __future__ import annotations

import struct

_EHDR, _PHDR, _DYN = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<QQ"
_ET_DYN, _EM_X86_64 = 3, 62
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_PF_W, _PF_R = 2, 4
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_SYMBOL_SIZE = 24


def shared_library(soname: str) -> bytes:
    """Return an x86-64 shared object named `soname`, with no code and no symbols."""
    strings = b"\0" + soname.encode() + b"\0"
    buckets = struct.pack("<IIII", 1, 1, 0, 0)
    hash_at = struct.calcsize(_EHDR) + 3 * struct.calcsize(_PHDR)
    symbols_at = hash_at + len(buckets)
    strings_at = symbols_at + _SYMBOL_SIZE
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    entries = (
        (_DT_SONAME, 1), (_DT_HASH, hash_at), (_DT_STRTAB, strings_at), (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)), (_DT_SYMENT, _SYMBOL_SIZE), (_DT_NULL, 0),
    )  # fmt: skip
    dynamic = b"".join(struct.pack(_DYN, *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack(
        _EHDR, ident, _ET_DYN, _EM_X86_64, 1, 0, struct.calcsize(_EHDR), 0, 0,
        struct.calcsize(_EHDR), struct.calcsize(_PHDR), 3, 0, 0, 0,
    )  # fmt: skip
    # Writable: the loader relocates the dynamic section in place. No executable stack: new kernels refuse it.
    segments = (
        (_PT_LOAD, _PF_R | _PF_W, 0, 0, 0, size, size, 0x1000),
        (_PT_DYNAMIC, _PF_R | _PF_W, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8),
        (_PT_GNU_STACK, _PF_R | _PF_W, 0, 0, 0, 0, 0, 16),
    )
    programs = b"".join(struct.pack(_PHDR, *segment) for segment in segments)
    body = header + programs + buckets + bytes(_SYMBOL_SIZE) + strings
    return body.ljust(dynamic_at, b"\0") + dynamic
