"""The one base tree of all lab hosts: Debian with systemd, sshd and sudo, built once by debootstrap and cached.

`ubuntu-22.04` is this tree with Ubuntu's os-release: it rehearses the Ubuntu path, and its packages are stand-ins.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from rackwright.errors import HostFailure, Problem
from rackwright.lab.system import run
from rackwright_facts._parse import apt_sources

SUITE = "bookworm"
MIRROR_VARIABLE = "RACKWRIGHT_DEBIAN_MIRROR"
SUDO_PASSWORD = "p@ss; word$1"
"""The password of the lab's user `ubuntu`, which sudo asks for: with characters that break careless quoting."""
CONTROLLER = "10.77.0.1"

_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "python3", "gnupg", "wget", "ca-certificates",
    "iproute2", "procps", "iputils-ping", "kmod", "less", "unattended-upgrades", "needrestart",
)  # fmt: skip
_SETUP = f"""set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
useradd -m -s /bin/bash ubuntu; useradd -m -s /bin/bash rack
printf '%s' 'ubuntu:{SUDO_PASSWORD}' | chpasswd
echo 'ubuntu ALL=(ALL:ALL) ALL' >/etc/sudoers.d/ubuntu; echo 'rack ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/rack
chmod 0440 /etc/sudoers.d/ubuntu /etc/sudoers.d/rack
rm -f /etc/ssh/ssh_host_* /etc/machine-id; : >/etc/machine-id
printf '%s\\n' 'UseDNS no' 'MaxStartups 200:30:400' 'PermitRootLogin prohibit-password' 'PasswordAuthentication no' \\
  >/etc/ssh/sshd_config.d/lab.conf
# Tests start these themselves; on their own they would come in the middle of a measurement.
systemctl mask -q apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer systemd-networkd.service \\
  systemd-resolved.service systemd-timesyncd.service getty@.service console-getty.service
apt-get update -qq
apt-get clean
"""
_NEEDED_MIB = 2500


def debian_mirror(etc: Path = Path("/etc/apt")) -> str:
    """Return the Debian mirror that this machine's apt uses, or the one that `$RACKWRIGHT_DEBIAN_MIRROR` names."""
    named = os.environ.get(MIRROR_VARIABLE)
    if named:
        return named.rstrip("/")
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    for path in files:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        for entry in apt_sources.parse(str(path), path.read_bytes()).entries:
            for uri in entry.uris:
                if _is_debian(uri, entry):
                    return uri.rstrip("/")
    raise HostFailure(
        Problem(
            "no Debian mirror is known for the lab's base tree",
            f"{etc}: no enabled entry for Debian",
            f"export {MIRROR_VARIABLE}=http://MIRROR/debian",
        )
    )


def _is_debian(uri: str, entry: apt_sources.Entry) -> bool:
    return (
        entry.enabled
        and "deb" in entry.types
        and "main" in entry.components
        and uri.startswith(("http://", "https://"))
        and urlsplit(uri).path.rstrip("/").endswith("/debian")
    )


def _identity(mirror: str) -> str:
    recipe = repr((SUITE, _PACKAGES, _SETUP, CONTROLLER, mirror))
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def base_tree(cache: Path) -> Path:
    """Return the base tree, built into `cache` unless it is there: about a minute, once."""
    mirror = debian_mirror()
    cache.mkdir(parents=True, exist_ok=True)
    done = cache / f"base-{_identity(mirror)}"
    if done.exists():
        return done
    with (cache / "base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return done
        _remove(cache.glob("base-new-*"))
        free = shutil.disk_usage(cache).free >> 20
        if free < _NEEDED_MIB:
            raise HostFailure(
                Problem(f"{free} MiB are free and {_NEEDED_MIB} are needed", str(cache), "make room there")
            )
        unfinished = Path(tempfile.mkdtemp(dir=cache, prefix="base-new-"))
        unfinished.chmod(0o755)
        _bootstrap(unfinished, mirror)
        unfinished.rename(done)
        # An older tree may be in use by a lab that is up: it goes when nothing is mounted over it.
        mounts = Path("/proc/mounts").read_text()
        _remove(old for old in cache.glob("base-*") if old.is_dir() and old != done and str(old) not in mounts)
    return done


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and "base-" in folder.name:
            shutil.rmtree(folder)


def _bootstrap(tree: Path, mirror: str) -> None:
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", SUITE, str(tree), mirror],
        capture_output=True, text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("E:", "W:"))]
        fix = "see whether this machine reaches the mirror, and has debian-archive-keyring"
        raise HostFailure(Problem("debootstrap failed", said[-1] if said else done.stderr[-300:], fix))
    (tree / "etc/apt/sources.list").write_text(f"deb {mirror} {SUITE} main\n")
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
    hosts = (tree / "etc/hosts").read_bytes() if (tree / "etc/hosts").exists() else None
    shutil.copy("/etc/hosts", tree / "etc/hosts")
    run("chroot", str(tree), "bash", "-c", _SETUP, timeout=300)
    (tree / "etc/resolv.conf").unlink()
    if hosts is not None:
        (tree / "etc/hosts").write_bytes(hosts)
    # From here on the lab's relay is the mirror: the lists that were fetched stay good under its name.
    (tree / "etc/apt/sources.list").write_text(f"deb http://{CONTROLLER}/debian {SUITE} main\n")
    prefix = apt_sources.list_prefix(mirror)
    for file in (tree / "var/lib/apt/lists").iterdir():
        if file.name.startswith(prefix):
            file.rename(
                file.with_name(apt_sources.list_prefix(f"http://{CONTROLLER}/debian") + file.name[len(prefix) :])
            )


def os_release(name: str) -> str:
    """Return the os-release of a flavour, which says that this is a rehearsal."""
    flavours = {
        "ubuntu-22.04": ("Ubuntu", "ubuntu", "22.04", "jammy", "Ubuntu 22.04.5 LTS"),
        "ubuntu-24.04": ("Ubuntu", "ubuntu", "24.04", "noble", "Ubuntu 24.04.3 LTS"),
        "debian-12": ("Debian GNU/Linux", "debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)"),
    }
    if name not in flavours:
        raise HostFailure(Problem(f"there is no lab system {name!r}", "--os", f"one of: {', '.join(flavours)}"))
    title, identity, version, codename, pretty = flavours[name]
    like = f"ID_LIKE=debian\nUBUNTU_CODENAME={codename}\n" if identity == "ubuntu" else ""
    return (
        f'PRETTY_NAME="{pretty} (rackwright lab)"\nNAME="{title}"\nID={identity}\n{like}VERSION_ID="{version}"\n'
        f'VERSION_CODENAME={codename}\nVARIANT="rackwright rehearsal lab"\nVARIANT_ID=rackwright-lab\n'
    )


FLAVOURS = ("ubuntu-22.04", "ubuntu-24.04", "debian-12")
