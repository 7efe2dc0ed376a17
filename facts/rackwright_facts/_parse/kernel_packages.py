"""The distribution's kernels as packages: the metas that a new kernel comes by, and the headers that belong to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from rackwright_facts._parse.dpkg import Package

# linux-image-generic, linux-headers-amd64, linux-generic-hwe-22.04, linux-aws: no kernel's own release in them.
_KERNEL_META = re.compile(
    r"^linux-(?:(?P<kind>image|headers)-)?(?!image|headers|libc|base|firmware|doc|tools|modules|source|perf|kbuild"
    r"|compiler)[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*(-hwe-\d+\.\d+(-edge)?)?$"
)


def metas(installed: Mapping[str, Package], kind: Literal["image", "headers", ""]) -> dict[str, str]:
    """Return the installed meta-packages of a kind ("" is for both): name -> version."""
    found = {}
    for name, package in installed.items():
        match = _KERNEL_META.match(name)
        if package.installed and match is not None and (match["kind"] or "") == kind:
            found[name] = package.version
    return found


def headers_metas(installed: Mapping[str, Package]) -> dict[str, str]:
    """Return the meta-packages that let headers follow the kernels that follow a meta: name -> version."""
    return {name.replace("image", "headers", 1): version for name, version in metas(installed, "image").items()}


def followed(installed: Mapping[str, Package]) -> dict[str, str]:
    """Return all metas by which a new kernel would come: name -> version."""
    return {**metas(installed, "image"), **metas(installed, "headers"), **metas(installed, "")}
