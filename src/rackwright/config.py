"""The settings of a cluster: `cluster.yaml` -> `Cluster`, validated as a whole before any host is touched.

`load` reports all mistakes together, each with file, line, path and cure. Secrets are references (`env:NAME`,
`file:PATH`), resolved on use by `resolve_secret`; `load` reads no other file and no variable.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rackwright import sources
from rackwright.errors import Problem, UsageMistake

_SECRET = re.compile(r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")


def _fail(message: str, fix: str) -> PydanticCustomError:
    # Braces would be taken for fields of the message.
    return PydanticCustomError("rackwright", "{message}", {"message": message, "fix": fix})


def _secret(value: object) -> object:
    if not isinstance(value, str) or not _SECRET.match(value):
        raise _fail(
            "it has to be a reference and not the secret itself",
            "write env:NAME (an environment variable) or file:PATH",
        )
    return value


def _url(value: str) -> str:
    match = re.match(r"^(https?)://([^/]*)(/.*)?$", value)
    if match is None or not match.group(2):
        raise _fail("not an http or https URL", "write it as https://HOST/PATH")
    if "@" in match.group(2):
        raise _fail(
            "a URL with a user or password in it",
            "give credentials by reference: proxy: {url, user, password}",
        )
    if re.search(r"\s|[\[\]\"']", value):
        raise _fail("a URL with a space, bracket or quote in it", "write it as https://HOST/PATH")
    return value.rstrip("/")


def _fingerprint(value: str) -> str:
    bare = value.replace(" ", "").removeprefix("0x").upper()
    if not re.fullmatch(r"[0-9A-F]{40}", bare):
        raise _fail(
            "a fingerprint has 40 hexadecimal digits",
            "see it with `gpg --show-keys FILE`; a short key id will not do",
        )
    return bare


def _cuda_version(value: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]?\.[0-9]{1,2}(\.[0-9]{1,2})?", value, flags=re.ASCII):
        raise _fail(f"{value!r} is no CUDA version", 'write it as "12.2", or "12.2.2" for one patch level')
    return value


def _driver_version(value: str) -> str:
    if value != "latest-in-branch" and not re.fullmatch(r"[0-9]{3,4}(\.[0-9]{1,3}){1,2}", value, flags=re.ASCII):
        raise _fail(f"{value!r} is no driver version", "write latest-in-branch, or one exact version: 580.126.16")
    return value


def _subnet(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise _fail(f"not a subnet: {error}", "write it as 10.10.0.0/24; an interface's name is not taken") from None


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise _fail("it has to be an absolute path", "begin it with /")
    return value


def _batch(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _fail("it has to be a number of hosts or a percentage", "write 4, or 10%")
    if isinstance(value, str) and not re.fullmatch(r"(100|[1-9][0-9]?)%", value):
        raise _fail(f"{value!r} is no percentage", "write 4, or 10%")
    if isinstance(value, int) and value < 1:
        raise _fail("it has to be at least 1", "write 1 or more")
    return value


def _environment(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _fail("it has to be a text or a whole number", "quote it")
    return value


Secret = Annotated[str, BeforeValidator(_secret), Field(description="env:NAME or file:PATH", pattern=_SECRET.pattern)]
Url = Annotated[str, AfterValidator(_url)]
Fingerprint = Annotated[str, AfterValidator(_fingerprint)]
CudaVersion = Annotated[str, AfterValidator(_cuda_version)]
DriverVersion = Annotated[str, AfterValidator(_driver_version)]
Subnet = Annotated[str, AfterValidator(_subnet)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
Batch = Annotated["int | str", BeforeValidator(_batch)]
EnvironmentValue = Annotated["int | str", BeforeValidator(_environment)]


class Section(BaseModel):
    """A part of the settings: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Ssh(Section):
    """How hosts are reached."""

    user: str = "root"
    port: int = Field(default=22, ge=1, le=65535)
    key: str | None = Field(default=None, description="Private key file; relative to this file, ~ is the home folder.")
    known_hosts: str | None = Field(default=None, description="By default ~/.ssh/known_hosts.")
    strict_host_keys: bool = Field(default=True, description="Refuse hosts whose key is not known.")
    sudo: bool = False
    sudo_password: Secret | None = None


