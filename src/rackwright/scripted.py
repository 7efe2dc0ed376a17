"""Scripted hosts for pyinfra's `@fake` connector: a plan to look at with no host, no root and no network.

Their answers are what a fresh Ubuntu 22.04, one that is as declared, and an Ubuntu 24.04 (whose repository has no
CUDA 12.2) would print. They never change, so only `--dry` and `rackwright plan` make sense on them.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rackwright import sources
from rackwright.change import Call, first_sections, fold, recording
from rackwright.lab import recipes
from rackwright.operations import cuda, packages
from rackwright_facts._parse import apt_index, cuda_set
from rackwright_facts._parse.dpkg import Package
from rackwright_facts.look import Look, Section
from rackwright_facts.system import FileState

Host = tuple[str, dict[str, Any]]

_CUDA: cuda.Cuda = {"versions": ["12.2"], "default": "12.2"}
# A version 4 public-key packet that nobody holds the secret part of: its fingerprint is what counts here.
_KEY_BODY = b"\x04\x65\x53\xf1\x00\x01\x00\x08\xff\x00\x11\x01\x00\x01"
_KEY = bytes([0x98, len(_KEY_BODY)]) + _KEY_BODY
_FINGERPRINT = (
    hashlib.sha1(b"\x99" + len(_KEY_BODY).to_bytes(2, "big") + _KEY_BODY, usedforsecurity=False).hexdigest().upper()
)
_SOURCE: sources.CudaSource = {"url": sources.CUDA_URL, "key": None, "fingerprint": _FINGERPRINT, "proxy": None}
_SYSTEMS = {
    "ubuntu2204": 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS (scripted)"\n',
    "ubuntu2404": 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS (scripted)"\n',
}


def hosts() -> list[Host]:
    """Return the scripted hosts with their data, as an inventory file has them."""
    calls = _calls()
    after: dict[str, Look] = {}
    fresh = _answers(calls, _fresh("ubuntu2204"), after)
    return [
        _host("@fake/gpu01", fresh),
        _host("@fake/gpu02", _answers(calls, {**_fresh("ubuntu2204"), **_as_declared(after["look"])})),
        _host("@fake/gpu03", _answers(calls, _fresh("ubuntu2404"))),
    ]


def _host(name: str, lines: list[str]) -> Host:
    data = {
        "driver": None, "tier": None, "rollout": None, "cuda": _CUDA, "cuda_source": _SOURCE, "fake_delay": 0,
        "fake_delay_jitter": 0,
    }  # fmt: skip
    return name, {**data, "fake_responses": {"ask 0 ": lines}}


def _calls() -> list[Call]:
    with recording() as recorded:
        packages.settled()
        cuda.source(cuda=_CUDA, driver=None, origin=_SOURCE)
        cuda.toolkit(cuda=_CUDA, origin=_SOURCE)
        cuda.environment(cuda=_CUDA)
        cuda.proof(cuda=_CUDA)
    return recorded.calls


def _answers(
    calls: Sequence[Call], said: Mapping[str, tuple[int, str]], after: dict[str, Look] | None = None
) -> list[str]:
    """Return the answer line of every section that the calls come to ask; `after` gets what they will have left."""
    lines: dict[str, str] = {}

    def fetch(sections: Sequence[Section[Any]]) -> Look:
        readings = {}
        for section in sections:
            status, text = said.get(section.key) or said.get(section.key.partition(":")[0]) or (0, "")
            output = text.encode("utf-8", "surrogateescape")
            lines[section.key] = f"{section.token} {status} ={base64.b64encode(output).decode()} ="
            readings[section.key] = section.read(status, output, b"")
        return Look(readings)

    look = fetch(first_sections(calls))
    for _, decision in fold(calls, look, fetch):
        look = decision.after
    if after is not None:
        after["look"] = look
    return list(lines.values())


def _fresh(directory: str) -> dict[str, tuple[int, str]]:
    """Return section, or its name's first part -> (exit status, output) of a host with nothing of ours."""
    debs = recipes.repository(directory, defaultdict(bytes))  # their metadata alone: no ptxas is needed
    index = "\n".join(f"{deb.control()}Size: {1 << 20}\n" for deb in debs)
    text = f"{sources.CUDA_LABEL}\n{index}"
    offered = apt_index.parse_packages(index)
    steps = ""
    if directory == "ubuntu2204":
        newest = cuda_set.resolve(offered, "cuda-toolkit-12-2", "12.2.2-1", {})
        steps = "Inst libtinfo5 (6.3-2ubuntu0.1 Ubuntu:22.04/jammy-updates [amd64])\n"
        steps += "".join(f"Inst {name} ({version} NVIDIA [amd64])\n" for name, version in sorted(newest.items()))
    return {
        "system.os_release": (0, _SYSTEMS[directory]),
        "system.architecture": (0, "amd64\n"),
        "system.space": (0, "/usr /dev/md0 900000000 1 800000000 1% /\n"),
        "system.cloud_init": (127, ""),
        "packages.installed": (0, "amd64\nbash\t5.1-6ubuntu1\tamd64\tinstall\tinstalled\tok\t\t\t\n"),
        "packages.interrupted": (0, "0\n"),
        "packages.lists": (0, "archive.example_ubuntu_dists_jammy_main_binary-amd64_Packages\n"),
        "packages.fetched": (0, _KEY.decode("utf-8", "surrogateescape")),
        "packages.index": (0, text),
        "packages.simulate": (0, steps),
        "cuda.proof": (127, ""),
        "cuda.default": (2, ""),
        "cuda.linker_cache": (0, "fresh\n"),
    }


def _as_declared(look: Look) -> dict[str, tuple[int, str]]:
    """Return what a host answers that is as `look` says, proof included."""
    said: dict[str, tuple[int, str]] = {}
    configuration: dict[str, FileState] = {}
    for key, reading in look.readings.items():
        if key.startswith("system.files:") and reading.value:
            said[key] = (0, _files(reading.value))
            configuration |= {path: state for path, state in reading.value.items() if path.startswith("/etc/apt/")}
    said["packages.apt"] = (
        0,
        _files({path: state for path, state in configuration.items() if "/keyrings/" not in path}),
    )
    for key, reading in look.readings.items():
        if key == "packages.installed" and reading.value:
            said[key] = (0, "amd64\n" + "".join(map(_package, reading.value.values())))
        elif key == "packages.lists" and reading.value:
            said[key] = (0, "\n".join(sorted(reading.value)))
    home = "/usr/local/cuda-12.2"
    said["cuda.default"] = (
        0,
        f"Name: cuda\nLink: /usr/local/cuda\nStatus: manual\nValue: {home}\n\nAlternative: {home}\nPriority: 122\n",
    )
    said["cuda.proof"] = (0, "Cuda compilation tools, release 12.2, V12.2.140\n@ assembled 0 0\n")
    return said


def _files(states: Mapping[str, FileState]) -> str:
    lines = ""
    for path, state in states.items():
        name = base64.b64encode(path.encode()).decode()
        kind = "symbolic link" if state.kind == "symlink" else "regular file"
        content = "-" if state.content is None else f"={base64.b64encode(state.content).decode()}"
        target = base64.b64encode(state.target.encode()).decode()
        lines += f"{name}\t{kind}\t{state.mode:o}\t{state.owner}\t{content}\t{target}\n"
    return lines


def _package(package: Package) -> str:
    state = (package.want, package.state, "ok")
    fields = (package.name, package.version, package.architecture, *state, package.depends, package.provides, "")
    return "\t".join(fields) + "\n"
