"""What a lab writes for its hosts and for pyinfra: /etc/hosts, known_hosts and the cluster.yaml of exactly this lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rackwright.lab.mirror import NVIDIA_HOST, Mirror
from rackwright.lab.network import CONTROLLER, fabric, management


@dataclass(frozen=True)
class HostSpec:
    """A host as it is wanted."""

    name: str
    os: str = "ubuntu-22.04"


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
    nodes = "".join(
        f"  {host}: {{profile: rehearsal, address: {management(index)}}}\n" for host, (index, _) in state.items()
    )
    return (
        f"# The rehearsal lab {name!r}: written by `rackwright lab up`.\n"
        f"cluster: {name}\n"
        f"ssh: {{user: root, key: {key}, known_hosts: {known}}}\n"
        "sources:        # the vendor's own address, which the lab serves, and the lab's key in the vendor's place\n"
        f"  cuda: {{url: 'https://{NVIDIA_HOST}/compute/cuda/repos', key: {vendors.key},\n"
        f"         fingerprint: {vendors.fingerprint}}}\n"
        "profiles:\n"
        '  rehearsal: {cuda: {versions: ["12.2"], default: "12.2"}}\n'
        f"nodes:\n{nodes}"
    )