class Proxy(Section):
    """An HTTP proxy that asks for credentials."""

    url: Url
    user: str | None = None
    password: Secret | None = None


class Source(Section):
    """A mirror of a vendor's package source, and the key that signs it."""

    url: Url = Field(description="What precedes <distro>/<arch>/ (cuda), or the vendor's equivalent.")
    key: str | None = Field(default=None, description="Public key file; relative to this file.")
    fingerprint: Fingerprint | None = None

    @model_validator(mode="after")
    def _key_with_fingerprint(self) -> Source:
        if self.key is not None and self.fingerprint is None:
            raise _fail(
                "a key file without the fingerprint that it must have",
                "add `fingerprint:` (gpg --show-keys FILE)",
            )
        return self


class Sources(Section):
    """Where packages come from; by default the vendors' own."""

    proxy: Url | Proxy | None = None
    cuda: Source | None = None
    container_toolkit: Source | None = None
    docker: Source | None = None
    python: Source | None = None


class GpuSettings(Section):
    """What a reboot forgets of GPUs, put back at each boot; what is absent is let be."""

    power_limit_w: int | None = Field(default=None, ge=50, le=2000, description="For each GPU.")
    graphics_clocks_mhz: list[int] | None = Field(default=None, min_length=2, max_length=2, description="[min, max]")
    ecc: bool | None = Field(default=None, description="Takes effect with the next reboot.")
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = None
    mig: list[str] | None = Field(
        default=None, description="Profiles on each GPU, such as [3g.40gb, 3g.40gb]; [] turns MIG off."
    )

    @field_validator("mig")
    @classmethod
    def _mig_profiles(cls, value: list[str] | None) -> list[str] | None:
        for profile in value or ():
            if not re.fullmatch(r"[1-8]g\.[0-9]+gb(\+me|\+gfx)?", profile, flags=re.ASCII):
                raise _fail(f"{profile!r} is no MIG profile", "write one as `nvidia-smi mig -lgip` names it: 3g.40gb")
        return value


class Driver(Section):
    """The NVIDIA driver."""

    branch: int = Field(ge=450, le=9999)
    version: DriverVersion = "latest-in-branch"
    gpu: GpuSettings | None = None
    kernel_module: Literal["auto", "open", "proprietary"] = "auto"
    source: Literal["nvidia", "distribution"] = "nvidia"

    @model_validator(mode="after")
    def _version_of_branch(self) -> Driver:
        if self.version != "latest-in-branch" and not self.version.startswith(f"{self.branch}."):
            raise _fail(
                f"the version {self.version} is not of branch {self.branch}", "let them agree, or leave the version out"
            )
        return self


class Cuda(Section):
    """CUDA toolkits, side by side."""

    versions: list[CudaVersion] = Field(min_length=1)
    default: CudaVersion | None = Field(default=None, description="What /usr/local/cuda and PATH point to.")

    @model_validator(mode="after")
    def _default_is_installed(self) -> Cuda:
        if self.default is not None and self.default not in self.versions:
            raise _fail(
                f"the default {self.default} is not among the versions",
                "add it to versions, or name one of them",
            )
        releases = [".".join(version.split(".")[:2]) for version in self.versions]
        twice = next((release for release in releases if releases.count(release) > 1), None)
        if twice is not None:
            raise _fail(f"CUDA {twice} is named twice", "one patch level of a release can be installed: keep one")
        return self


class Docker(Section):
    """Docker Engine and how containers get GPUs."""

    source: Literal["docker", "distribution"] = "docker"
    gpu: Literal["cdi", "runtime", "both"] = "cdi"
    default_runtime: Literal["nvidia", "runc"] | None = None


class Fabric(Section):
    """A network between the nodes, by its subnet: never by an interface's name."""

    subnet: Subnet


class Nccl(Section):
    """NCCL's settings; the interface is found on each node by the subnet."""

    fabric: Fabric | list[Fabric]
    env: dict[str, EnvironmentValue] = {}


class Disks(Section):
    """Which disks: by model, or by serial."""

    model: str | None = None
    serials: list[str] | None = None
    blank: bool = True


class Scratch(Section):
    """Scratch space on local NVMe disks. RAID 0 has no redundancy."""

    level: Literal["raid0", "raid1", "raid10"] = "raid0"
    disks: Disks
    filesystem: Literal["xfs", "ext4"] = "xfs"
    mount: AbsolutePath = "/scratch"


