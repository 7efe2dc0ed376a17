"""A shared library of a name, with functions that return a number: what the linker's cache lists and dlopen(3) loads.

Stand-in packages ship it where the vendor ships a library: ld.so.conf.d and ldconfig then work for real.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_EHDR, _PHDR, _DYN, _SYM = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<QQ", "<IBBHQQ"
_ET_DYN, _EM_X86_64 = 3, 62
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_PF_X, _PF_W, _PF_R = 1, 2, 4
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_GLOBAL_FUNCTION = (1 << 4) | 2
_SOME_SECTION = 1  # any index but 0, which means "not defined here"
_PAGE = 0x1000


def _pad(content: bytes, unit: int) -> bytes:
    return content.ljust((len(content) + unit - 1) // unit * unit, b"\0")


def shared_library(soname: str, functions: Mapping[str, int] | None = None) -> bytes:
    """Return an x86-64 shared object named `soname`.

    `functions` are its exported functions: name -> the number that it returns, whatever it is called with.
    """
    functions = functions or {}
    strings = b"\0" + soname.encode() + b"\0"
    symbols = bytes(struct.calcsize(_SYM))
    code = b""
    for name, value in functions.items():
        body = b"\xb8" + struct.pack("<i", value) + b"\xc3"  # mov eax, value; ret
        symbols += struct.pack(
            _SYM, len(strings), _GLOBAL_FUNCTION, 0, _SOME_SECTION, _PAGE + len(code), len(body)
        )  # fmt: skip
        strings += name.encode() + b"\0"
        code += _pad(body, 16)
    # One bucket, whose chain goes through all symbols (ELF specification, "Hash Table").
    count = len(functions) + 1
    chain = [0, *(index + 1 if index + 1 < count else 0 for index in range(1, count))]
    buckets = struct.pack(f"<III{count}I", 1, count, 1 if functions else 0, *chain)
    hash_at = struct.calcsize(_EHDR) + 4 * struct.calcsize(_PHDR)
    symbols_at = (hash_at + len(buckets) + 7) // 8 * 8
    strings_at = symbols_at + len(symbols)
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    entries = (
        (_DT_SONAME, 1), (_DT_HASH, hash_at), (_DT_STRTAB, strings_at), (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)), (_DT_SYMENT, struct.calcsize(_SYM)), (_DT_NULL, 0),
    )  # fmt: skip
    dynamic = b"".join(struct.pack(_DYN, *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    # Writable: the loader relocates the dynamic section in place. No executable stack: new kernels refuse it.
    segments = [
        (_PT_LOAD, _PF_R | _PF_W, 0, 0, 0, size, size, _PAGE),
        (_PT_DYNAMIC, _PF_R | _PF_W, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8),
        (_PT_GNU_STACK, _PF_R | _PF_W, 0, 0, 0, 0, 0, 16),
    ]
    if code:
        segments.insert(1, (_PT_LOAD, _PF_R | _PF_X, _PAGE, _PAGE, _PAGE, len(code), len(code), _PAGE))
    header = struct.pack(
        _EHDR, ident, _ET_DYN, _EM_X86_64, 1, 0, struct.calcsize(_EHDR), 0, 0,
        struct.calcsize(_EHDR), struct.calcsize(_PHDR), len(segments), 0, 0, 0,
    )  # fmt: skip
    programs = b"".join(struct.pack(_PHDR, *segment) for segment in segments).ljust(4 * struct.calcsize(_PHDR), b"\0")
    body = (header + programs + buckets).ljust(symbols_at, b"\0") + symbols + strings
    whole = body.ljust(dynamic_at, b"\0") + dynamic
    if not code:
        return whole
    if len(whole) > _PAGE:
        raise ValueError("more functions than one page of names holds")
    return whole.ljust(_PAGE, b"\0") + code
