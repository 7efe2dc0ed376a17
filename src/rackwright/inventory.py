"""`Cluster` -> pyinfra groups and host data: plain values only, and never a secret."""

from __future__ import annotations

from typing import Any

from rackwright import sources
from rackwright.config import Cluster, Node, Proxy, Source, plain
from rackwright.settings import hosts

Groups = dict[str, list[tuple[str, dict[str, Any]]]]

_SECTIONS = ("driver", "cuda", "docker", "nccl", "scratch", "datasets", "health", "bmc")


def pyinfra_groups(cluster: Cluster) -> Groups:
    """Return profile -> [(host, data)], as pyinfra takes groups from the names of an inventory file."""
    connection = _connection(cluster)
    groups: Groups = {}
    for node in cluster.nodes:
        data = {**connection, "ssh_hostname": node.address, **_managed(cluster, node)}
        groups.setdefault(group_name(node.profile), []).append((node.name, data))
    return groups


def group_name(profile: str) -> str:
    """Return the profile's name as a Python name, which pyinfra's group has to be."""
    name = "".join(char if char.isalnum() else "_" for char in profile)
    return name if name[:1].isalpha() else f"profile_{name}"


def _connection(cluster: Cluster) -> dict[str, Any]:
    ssh = cluster.ssh
    data: dict[str, Any] = {
        "ssh_user": ssh.user,
        "ssh_port": ssh.port,
        "ssh_strict_host_key_checking": "yes" if ssh.strict_host_keys else "accept-new",
    }
    if ssh.key is not None:
        data["ssh_key"] = str(cluster.path(ssh.key))
    if ssh.known_hosts is not None:
        data["ssh_known_hosts_file"] = str(cluster.path(ssh.known_hosts))
    if ssh.sudo and ssh.user != "root":
        data["_sudo"] = True
        if ssh.sudo_password is not None:
            data["rackwright_sudo_password"] = _reference(cluster, ssh.sudo_password)
    return data


def _reference(cluster: Cluster, reference: str) -> str:
    """Return a reference that holds from any working directory."""
    kind, _, name = reference.partition(":")
    return f"file:{cluster.path(name)}" if kind == "file" else reference


def _managed(cluster: Cluster, node: Node) -> dict[str, Any]:
    data: dict[str, Any] = {name: plain(getattr(node, name)) for name in _SECTIONS}
    data["tier"] = node.tier
    data["cuda_source"] = cuda_source(cluster)
    rollout = cluster.rollout
    data["rollout"] = {
        "allow_reboot": rollout.allow_reboot,
        "allow_disruption": any(node.name in hosts.expand(pattern) for pattern in rollout.allow_disruption),
        "max_unavailable": rollout.max_unavailable,
        "reboot_timeout_s": rollout.reboot_timeout_s,
    }
    return data


def cuda_source(cluster: Cluster) -> sources.CudaSource:
    """Return where the CUDA repository is had from: the vendor's own, or the mirror that the settings name."""
    declared: Source | None = cluster.sources.cuda
    return {
        "url": declared.url if declared else sources.CUDA_URL,
        "key": str(cluster.path(declared.key)) if declared and declared.key else None,
        "fingerprint": (declared.fingerprint if declared else None) or sources.CUDA_KEY,
        "proxy": _proxy(cluster),
    }


def _proxy(cluster: Cluster) -> sources.Proxy | None:
    proxy = cluster.sources.proxy
    if proxy is None:
        return None
    if not isinstance(proxy, Proxy):
        return {"url": proxy, "user": None, "password": None}
    password = _reference(cluster, proxy.password) if proxy.password else None
    return {"url": proxy.url, "user": proxy.user, "password": password}