class Gluster(Section):
    """A GlusterFS volume and where it is mounted."""

    volume: str
    servers: list[str] = Field(min_length=1)
    mount: AbsolutePath
    read_only: bool = True


class Datasets(Section):
    """Where datasets come from."""

    gluster: Gluster | None = None


class Health(Section):
    """Thresholds that start maintenance."""

    gpu_temperature_c: int = Field(default=85, ge=30, le=120)
    idle_utilization_pct: int = Field(default=20, ge=0, le=100)


class Bmc(Section):
    """The node's management controller. `{name}` is the host's whole name, `{short}` its first label."""

    address: str
    user: str = "ADMIN"
    password: Secret | None = None


class Profile(Section):
    """What nodes are to be. An absent section is unmanaged: nothing of it is touched."""

    tier: Literal["entry", "professional", "enterprise"] | None = None
    driver: Driver | None = None
    cuda: Cuda | None = None
    docker: Docker | None = None
    nccl: Nccl | None = None
    scratch: Scratch | None = None
    datasets: Datasets | None = None
    health: Health | None = None


class NodeSettings(Profile):
    """A node, or a range of them: a profile, and what differs from it."""

    profile: str | None = None
    address: str | None = Field(default=None, description="Where ssh connects; by default the host's name.")
    bmc: Bmc | None = None


class Rollout(Section):
    """How a change goes over many nodes, and what it may disturb."""

    canary: int = Field(default=1, ge=0)
    batch: Batch = "10%"
    max_unavailable: int = Field(default=1, ge=1)
    allow_reboot: bool = False
    reboot_timeout_s: int = Field(default=1800, ge=30, le=14400, description="HGX machines take up to half an hour.")
    allow_restart: bool = False
    allow_disruption: list[str] = []


class Settings(Section):
    """The file as it is written; the JSON Schema for editors is made from this."""

    cluster: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="The cluster's name.")
    ssh: Ssh = Ssh()
    sources: Sources = Sources()
    profiles: dict[str, Profile] = {}
    nodes: dict[str, NodeSettings]
    rollout: Rollout = Rollout()


class Node(Profile):
    """One host with all that applies to it: profile, range and its own settings merged."""

    name: str
    address: str
    profile: str
    bmc: Bmc | None = None

    @model_validator(mode="after")
    def _driver_runs_cuda(self) -> Node:
        if self.driver is not None and self.cuda is not None:
            for version in self.cuda.versions:
                floor = sources.CUDA_DRIVER_FLOOR.get(int(version.split(".")[0]))
                if floor is not None and self.driver.branch < floor:
                    raise _fail(
                        f"CUDA {version} does not run on a driver of branch {self.driver.branch}",
                        f"take a branch of {floor} or newer",
                    )
        return self


class Cluster(Section):
    """All settings, merged and valid: what inventories and commands work with."""

    name: str
    ssh: Ssh
    sources: Sources
    nodes: tuple[Node, ...]
    rollout: Rollout
    folder: Path
    """The folder of the file: relative paths start there."""
    warnings: tuple[str, ...] = ()

    def path(self, name: str) -> Path:
        """Return a path of the settings as an absolute one."""
        return self.folder / Path(name).expanduser()


def load(path: Path | str) -> Cluster:
    """Read and validate a cluster.yaml; raises `UsageMistake` with every mistake in it."""
    from rackwright.settings.merge import merged

    return merged(Path(path))


def resolve_secret(reference: str, folder: Path | None = None) -> str:
    """Return the secret behind `env:NAME` or `file:PATH`; raises `UsageMistake` when it is not there."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise UsageMistake(Problem(f"the environment variable {name} is not set", reference, f"export {name}=..."))
        return os.environ[name]
    path = (folder or Path.cwd()) / Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageMistake(
            Problem(f"the secret cannot be read: {said}", reference, "put it there, mode 0600")
        ) from None


def schema() -> dict[str, Any]:
    """Return the JSON Schema of cluster.yaml, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}


def plain(section: Section | None) -> Mapping[str, Any] | None:
    """Return a section as plain JSON values, as host data holds it."""
    return section.model_dump(mode="json") if section is not None else None
