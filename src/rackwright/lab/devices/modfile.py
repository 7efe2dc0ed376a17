"""Kernel module files that kmod's own tools read: a relocatable ELF object with a .modinfo section, and no code.

Layout: ELF-64 (System V ABI), as the kernel's linux/module.h and scripts/mod/modpost.c fill .modinfo.
"""

from __future__ import annotations

import struct

_DEPENDS = {
    "nvidia-uvm": "nvidia",
    "nvidia-modeset": "nvidia",
    "nvidia-drm": "nvidia-modeset",
    "nvidia-peermem": "nvidia",
}
_LICENSE = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}


def module_file(name: str, version: str, flavour: str, kernel: str, signer: str | None = None) -> bytes:
    """Return the content of `name`.ko, built for `kernel`; `flavour` is "open", "proprietary" or a license's name."""
    fields = [
        ("license", _LICENSE.get(flavour, flavour)),
        ("version", version),
        ("depends", _DEPENDS.get(name, "")),
        ("name", name.replace("-", "_")),
        ("vermagic", f"{kernel} SMP mod_unload modversions "),
    ]
    if name in ("nvidia", "nouveau"):
        # Every device of the vendor's in the display classes, as the driver's own table says.
        fields += [("alias", f"pci:v000010DEd*sv*sd*bc03sc{sub}i*") for sub in ("00", "02")]
    if name == "nvidia":
        fields += [("firmware", f"nvidia/{version}/gsp_{chip}.bin") for chip in ("tu10x", "ga10x")]
        fields += [("supported", "external")]
    if signer is not None:
        fields += [("sig_id", "PKCS#7"), ("signer", signer), ("sig_hashalgo", "sha512")]
    info = b"".join(f"{key}={value}".encode() + b"\0" for key, value in fields if value or key == "depends")
    names = b"\0.modinfo\0.shstrtab\0"
    header = 64
    table = header + len(info) + len(names)
    table += -table % 8
    sections = (
        (0, 0, 0, 0, 0, 0, 0),
        (names.index(b".modinfo"), 1, 2, header, len(info), 0, 1),
        (names.index(b".shstrtab"), 3, 0, header + len(info), len(names), 0, 1),
    )
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    start = ident + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, header, 0, 0, 64, len(sections), 2)
    rows = b"".join(
        struct.pack("<IIQQQQIIQQ", name_at, kind, flags, 0, offset, size, link, 0, align, 0)
        for name_at, kind, flags, offset, size, link, align in sections
    )
    return (start + info + names).ljust(table, b"\0") + rows


def read_module(content: bytes) -> dict[str, str]:
    """Return the fields of a module file's .modinfo section, the first of each name; {} where it has none."""
    if content[:4] != b"\x7fELF" or len(content) < 64:
        return {}
    table, count, names_at = struct.unpack_from("<Q", content, 40)[0], *struct.unpack_from("<HH", content, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", content, table + 64 * index) for index in range(count)]
    names = content[rows[names_at][4] : rows[names_at][4] + rows[names_at][5]]
    found: dict[str, str] = {}
    for row in rows:
        if names[row[0] :].split(b"\0", 1)[0] == b".modinfo":
            for field in content[row[4] : row[4] + row[5]].split(b"\0"):
                key, equals, value = field.decode(errors="replace").partition("=")
                if equals:
                    found.setdefault(key, value)
    return found
