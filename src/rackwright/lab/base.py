"""The one base tree of all lab hosts: Debian with systemd, sshd and sudo, built once by debootstrap and cached.

`ubuntu-22.04` is this tree with Ubuntu's os-release: it rehearses the Ubuntu path, and its packages are stand-ins.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rackwright.errors import HostFailure, Problem, UsageMistake
from rackwright.lab.authority import authority
from rackwright.lab.cgroup import Cgroup
from rackwright.lab.debian import DebianCache, apt_proxies, debian_mirror
from rackwright.lab.network import CONTROLLER
from rackwright.lab.relay import Relay, listen, server
from rackwright.lab.service import Service
from rackwright.lab.system import DEBIAN_KEYRING, require, wait
from rackwright_facts._parse import apt_sources

SUITE = "bookworm"
SUDO_PASSWORD = "p@ss; word$1"  # noqa: S105 -- of hosts that nobody can reach
"""The password of the lab's user `ubuntu`, which sudo asks for: with characters that break careless quoting."""

_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "python3", "gnupg", "wget", "ca-certificates",
    "iproute2", "procps", "iputils-ping", "kmod", "less", "unattended-upgrades", "needrestart", "initramfs-tools",
    "pciutils",
)  # fmt: skip
_SETUP = f"""set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
useradd -m -s /bin/bash ubuntu; useradd -m -s /bin/bash rack
printf '%s' 'ubuntu:{SUDO_PASSWORD}' | chpasswd
echo 'ubuntu ALL=(ALL:ALL) ALL' >/etc/sudoers.d/ubuntu; echo 'rack ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/rack
chmod 0440 /etc/sudoers.d/ubuntu /etc/sudoers.d/rack
rm -f /etc/ssh/ssh_host_* /etc/resolv.conf /etc/machine-id; : >/etc/machine-id
printf '%s\\n' 'UseDNS no' 'MaxStartups 200:30:400' 'PermitRootLogin prohibit-password' 'PasswordAuthentication no' \\
  'HostKey /etc/ssh/ssh_host_ed25519_key' >/etc/ssh/sshd_config.d/lab.conf
# Tests start these themselves; on their own they would come in the middle of a measurement.
systemctl mask -q apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer systemd-networkd.service \\
  systemd-resolved.service systemd-timesyncd.service getty@.service console-getty.service
update-ca-certificates >/dev/null
apt-get update -qq
apt-get clean
"""
_NEEDED_MIB = 2500
_BUILD_S = 1800
_KEPT_S = 7 * 24 * 3600
_FLAVOURS = {
    "ubuntu-22.04": ("Ubuntu", "ubuntu", "22.04", "jammy", "Ubuntu 22.04.5 LTS"),
    "ubuntu-24.04": ("Ubuntu", "ubuntu", "24.04", "noble", "Ubuntu 24.04.3 LTS"),
    "debian-12": ("Debian GNU/Linux", "debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)"),
}
FLAVOURS = tuple(_FLAVOURS)


def tree_path(cache: Path) -> Path:
    """Return where the base tree of this recipe is, or will be."""
    recipe = repr((SUITE, _PACKAGES, _SETUP, debian_mirror())).encode() + authority(cache).read_bytes()
    return cache / f"base-{hashlib.sha256(recipe).hexdigest()[:16]}"


