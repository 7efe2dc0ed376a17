"""What a lab writes for its hosts and for pyinfra: /etc/hosts, known_hosts and the cluster.yaml of exactly this lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rackwright.lab.devices import catalogue
from rackwright.lab.mirror import NVIDIA_HOST, Mirror
from rackwright.lab.network import CONTROLLER, fabric, management
from rackwright.lab.recipes_kernel import LINES


@dataclass(frozen=True)
class HostSpec:
    """A host as it is wanted."""

    name: str
    os: str = "ubuntu-22.04"
    gpus: str = "none"
    """Profile of its GPUs: `h100x8` ..."""
    nvswitches: int | None = None
    """NVSwitches; by default what the profile's board has."""
    nics: int | None = None
    """Network adapters of the fabric; by default the profile's."""
    disks: int | None = None
    """NVMe disks; by default the profile's."""
    bmc: bool = True

    def hardware(self) -> dict[str, object]:
        """Return what the host's devices answer by."""
        return catalogue.hardware(
            self.gpus, self.name, nvswitches=self.nvswitches, nics=self.nics, disks=self.disks, bmc=self.bmc,
            kernel=LINES[self.os][0].kernels[0],
        )  # fmt: skip


State = dict[str, tuple[int, HostSpec]]
"""Host name -> its index, from which its addresses follow, and what it is."""


def hosts_file(state: State, vendors: Sequence[str]) -> str:
    """Return /etc/hosts of every host of the lab: the vendors' names mean the relay."""
    lines = ["127.0.0.1 localhost", f"{CONTROLLER} controller {' '.join(vendors)}"]
    lines += [f"{management(index)} {name}" for name, (index, _) in state.items()]
    lines += [f"{fabric(index)} {name}-fabric" for name, (index, _) in state.items()]
    return "\n".join(lines) + "\n"


def known_hosts(state: State, keys: Mapping[str, str]) -> str:
    """Return the hosts' public keys as ssh looks them up, by address and by name."""
    return "".join(f"{management(index)},{name} {keys[name]}\n" for name, (index, _) in state.items())


def cluster_yaml(name: str, state: State, key: Path, known: Path, vendors: Mirror) -> str:
    """Return the lab's settings: the vendor's own address, which the lab serves, and the lab's own key."""
    profiles = sorted({spec.gpus for _, spec in state.values()})
    nodes = "".join(
        f"  {host}: {{profile: {_profile(spec.gpus)}, address: {management(index)}}}\n"
        for host, (index, spec) in state.items()
    )
    bodies = "".join(f"  {_profile(gpus)}: {{{_managed(gpus)}}}\n" for gpus in profiles)
    return (
        f"# The rehearsal lab {name!r}: written by `rackwright lab up`.\n"
        f"cluster: {name}\n"
        f"ssh: {{user: root, key: {key}, known_hosts: {known}}}\n"
        "sources:        # the vendor's own address, which the lab serves, and the lab's key in the vendor's place\n"
        f"  cuda: {{url: 'https://{NVIDIA_HOST}/compute/cuda/repos', key: {vendors.key},\n"
        f"         fingerprint: {vendors.fingerprint}}}\n"
        f"profiles:\n{bodies}"
        f"nodes:\n{nodes}"
    )


def _profile(gpus: str) -> str:
    return "rehearsal" if gpus == "none" else f"rehearsal-{gpus}"


def _managed(gpus: str) -> str:
    cuda = 'cuda: {versions: ["12.2"], default: "12.2"}'
    return cuda if gpus == "none" else f"driver: {{branch: 580}}, {cuda}"
