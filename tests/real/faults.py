"""What befalls hosts between two runs: each fault is a script that strikes a host which has CUDA 12.2 as declared.

`leaves` names what stays behind when all is mended, and is not there on a host that was never struck: files that were
set aside for their owner to see. Everything else has to be as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

URL = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
_PATH = "/compute/cuda/repos/ubuntu2204/x86_64"
_D = "/etc/apt/sources.list.d"
_P = "/etc/apt/preferences.d"
_KEY = "/etc/apt/keyrings/rackwright-cuda.gpg"
_SOURCE = f"{_D}/rackwright-cuda.list"
_PINS = f"{_P}/rackwright-cuda-versions"
_PROFILE = "/etc/profile.d/rackwright-cuda.sh"
_LINKER = "/etc/ld.so.conf.d/rackwright-cuda.conf"
_TOOLKIT = "/usr/local/cuda-12.2"

PARTS = (
    "cuda-nvcc-12-2", "cuda-cudart-12-2", "libcublas-12-2", "libcublas-dev-12-2", "cuda-nvprune-12-2", "libnpp-12-2",
    "cuda-compiler-12-2", "cuda-libraries-12-2", "nsight-systems-2023.2.3", "cuda-toolkit-12-2-config-common",
)  # fmt: skip
_OLDER = {"cuda-nvcc-12-2": "12.2.91-1", "libcublas-12-2": "12.2.1.16-1", "cuda-cudart-12-2": "12.2.53-1",
          "cuda-nvml-dev-12-2": "12.2.81-1"}  # fmt: skip
# The pins have no say with a version that is named.
_DOWNLOAD = "cd $(mktemp -d) && apt-get -qq download"


@dataclass(frozen=True)
class Fault:
    """One kind of disturbance."""

    name: str
    script: Callable[[random.Random], str]
    leaves: tuple[str, ...] = ()


def _fixed(name: str, script: str, *leaves: str) -> Fault:
    return Fault(name, lambda draw: script, leaves)


def _source(name: str, file: str, text: str) -> Fault:
    return _fixed(name, f"printf '%s\\n' '{text}' >{_D}/{file}", f"{_D}/{file}.disabled")


def _removed(draw: random.Random) -> str:
    return f"dpkg --force-all --purge {' '.join(draw.sample(PARTS, draw.randint(1, 4)))}"


def _downgraded(draw: random.Random) -> str:
    name = draw.choice(sorted(_OLDER))
    return f"{_DOWNLOAD} {name}={_OLDER[name]} && dpkg --force-all -i *.deb"


def _unheld(draw: random.Random) -> str:
    return f"apt-mark unhold {' '.join(draw.sample(PARTS, draw.randint(1, 5)))}"


def _interrupted(draw: random.Random) -> str:
    return f"{_DOWNLOAD} {draw.choice(PARTS[:6])} && dpkg --force-all --unpack *.deb"


def _killed(name: str, kib: int) -> str:
    """SIGXFSZ ends dpkg in the middle of a file, as a power failure does."""
    return f"{_DOWNLOAD} {name} && (ulimit -f {kib}; dpkg --unpack *.deb); [ $? -eq 153 ]"


def _status(name: str, status: str) -> str:
    return f"sed -i '/^Package: {name}$/,/^$/s/^Status: .*/Status: {status}/' /var/lib/dpkg/status"


FAULTS: Sequence[Fault] = (
    Fault("parts-removed", _removed),
    Fault("part-downgraded", _downgraded),
    Fault("unheld", _unheld),
    Fault("unpacked-not-configured", _interrupted),
    _fixed("toolkit-removed", "apt-get -qq -y --allow-change-held-packages purge '*-12-2' 'nsight-*'"),
    _fixed("meta-removed", "dpkg --force-all --purge cuda-toolkit-12-2"),
    _fixed("meta-downgraded", f"{_DOWNLOAD} cuda-toolkit-12-2=12.2.0-1 && dpkg --force-all -i *.deb"),
    _fixed("distribution-library-removed", "dpkg --force-all --purge libtinfo5"),
    _fixed("all-unheld", "apt-mark showhold | xargs apt-mark unhold"),
    _fixed("marked-for-removal", "echo libcublas-12-2 deinstall | dpkg --set-selections"),
    _fixed("dpkg-killed-in-a-part", _killed("cuda-nvcc-12-2", 1000)),
    _fixed("dpkg-killed-in-a-library", _killed("libtinfo5", 180)),
    _fixed("half-configured", _status("cuda-cudart-12-2", "install ok half-configured")),
    _fixed("half-installed", _status("libcufft-12-2", "install reinstreq half-installed")),
    _fixed("dpkg-journal-left", "sed -n '/^Package: cuda-nvtx-12-2$/,/^$/p' /var/lib/dpkg/status"
           " >/var/lib/dpkg/updates/0000"),
    _fixed("nvcc-deleted", f"rm {_TOOLKIT}/bin/nvcc"),
    _fixed("ptxas-truncated", f"truncate -s 4096 {_TOOLKIT}/bin/ptxas"),
    _fixed("ptxas-not-executable", f"chmod -x {_TOOLKIT}/bin/ptxas"),
    _fixed("pins-edited", f"sed -i s/12.2.140/12.2.91/ {_PINS}"),
    _fixed("pins-removed", f"rm {_PINS}"),
    _fixed("pin-of-the-repository-raised", f"sed -i s/100/1001/ {_P}/rackwright-cuda"),
    _fixed("foreign-pin", f"printf 'Package: cuda-nvcc-*\\nPin: version 13.0*\\nPin-Priority: 1001\\n' >{_P}/nvcc",
           f"{_P}/nvcc.disabled"),
    # Of it stay the two stanzas that speak of Ubuntu's own packages.
    _fixed("vendor-pin", f"wget -qO {_P}/cuda-repository-pin-600 {URL}/cuda-ubuntu2204.pin",
           f"{_P}/cuda-repository-pin-600"),
    _fixed("profile-edited", f"echo 'export PATH=/usr/local/cuda/bin:$PATH' >>{_PROFILE}"),
    _fixed("profile-linked-to-nothing", f"ln -sf /dev/null {_PROFILE}"),
    _fixed("profile-given-away", f"chown ubuntu {_PROFILE}"),
    _fixed("linker-edited", f"echo /usr/local/cuda/lib >{_LINKER}; ldconfig"),
    _fixed("linker-removed", f"rm {_LINKER}; ldconfig"),
    _fixed("alternative-automatic", "update-alternatives --auto cuda"),
    _fixed("alternative-removed", "update-alternatives --remove-all cuda"),
    _fixed("link-removed", "rm /usr/local/cuda"),
    _fixed("link-by-hand", "mkdir -p /usr/local/cuda-11.8; ln -sfn /usr/local/cuda-11.8 /usr/local/cuda",
           "/usr/local/cuda-11.8"),
    _source("source-without-key", "cuda.list", f"deb {URL} /"),
    _source("source-trusted", "nvidia.list", f"deb [trusted=yes] {URL.replace('https', 'http')}// /"),
    _source("source-in-capitals", "x.list", f"deb [arch=amd64] HTTPS://Developer.Download.NVIDIA.com:443{_PATH}/ /"),
    _source("source-deb822", "cuda.sources", f"Types: deb\nURIs: {URL}/\nSuites: /\nTrusted: yes"),
    _source("source-of-another-release", "cuda24.list", f"deb {URL.replace('2204', '2404')}/ /"),
    _source("source-is-a-page", "cuda-ubuntu2204-x86_64.list", "<!DOCTYPE html>\n<html lang=\"en\"> ..."),
    _fixed("source-in-sources-list", f"echo 'deb {URL}/ /' >>/etc/apt/sources.list", "/etc/apt/sources.list"),
    _fixed("source-shares-a-stanza", f"printf 'Types: deb\\nURIs: http://controller/debian\\n {URL}/\\n"
           f"Suites: bookworm\\nComponents: main\\n' >{_D}/both.sources", f"{_D}/both.sources"),
    _fixed("source-behind-a-link", f"mkdir /srv/a; echo 'deb {URL} /' >/srv/a/cuda; ln -s /srv/a/cuda {_D}/l.list",
           "/srv/a", "/srv/a/cuda", f"{_D}/l.list.disabled"),
    _fixed("source-removed", f"rm {_SOURCE}"),
    _fixed("source-edited", f"sed -i s/signed-by=[^]]*/trusted=yes/ {_SOURCE}"),
    _fixed("source-in-both-styles", f"printf 'Types: deb\\nURIs: {URL}/\\nSuites: /\\n' >{_D}/rackwright-cuda.sources"),
    _fixed("keyring-package", "apt-get -qq -y install cuda-keyring"),
    _fixed("key-removed", f"rm {_KEY}"),
    _fixed("key-for-root-alone", f"chmod 0600 {_KEY}"),
    _fixed("key-folder-for-root-alone", "chmod 0700 /etc/apt/keyrings"),
    _fixed("key-replaced", f"wget -qO- http://rogue.mirror.lab{_PATH}/3bf863cc.pub | gpg --dearmor >{_KEY}"),
    _fixed("key-garbage", f"head -c 700 /dev/urandom >{_KEY}"),
    _fixed("key-trusted-for-everything", f"wget -qO /etc/apt/trusted.gpg.d/cuda.asc {URL}/3bf863cc.pub",
           "/etc/apt/trusted.gpg.d/cuda.asc.disabled"),
    _fixed("lists-deleted", "rm -rf /var/lib/apt/lists/*"),
    _fixed("our-lists-deleted", "rm -f /var/lib/apt/lists/developer.*"),
    _fixed("proxy-left-behind", "echo 'Acquire::http::Proxy::developer.download.nvidia.com \"http://gone:1\";'"
           " >/etc/apt/apt.conf.d/90rackwright-cuda-proxy"),
)  # fmt: skip
