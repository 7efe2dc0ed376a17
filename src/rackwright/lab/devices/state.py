"""What a machine is and what its running kernel has, in two files; every path below one root.

`hardware.json` survives a reboot, `/run` does not: what stands where is what a reboot forgets. All files are replaced
whole, and changed under a lock, so that tools that run at the same time never see or lose half a change.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .catalogue import JSON, PRODUCTS, Product

HARDWARE = "/var/lib/rackwright-lab/hardware.json"
RUN = "/run/rackwright-lab"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


class Answer(NamedTuple):
    """What a tool prints, and its exit status."""

    out: str = ""
    err: str = ""
    code: int = 0


def fail(message: str, code: int = 1) -> Answer:
    """Return an answer that is a failure told on stderr."""
    return Answer(err=f"{message}\n", code=code)


class Machine:
    """The state of one machine; `root` is the folder that stands for `/`."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.dkms_tree, self.dkms_sources = "/var/lib/dkms", "/usr/src"
        self.root = str(root if root is not None else os.environ.get("RACKWRIGHT_LAB_ROOT", "/")).rstrip("/")

    def path(self, name: str) -> Path:
        """Return where an absolute path of the machine lies."""
        return Path(self.root + name)

    def run(self, name: str) -> Path:
        """Return the path of a name under the stand-ins' folder in /run."""
        return self.path(f"{RUN}/{name}")

    @property
    def hardware(self) -> JSON:
        """The machine as it is stored, without its faults."""
        return self._read(self.path(HARDWARE))

    @hardware.setter
    def hardware(self, value: JSON) -> None:
        write(self.path(HARDWARE), json.dumps(value, indent=1) + "\n")

    @property
    def kernel(self) -> JSON:
        """What the running kernel has: its modules, and the devices that it found when it booted."""
        return self._read(self.run("kernel.json"))

    @kernel.setter
    def kernel(self, value: JSON) -> None:
        write(self.run("kernel.json"), json.dumps(value, indent=1) + "\n")

    @property
    def settings(self) -> JSON:
        """What nvidia-smi set until the next boot: a GPU's uuid -> its settings."""
        return self._read(self.run("settings.json"))

    @settings.setter
    def settings(self, value: JSON) -> None:
        write(self.run("settings.json"), json.dumps(value, indent=1) + "\n")

    @property
    def modules(self) -> JSON:
        """The loaded modules: name with dashes -> {"version", "flavour", "drives"}."""
        found: JSON = self.kernel.get("modules", {})
        return found

    @property
    def library_version(self) -> str | None:
        """The version of the NVML library that the linker finds, by the name that its link points to."""
        link = self.path(LIBRARY)
        if not link.is_symlink():
            return None
        version = str(link.readlink()).rpartition("libnvidia-ml.so.")[2]
        return version if link.exists() and version else None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the machine's lock: only one tool changes its state at a time."""
        path = self.path(HARDWARE).parent / "lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def log(self, *lines: str) -> None:
        """Append lines to the kernel's log, with the times since boot that dmesg shows."""
        path = self.run("dmesg")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            seconds = float(Path("/proc/uptime").read_text().split()[0])
            file.writelines(f"[{seconds:12.6f}] {line}\n" for line in lines)

    @staticmethod
    def _read(path: Path) -> JSON:
        try:
            found: JSON = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        return found


def write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Replace a file whole, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.chmod(mode)
    new.replace(path)


def product(gpu: JSON) -> Product:
    """Return the board that a GPU is."""
    return PRODUCTS[gpu["product"]]


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a driver's version, to compare: 535.54.03 -> (535, 54, 3)."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())
