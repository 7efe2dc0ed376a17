"""Whether a run did exactly what was planned: operations, commands, packages, holds and files, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from snapshot import Snapshot

TITLES = {
    "packages.settled": "Packages: no interrupted work",
    "cuda.source": "CUDA: the vendor's repository",
    "cuda.toolkit": "CUDA: the toolkits",
    "cuda.environment": "CUDA: paths and default",
    "cuda.proof": "CUDA: proof",
    "distribution.components": "NVIDIA: the distribution's own components",
    "kernels.prerequisites": "NVIDIA: headers and compilers",
    "nvidia.modules": "NVIDIA: no other driver on the GPUs",
    "nvidia.packages": "NVIDIA: the driver",
    "nvidia.running": "NVIDIA: the running module",
    "nvidia_services.services": "NVIDIA: persistence and fabric",
    "nvidia_services.proof": "NVIDIA: proof",
}
_LISTS = "/var/lib/apt/lists/"
_BY_DKMS = re.compile(r"/var/lib/dkms(/|$)|/usr/lib/modules/[^/]+/(updates(/|$)|modules\.)")
# Who unpacks a package writes these too: dpkg's list of its files, the linker's cache, and what maintainer scripts do:
# CUDA's the alternatives `cuda` and `cuda-12`; the driver's the modules that dkms builds, and its services' links.
_BY_PACKAGES = re.compile(
    r"/var/lib/dpkg/(info|alternatives|tmp\.ci|updates)(/|$)|/etc/ld\.so\.cache$|/(usr/local|etc/alternatives)/cuda(-\d+)?$"
    rf"|{_BY_DKMS.pattern}"
    r"|/etc/systemd/system/multi-user\.target\.wants/nvidia-"
)


def commands(stderr: str, host: str) -> list[str]:
    """Return the commands that pyinfra -vv says it ran on the host, as their shell text."""
    blocks = re.split(rf"^\s*\[{re.escape(host)}\] >>> ", stderr, flags=re.MULTILINE)
    return blocks[1:]


def check(
    plan: Mapping[str, Any], before: Snapshot, after: Snapshot, changed: Sequence[str], ran: Sequence[str],
    *, files: bool = True,
) -> None:  # fmt: skip
    """Fail with what was planned and not done, or done and not planned.

    Without `files` only packages, holds and commands are compared: a distribution's own maintainer scripts write what
    they like.
    """
    changes: list[Mapping[str, Any]] = plan["changes"]
    wrong: list[str] = []
    operations = list(dict.fromkeys(TITLES[change["operation"]] for change in changes))
    sure = {TITLES[change["operation"]] for change in changes if change["known"]}
    if [one for one in operations if one in sure or one in changed] != list(changed):
        wrong.append(f"operations planned: {operations}, done: {list(changed)}")
    wrong += _packages(changes, before, after)
    wrong += _holds(changes, before, after)
    wrong += _files(changes, before, after) if files else []
    wrong += _commands(changes, ran)
    assert not wrong, "plan and run differ:\n  " + "\n  ".join(wrong)


def _named(changes: Iterable[Mapping[str, Any]], prefix: str) -> dict[str, Mapping[str, Any]]:
    return {c["what"].removeprefix(prefix): c for c in changes if c["what"].startswith(prefix)}


def _packages(changes: Sequence[Mapping[str, Any]], before: Snapshot, after: Snapshot) -> list[str]:
    wrong = []
    planned = {name: (change["from"], change["to"]) for name, change in _named(changes, "package ").items()
               if not name.startswith("lists of ")}  # fmt: skip
    finished = {
        word.split(" ")[0]
        for change in changes
        if change["what"] == "interrupted package work"
        for word in (change["from"] or "").split(", ")
    }
    for name in sorted({*before.packages, *after.packages}):
        old, new = before.packages.get(name), after.packages.get(name)
        here = old.version if old is not None and old.state != "config-files" else None
        there = new.version if new is not None and new.state != "config-files" else None
        if name in planned:
            was, will = planned[name]
            if was == "damaged":
                was = here
            if (was, will) != (here, there):
                wrong.append(f"package {name}: planned {planned[name]}, done {(here, there)}")
        elif here != there:
            wrong.append(f"package {name}: not planned, done {(here, there)}")
        elif old and new and (old.state, old.flag) != (new.state, new.flag) and name not in finished:
            wrong.append(f"package {name}: not planned, and {old} became {new}")
    gone = [name for name in planned if name not in before.packages and name not in after.packages]
    wrong += [f"package {name}: planned, and dpkg knows nothing of it" for name in gone]
    return wrong


def _argvs(changes: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [command["run"] for change in changes for command in change["commands"] if "run" in command]


def _holds(changes: Sequence[Mapping[str, Any]], before: Snapshot, after: Snapshot) -> list[str]:
    planned = {name for argv in _argvs(changes) if argv[:2] == ["apt-mark", "hold"] for name in argv[2:]}
    moved = set(_named(changes, "package "))
    done = after.held() - before.held()
    wrong = [f"hold on {name}: not planned, done" for name in sorted(done - planned)]
    wrong += [f"hold on {name}: planned, not done" for name in sorted(planned - done - moved)]
    wrong += [f"hold on {name}: lost" for name in sorted(before.held() - after.held() - moved)]
    return wrong


def _files(changes: Sequence[Mapping[str, Any]], before: Snapshot, after: Snapshot) -> list[str]:
    wrong = []
    done = {path for path in before.difference(after) if path.startswith("/")}
    explained: set[str] = set()

    def touched(path: str, change: Mapping[str, Any]) -> None:
        explained.add(path)
        if path not in done:
            wrong.append(f"{change['what']}: planned, and {path} did not change")

    for change in changes:
        for command in change["commands"]:
            if "write" in command:
                touched(command["write"], change)
            elif "reboot" in command:
                continue
            elif command["run"][0] == "mv":
                for path in command["run"][-2:]:
                    touched(path, change)
            elif command["run"][:2] == ["dkms", "autoinstall"]:
                explained |= {path for path in done if _BY_DKMS.match(path)}
            elif command["run"][:2] in (["systemctl", "enable"], ["systemctl", "disable"]):
                wants = re.compile(rf"/etc/systemd/system/[^/]+\.wants(/{re.escape(command['run'][-1])})?$")
                explained |= {path for path in done if wants.match(path)}
            elif command["run"][0] in ("rm", "chmod"):
                touched(command["run"][-1], change)
            elif command["run"][0] == "ldconfig":
                explained.add("/etc/ld.so.cache")
            elif command["run"][0] == "update-alternatives":
                explained |= {"/etc/alternatives/cuda", "/var/lib/dpkg/alternatives/cuda", "/usr/local/cuda"}
                places = ("/etc/alternatives/", "/var/lib/dpkg/alternatives/", "/usr/local/cuda")
                if not any(path.startswith(places) for path in done):
                    wrong.append("alternative cuda: planned, and nothing about it changed")
    if any(change["what"].startswith("package lists of ") for change in changes):
        explained |= {path for path in done if path.startswith(_LISTS)}
    moved = [
        name for name in _named(changes, "package ") if not name.startswith("lists of ")
    ] + [name for change in changes if change["what"] == "interrupted package work"
         for name in re.findall(r"(\S+) \(", change["from"] or "")]  # fmt: skip
    if any(change["what"] == "interrupted package work" for change in changes):
        explained |= {path for path in done if path.startswith("/var/lib/dpkg/updates/")}
    owned = _owned(moved, before) | _owned(moved, after)
    for path in sorted(done - explained):
        # A folder that came for the sake of a file that was planned.
        made_for = any(other.startswith(f"{path}/") for other in explained)
        shipped = re.sub(r"\.dpkg-(new|tmp)$", "", path)  # what a dpkg that was killed leaves beside it
        if not made_for and not (moved and (shipped in owned or _BY_PACKAGES.match(path))):
            wrong.append(f"{path}: not planned, and it changed: {before.files.get(path)} -> {after.files.get(path)}")
    return wrong


def _owned(names: Iterable[str], seen: Snapshot) -> set[str]:
    """Return the paths of these packages, and the folders above them."""
    return {path for name in names for path in seen.owned.get(name, ())}


def _commands(changes: Sequence[Mapping[str, Any]], ran: Sequence[str]) -> list[str]:
    """Every command that is known beforehand was run, once and in its order, and no others."""
    # How a service stands is only known once the packages are there that start it: then any of its commands will do.
    open_units = [c["what"].removeprefix("unit ") for c in changes if not c["known"] and c["what"].startswith("unit ")]
    rest = [text for text in ran if not any(unit in text and "systemctl" in text for unit in open_units)]
    wrong = []
    for change in changes:
        for command in change["commands"] if change["what"].removeprefix("unit ") not in open_units else ():
            mark = _mark(command)
            if rest and mark in rest[0]:
                rest.pop(0)
            elif change["known"]:
                wrong.append(f"{change['what']}: the planned command did not run here: {mark}; instead: {rest[:1]}")
                return wrong
    return wrong + [f"a command that was not planned: {text[:300]}" for text in rest]


def _mark(command: Mapping[str, Any]) -> str:
    """Return what tells the shell text of this command from another's."""
    if "write" in command:
        return f"{command['write']}.rackwright-new"
    if "reboot" in command:
        return "systemctl reboot"
    argv = command["run"]
    # A script's text is quoted anew in the shell's: its name and first argument tell it.
    return " ".join(argv[3:5] if argv[:2] == ["bash", "-c"] else argv[:3])
