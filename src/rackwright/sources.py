"""The vendors' public addresses, keys and packages: product data, in this one module.

Sources of the facts: docs.nvidia.com (CUDA installation guide; "gpg-keys-used-to-sign-the-packages"; the deprecation
table of driver branches), the index of each repository. Fingerprints are public.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import quote, urlsplit, urlunsplit

from rackwright.errors import Problem
from rackwright_facts._parse.apt_sources import normal_uri

CUDA_URL = "https://developer.download.nvidia.com/compute/cuda/repos"
_CUDA_HOSTS = ("developer.download.nvidia.com", "developer.download.nvidia.cn")
CUDA_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"
CUDA_KEY_FILE = "3bf863cc.pub"
CUDA_RETIRED_KEYS = ("AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80",)
"""Rotated out on 2022-04-27."""
CUDA_LABEL = "NVIDIA CUDA"
CUDA_KEYRING_PACKAGE = "cuda-keyring"

DRIVER_BRANCH_ENDS = {
    470: "2024-07",
    525: "2023-12",
    535: "2026-06",
    550: "2025-09",
    570: "2026-02",
    580: "2028-06",
}
"""Year and month of the last release of a data-center driver branch."""
CUDA_DRIVER_FLOOR = {11: 450, 12: 525, 13: 580}
"""CUDA major version -> first driver branch that runs it (minor-version compatibility)."""
TORCH_CUDA_TAGS = ("cu118", "cu121", "cu124", "cu126", "cu128")


class Proxy(TypedDict):
    """An HTTP proxy; `password` is a reference, never the secret."""

    url: str
    user: str | None
    password: str | None


class CudaSource(TypedDict):
    """Where CUDA's repository is had from: what `host.data.cuda_source` holds."""

    url: str
    key: str | None
    fingerprint: str
    proxy: Proxy | None


@dataclass(frozen=True)
class VendorDistro:
    """A system as NVIDIA's repositories name it."""

    directory: str
    """`ubuntu2204`."""
    architecture: str
    """`x86_64`, or `sbsa` for 64-bit Arm servers."""
    deb822: bool
    """Whether this release writes its sources as deb822 files."""


# (ID, VERSION_ID) -> the vendor's directory, deb822. What is not here is not supported yet.
_SYSTEMS = {
    ("ubuntu", "22.04"): ("ubuntu2204", False),
    ("ubuntu", "24.04"): ("ubuntu2404", True),
    ("debian", "12"): ("debian12", True),
}
_UBUNTU_RELEASES = {"jammy": "22.04", "noble": "24.04"}
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "sbsa"}


def vendor_distro(os_release: Mapping[str, str], architecture: str) -> VendorDistro | Problem:
    """Return how NVIDIA names this system, or why it is not supported.

    Derivatives of Ubuntu go by UBUNTU_CODENAME: Linux Mint 21.3 is jammy.
    """
    system = (os_release.get("ID", ""), os_release.get("VERSION_ID", ""))
    if system[0] not in ("ubuntu", "debian") and "ubuntu" in os_release.get("ID_LIKE", "").split():
        system = ("ubuntu", _UBUNTU_RELEASES.get(os_release.get("UBUNTU_CODENAME", ""), ""))
    shown = os_release.get("PRETTY_NAME") or " ".join(part for part in system if part) or "an unknown system"
    if system not in _SYSTEMS:
        return Problem(
            f"{shown} is not supported yet: rackwright sets up Ubuntu 22.04, Ubuntu 24.04 and Debian 12",
            "/etc/os-release",
            "install one of those on the node, or leave the node out of this deploy",
        )
    if architecture not in _ARCHITECTURES:
        return Problem(
            f"NVIDIA has no CUDA repository for {shown} on {architecture}",
            "dpkg --print-architecture",
            "amd64 or arm64",
        )
    directory, deb822 = _SYSTEMS[system]
    return VendorDistro(directory, _ARCHITECTURES[architecture], deb822)


def cuda_repository_url(distro: VendorDistro, source: CudaSource) -> str:
    """Return the URL of the flat repository."""
    return f"{source['url'].rstrip('/')}/{distro.directory}/{distro.architecture}/"


def cuda_key_url(distro: VendorDistro, source: CudaSource) -> str:
    """Return where the vendor publishes the key, below the same URL as the packages."""
    return cuda_repository_url(distro, source) + CUDA_KEY_FILE


def is_cuda_repository(source: CudaSource) -> Callable[[str], bool]:
    """Return a test for normalised URIs: NVIDIA's CUDA repositories for any system, at the vendor or the mirror.

    A repository for another distribution release beside the right one mixes packages, so it counts too.
    """
    prefixes = [f"{host}/compute/cuda/repos" for host in _CUDA_HOSTS]
    prefixes.append(normal_uri(source["url"]))
    return lambda uri: any(uri == prefix or uri.startswith(f"{prefix}/") for prefix in prefixes)


def cuda_vendor_files(distro: VendorDistro) -> tuple[str, ...]:
    """Return the names under sources.list.d that the vendor's package and common recipes use."""
    names = (f"cuda-{distro.directory}-{distro.architecture}", "cuda", "cuda-repository", "nvidia-cuda")
    return tuple(f"{name}{ending}" for name in names for ending in (".list", ".sources"))


def proxy_with_password(proxy: Proxy | None, password: str | None) -> str | None:
    """Return the proxy's URL as apt takes it, with its credentials."""
    if proxy is None:
        return None
    if not proxy["user"]:
        return proxy["url"]
    parts = urlsplit(proxy["url"])
    credentials = quote(proxy["user"], safe="") + (f":{quote(password, safe='')}" if password else "")
    return urlunsplit(parts._replace(netloc=f"{credentials}@{parts.netloc}"))


def driver_origin(maintainer: str) -> str:
    """Return who packaged a driver by the package's Maintainer: `nvidia`, `ubuntu` or `debian`; "" when it is unknown.

    Versions do not tell: Debian's 535.261.03-1 and NVIDIA's for Debian have the same form.
    """
    who = maintainer.lower()
    return next((name for mark, name in _PACKAGERS if mark in who), "")


_PACKAGERS = (("ubuntu", "ubuntu"), ("@nvidia.com", "nvidia"), ("debian", "debian"))
