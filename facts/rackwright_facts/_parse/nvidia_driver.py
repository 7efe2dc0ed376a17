"""What a node has of an NVIDIA driver beside its packages: modules by kernel, what is loaded, libraries, Secure Boot.

Read from lines of tab-separated fields that `nvidia.DRIVER` prints: a word that names the line, then its values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from rackwright_facts._parse import debversion
from rackwright_facts._parse.model import Model

Flavour = Literal["open", "proprietary"]


class Module(Model):
    """The module `nvidia` of one kernel as it lies on disk (modinfo)."""

    version: str
    license: str
    """`Dual MIT/GPL` for the open module, `NVIDIA` for the proprietary one."""
    signer: str = ""

    @property
    def flavour(self) -> Flavour:
        """Return which of the two modules it is."""
        return "open" if "GPL" in self.license else "proprietary"


class Loaded(Model):
    """The module that the running kernel has."""

    version: str
    flavour: Flavour


class Kernel(Model):
    """One kernel that is installed."""

    release: str
    """As `uname -r` would say."""
    headers: bool
    compiler: str = ""
    """The package of the compiler that built it, such as `gcc-12`; empty when that cannot be told."""
    compiler_installed: bool = False
    module: Module | None = None


class DriverState(Model):
    """The driver on a node, less its packages."""

    running: str
    """`uname -r`."""
    boot_id: str
    loaded: Loaded | None = None
    rivals: Mapping[str, int] = {}
    """Loaded modules that hold GPUs instead (nouveau, nova_core ...) -> how many use them: the console, for one."""
    kernels: tuple[Kernel, ...] = ()
    libraries: Mapping[str, str] = {}
    """`libcuda`, `libnvidia-ml`, `libnvidia-nscq` -> version by the file that the soname's link leads to."""
    secure_boot: bool = False
    key_enrolled: bool = False
    """Whether the key that dkms signs with is enrolled (mokutil)."""
    runfile: tuple[str, ...] = ()
    """Traces of a driver that a .run file installed."""

    @property
    def next_boot(self) -> str:
        """Return the kernel that the boot loader takes by default: the newest (grub-mkconfig, GRUB_DEFAULT=0)."""
        return max((kernel.release for kernel in self.kernels), key=debversion.key, default=self.running)

    def kernel(self, release: str) -> Kernel:
        """Return a kernel; one whose image is gone (it still runs) has nothing."""
        return next((one for one in self.kernels if one.release == release), Kernel(release=release, headers=False))


