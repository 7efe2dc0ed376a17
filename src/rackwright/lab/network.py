"""A lab's two networks: bridges in a namespace of their own, with no route to this machine or anywhere.

Every step may be repeated, so that what was killed half-way can be finished. All veth pairs are born inside the lab's
namespaces: nothing ever appears among this machine's own links.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rackwright.lab.system import run

MANAGEMENT, FABRIC = "10.77.0", "10.78.0"
"""Networks of every lab, 24 bits each: no lab is reachable from outside, so all may use the same."""
CONTROLLER = f"{MANAGEMENT}.1"
_NETNS = Path("/run/netns")
_NETWORKS = (("mgmt", MANAGEMENT, "4d"), ("fabric", FABRIC, "4e"))


def management(index: int) -> str:
    """Return the management address of the host with this index, counted from 1."""
    return f"{MANAGEMENT}.{index + 10}"


def fabric(index: int) -> str:
    """Return the fabric address of the host with this index, counted from 1."""
    return f"{FABRIC}.{index + 10}"


@dataclass(frozen=True)
class Switch:
    """The networks of one lab. A host's namespace is named SWITCH.HOST: a lab's name has no dot."""

    name: str

    def exists(self) -> bool:
        """Return whether the switch can be entered."""
        return _sound(self.name)

    def host(self, name: str) -> str:
        """Return the name of a host's namespace."""
        return f"{self.name}.{name}"

    def build(self) -> None:
        """Make the bridges, or what is missing of them."""
        _make(self.name)
        there = self._links()
        commands = ["link set lo up"]
        for bridge, net, mac in _NETWORKS:
            # The address is pinned: a bridge otherwise takes that of its lowest port, and neighbours' caches go stale.
            if bridge not in there:
                commands.append(f"link add {bridge} address 02:00:0a:{mac}:00:01 type bridge")
            commands += [f"addr replace {net}.1/24 dev {bridge}", f"link set {bridge} up"]
        _batch(self.name, commands)

    def plug(self, index: int, host: str) -> None:
        """Give a host that is off its namespace, with a cable to each network."""
        namespace = self.host(host)
        self._unplug(index, host)
        _make(namespace)
        inside, outside = ["link set lo up"], []
        for bridge, net, mac in _NETWORKS:
            port = f"{bridge[0]}{index}"
            # The host's address is pinned too: it is the same machine after a crash.
            run("ip", "link", "add", "name", port, "netns", self.name, "type", "veth", "peer", "name", f"{bridge}0",
                "address", f"02:00:0a:{mac}:00:{index + 10:02x}", "netns", namespace)  # fmt: skip
            outside.append(f"link set {port} master {bridge} up")
            inside += [f"addr add {net}.{index + 10}/24 dev {bridge}0", f"link set {bridge}0 up"]
        _batch(self.name, outside)
        _batch(namespace, inside)

    def _unplug(self, index: int, host: str) -> None:
        ports = {f"{bridge[0]}{index}" for bridge, _, _ in _NETWORKS} & self._links()
        if ports:  # a namespace goes later than its name, and keeps its cables until then
            _batch(self.name, [f"link del {port}" for port in sorted(ports)])
        if (_NETNS / self.host(host)).exists():
            run("ip", "netns", "del", self.host(host))

    def cable(self, index: int, *, whole: bool) -> None:
        """Cut both cables of a host, or mend them."""
        state = "up" if whole else "down"
        _batch(self.name, [f"link set {bridge[0]}{index} {state}" for bridge, _, _ in _NETWORKS])

    def remove(self) -> None:
        """Remove every namespace of the lab, and all links with them."""
        for name in self.namespaces():
            run("ip", "netns", "del", name)

    def namespaces(self) -> list[str]:
        """Return the names of all its namespaces, whole or half made; the switch comes last."""
        names = [path.name for path in _NETNS.iterdir()] if _NETNS.exists() else []
        hosts = sorted(name for name in names if name.startswith(f"{self.name}."))
        return hosts + [name for name in names if name == self.name]

    def _links(self) -> set[str]:
        return {link["ifname"] for link in json.loads(run("ip", "-n", self.name, "-j", "link").stdout)}


def _sound(namespace: str) -> bool:
    # `ip netns add` makes a file and mounts the namespace over it: killed in between, it leaves the file alone.
    try:
        return (_NETNS / namespace).stat().st_dev == Path("/proc/self/ns/net").stat().st_dev
    except FileNotFoundError:
        return False


def _make(namespace: str) -> None:
    if _sound(namespace):
        return
    if (_NETNS / namespace).exists():
        run("ip", "netns", "del", namespace)
    run("ip", "netns", "add", namespace)


def _batch(namespace: str, commands: list[str]) -> None:
    run("ip", "-n", namespace, "-batch", "-", stdin="\n".join(commands) + "\n")