def base_tree(cache: Path, say: Callable[[str], None] = lambda text: None) -> Path:
    """Return the base tree, built into `cache` unless it is there: a minute, once. Builders wait for one another."""
    cache.mkdir(parents=True, exist_ok=True)
    done = tree_path(cache)
    with (cache / "base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            require(free_mib=_NEEDED_MIB, folder=cache)
            # Of a builder that was killed its debootstrap may be alive: it is ended before its tree is removed.
            say("building the base tree of all lab hosts: about a minute, once")
            service = builder(cache)
            service.stop()
            tidy(cache)
            unfinished = Path(tempfile.mkdtemp(dir=cache, prefix="base-new-"))
            try:
                unfinished.chmod(0o755)
                _build(unfinished, cache, service)
                unfinished.rename(done)
            finally:
                service.stop()
                shutil.rmtree(unfinished, ignore_errors=True)
        os.utime(done)
    return done


def clear_unfinished(cache: Path) -> None:
    """End the build of an `up` that was killed, and remove what there is of it; one that is going on stays."""
    if not cache.exists():
        return
    with (cache / "base.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        builder(cache).stop()
        tidy(cache)


def keep_for(tree: Path, user: Path) -> None:
    """Record that a lab's folder uses the tree: it stays as long as that folder."""
    users = tree.with_name(f"{tree.name}.users")
    users.mkdir(exist_ok=True)
    link = users / hashlib.sha256(str(user).encode()).hexdigest()[:16]
    if not link.is_symlink():
        link.symlink_to(user)


def builder(cache: Path) -> Service:
    """Return what builds trees and layers in this cache: one at a time, under the lock of the cache."""
    group = hashlib.sha256(str(cache.resolve()).encode()).hexdigest()[:12]
    return Service(cache, "base-builder", Cgroup(f"rackwright-build-{group}"))


def tidy(cache: Path) -> None:
    """Remove half-built trees and layers, and those that no lab has used for a week. The caller holds the lock."""
    for tree in (*cache.glob("base-*"), *cache.glob("layer-*")):
        if not tree.is_dir() or tree.suffix == ".users":
            continue
        users = tree.with_name(f"{tree.name}.users")
        used = users.is_dir() and any(link.exists() for link in users.iterdir())
        if "-new-" in tree.name or (not used and tree.stat().st_mtime < time.time() - _KEPT_S):
            shutil.rmtree(tree)
            shutil.rmtree(users, ignore_errors=True)


@contextmanager
def _mirror_on_loopback(cache: Path) -> Iterator[str]:
    """The relay, on this machine's loopback: what is fetched for the tree is in the cache of all labs."""
    debian = DebianCache(cache / "debian", debian_mirror(), apt_proxies())
    relay = Relay(None, debian, ("127.0.0.1",), cache / "base-build-access.log")
    one = server(relay, listen("127.0.0.1", 0), "plain")
    threading.Thread(target=one.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{one.server_port}/debian"
    finally:
        one.shutdown()
        one.server_close()


def _build(tree: Path, cache: Path, service: Service) -> None:
    with _mirror_on_loopback(cache) as mirror:
        bootstrap = ["debootstrap", "--variant=minbase", f"--keyring={DEBIAN_KEYRING}", "--force-check-gpg"]
        step(service, [*bootstrap, f"--include={','.join(_PACKAGES)}", SUITE, str(tree), mirror])
        (tree / "etc/apt/sources.list").write_text(f"deb {mirror} {SUITE} main\n")
        trusted = tree / "usr/local/share/ca-certificates/rackwright-lab.crt"
        trusted.write_bytes(authority(cache).read_bytes())
        step(service, ["chroot", str(tree), "bash", "-c", _SETUP])
    # From here on the lab's relay is the mirror: the lists that were fetched stay good under its name.
    (tree / "etc/apt/sources.list").write_text(f"deb http://{CONTROLLER}/debian {SUITE} main\n")
    before, after = apt_sources.list_prefix(mirror), apt_sources.list_prefix(f"http://{CONTROLLER}/debian")
    for file in (tree / "var/lib/apt/lists").glob(f"{before}*"):
        file.rename(file.with_name(after + file.name.removeprefix(before)))


def step(service: Service, argv: list[str]) -> None:
    """Run one step to its end, with its own mounts: debootstrap leaves /proc mounted when it is killed."""
    service.log.unlink(missing_ok=True)
    done = service.log.with_name("base-service.done")
    done.unlink(missing_ok=True)
    within = ["unshare", "-m", "/bin/sh", "-c", 'd=$1; shift; "$@" && : >"$d"', "sh", str(done)]
    service.start([*within, *argv])
    wait(lambda: service.process() is None, _BUILD_S, 0.2)
    if not done.exists():
        fix = f"see {service.log}, and whether this machine reaches {debian_mirror()}"
        raise HostFailure(Problem(f"the lab's base tree: {service.last_words()}", argv[0], fix))
    done.unlink()


def os_release(name: str) -> str:
    """Return the os-release of a flavour, which says that this is a rehearsal."""
    if name not in _FLAVOURS:
        raise UsageMistake(Problem(f"there is no lab system {name!r}", "--os", f"one of: {', '.join(FLAVOURS)}"))
    title, identity, version, codename, pretty = _FLAVOURS[name]
    like = f"ID_LIKE=debian\nUBUNTU_CODENAME={codename}\n" if identity == "ubuntu" else ""
    return (
        f'PRETTY_NAME="{pretty} (rackwright lab)"\nNAME="{title}"\nID={identity}\n{like}VERSION_ID="{version}"\n'
        f'VERSION_CODENAME={codename}\nVARIANT="rackwright rehearsal lab"\nVARIANT_ID=rackwright-lab\n'
    )