def parse_nvrm(text: str) -> Loaded:
    """Read /proc/driver/nvidia/version."""
    match = re.search(r"^NVRM version:\s+NVIDIA UNIX (.*?)Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"no version in /proc/driver/nvidia/version: {text[:120]!r}")
    return Loaded(version=match.group(2), flavour="open" if "Open" in match.group(1) else "proprietary")


def compiler_package(text: str) -> str:
    """Return the compiler's package for a `CONFIG_CC_VERSION_TEXT`, such as "gcc-12"; empty for what is not gcc."""
    match = re.match(r"^(?:\S*-)?gcc(?:-\d+)?(?:\.\S+)? .*?(\d+)\.\d+(?:\.\d+)?\s*$", text.strip())
    return f"gcc-{match.group(1)}" if match else ""


def parse(text: str) -> DriverState:
    """Read the lines; a word that is not known is a `ValueError`."""
    values: dict[str, str] = {}
    kernels: list[Kernel] = []
    libraries: dict[str, str] = {}
    runfile: list[str] = []
    rivals: dict[str, int] = {}
    nvrm = ""
    for line in text.splitlines():
        word, *fields = line.split("\t")
        if word == "kernel" and len(fields) == 7:
            release, headers, config, installed, version, license_, signer = fields
            kernels.append(
                Kernel(
                    release=release,
                    headers=headers == "1",
                    compiler=compiler_package(config.strip('"')),
                    compiler_installed=installed == "1",
                    module=Module(version=version, license=license_, signer=signer) if version else None,
                )
            )
        elif word == "library" and len(fields) == 2:
            version_of = re.search(r"\.so\.(\d+(?:\.\d+)+)$", fields[1])
            if version_of:
                libraries[fields[0]] = version_of.group(1)
        elif word == "runfile" and len(fields) == 1:
            runfile.append(fields[0])
        elif word == "rival" and len(fields) == 2:
            rivals[fields[0]] = int(fields[1])
        elif word == "nvrm" and len(fields) == 1:
            nvrm += fields[0] + "\n"
        elif word in ("running", "boot_id", "secure_boot", "key_enrolled") and len(fields) == 1:
            values[word] = fields[0]
        else:
            raise ValueError(f"not a line of the driver's state: {line[:120]!r}")
    if not values.get("running") or not values.get("boot_id"):
        raise ValueError("the node does not say which kernel runs")
    return DriverState(
        running=values["running"],
        boot_id=values["boot_id"],
        loaded=parse_nvrm(nvrm) if nvrm else None,
        rivals=rivals,
        kernels=tuple(sorted(kernels, key=lambda kernel: debversion.key(kernel.release))),
        libraries=libraries,
        secure_boot=values.get("secure_boot") == "1",
        key_enrolled=values.get("key_enrolled") == "1",
        runfile=tuple(runfile),
    )


class Initramfs(Model):
    """The initramfs of one kernel, looked at inside."""

    release: str
    rivals: tuple[str, ...] = ()
    """Modules in it that would take the GPUs first."""
    blacklisted: bool = False
    """Whether our blacklist is in it."""
    broken: bool = False
    """Whether it cannot be read: cut off, for one."""

    @property
    def is_clean(self) -> bool:
        """Return whether no other module can take the GPUs while it is at work."""
        return not self.broken and (self.blacklisted or not self.rivals)


def parse_initramfs(text: str) -> tuple[Initramfs, ...]:
    """Read lines of `RELEASE TAB PATH`; each image has one with an empty path."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        release, tab, path = line.partition("\t")
        if not tab:
            raise ValueError(f"not a line of an initramfs: {line[:120]!r}")
        found.setdefault(release, []).append(path)
    return tuple(
        Initramfs(
            release=release,
            rivals=tuple(sorted({
                path.rpartition("/")[2].partition(".")[0] for path in paths if ".ko" in path
            })),
            broken="broken" in paths,
            blacklisted=any(path.endswith("modprobe.d/rackwright-nvidia.conf") for path in paths),
        )
        for release, paths in found.items()
    )  # fmt: skip


class GpuProcess(Model):
    """A process that uses a GPU."""

    pid: int
    user: str
    command: str
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it uses, where the driver says so."""
    container: str = ""
    """First twelve digits of the container's id, when it runs in one."""

    def __str__(self) -> str:
        place = f" in container {self.container}" if self.container else ""
        on = f" on {', '.join(self.gpus)}" if self.gpus else ""
        return f"pid {self.pid} ({self.user}: {self.command}){on}{place}"


_CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd|crio|containerd)?[-/:]?([0-9a-f]{64})")


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Read lines of PID, user, UUID (or nothing), cgroup, command, separated by tabs."""
    found: dict[int, GpuProcess] = {}
    for line in text.splitlines():
        fields = line.split("\t", 4)
        if len(fields) != 5 or not fields[0].isdigit():
            raise ValueError(f"not a line of a GPU process: {line[:120]!r}")
        pid, user, uuid, cgroup, command = fields
        container = _CONTAINER.search(cgroup)
        before = found.get(int(pid))
        gpus = (*(before.gpus if before else ()), *((uuid,) if uuid else ()))
        found[int(pid)] = GpuProcess(
            pid=int(pid), user=user, command=command.strip()[:200], gpus=tuple(dict.fromkeys(gpus)),
            container=container.group(1)[:12] if container else "",
        )  # fmt: skip
    return tuple(found.values())
