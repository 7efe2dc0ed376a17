"""What makes the base tree one system: its kernel, its archive of kernels and compilers, the devices' stand-ins.

A layer is an overlay's upper folder, built once for each system and cached; a host's own disk lies over it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rackwright.lab import devices, recipes_kernel
from rackwright.lab.base import builder, os_release, step, tidy
from rackwright.lab.mirror import ARCHIVE_HOST, Mirror
from rackwright.lab.recipes_driver import DEVICES
from rackwright_facts._parse import apt_sources

# Tool of the lab's devices -> where a host finds it. Those under /usr/local win over the real ones.
_TOOLS = {
    **{tool: f"{DEVICES}/{tool}" for tool in ("boot", "fault", "nvidia-smi", "nv-fabricmanager", "dkms")},
    **{tool: f"/usr/local/sbin/{tool}" for tool in ("modprobe", "rmmod")},
    **{tool: f"/usr/local/bin/{tool}" for tool in ("mokutil", "uname")},
}
_RUN = f"""# A stand-in of the rehearsal lab: answers by /var/lib/rackwright-lab/hardware.json.
exec /usr/bin/python3 -I -c '
import sys; sys.path.insert(0, "{DEVICES}"); from devices.main import main; main("@TOOL@")' "$@"
"""
_SHELL = "#!/bin/sh\n"
# `uname -r` is asked by the hundred (initramfs-tools): it is answered without starting Python.
_UNAME = """#!/bin/sh
[ "$*" = -r ] && [ -r /run/rackwright-lab/release ] && exec cat /run/rackwright-lab/release
"""
# kmod's own, asked for the kernel that the host seems to run.
_MODINFO = """#!/bin/sh
case " $* " in *" -k "*|*" --set-version"*) exec /usr/sbin/modinfo "$@" ;; esac
exec /usr/sbin/modinfo -k "$(uname -r)" "$@"
"""
# What the kernel shows of devices. A kernel that was built without one of these folders cannot show them.
_MOUNTS = {
    "pci": "/sys/bus/pci/devices",
    "sys-module": "/sys/module",
    "firmware": "/sys/firmware",
    "proc-driver": "/proc/driver",
}
# Where nspawn leaves a folder of /sys out, it has put a tmpfs there, which is read-only by now.
_SHOW = f"""#!/bin/sh
mount -o remount,rw /sys 2>/dev/null
while read -r name at; do
  mkdir -p "$at" 2>/dev/null; mount --bind "/run/rackwright-lab/$name" "$at"
done <<'END'
{chr(10).join(f"{name} {at}" for name, at in _MOUNTS.items())}
END
mount -o remount,ro /sys
"""
_UNIT = f"""[Unit]
Description=Devices of the rehearsal lab
DefaultDependencies=no
Before=sysinit.target systemd-modules-load.service systemd-udevd.service
ConditionPathExists=/var/lib/rackwright-lab/hardware.json

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={DEVICES}/boot
ExecStart={DEVICES}/show
"""
_SCRIPT = """set -e
root=$1 lower=$2 new=$3 archive=$4 uri=$5; shift 5
mkdir -p "$new/work" "$root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$new/upper,workdir=$new/work" "$root"
mkdir -p "$root/run/archive"
mount -t tmpfs tmpfs "$root/run"
mkdir "$root/run/archive"
mount --bind "$archive" "$root/run/archive"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
list=$root/etc/apt/sources.list.d/lab-archive.list
entry='deb [signed-by=/etc/apt/keyrings/lab-archive.asc]'
echo "$entry file:/run/archive /" >"$list"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
chroot "$root" python3 -m compileall -q @DEVICES@
chroot "$root" apt-get -qq update -o Dir::Etc::SourceList=/etc/apt/sources.list.d/lab-archive.list \\
  -o Dir::Etc::SourceParts=/dev/null -o APT::Get::List-Cleanup=0
chroot "$root" apt-get -qq -y --no-install-recommends install "$@"
chroot "$root" apt-get clean
echo "$entry $uri /" >"$list"
"""


def layer(cache: Path, flavour: str, tree: Path, vendors: Mirror) -> Path:
    """Return the layer of one system over the base tree, built into `cache` unless it is there."""
    archive = vendors.www / ARCHIVE_HOST / flavour
    recipe = hashlib.sha256(
        repr((tree.name, flavour, _UNAME, _MODINFO, _RUN, _SHOW, _TOOLS, _UNIT, _SCRIPT, os_release(flavour))).encode()
    )
    for content in (archive / "Packages", *_sources()):
        recipe.update(content.read_bytes())
    done = cache / f"layer-{flavour}-{recipe.hexdigest()[:16]}"
    with (cache / "base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            tidy(cache)
            unfinished = Path(tempfile.mkdtemp(dir=cache, prefix="layer-new-"))
            try:
                unfinished.chmod(0o755)
                _build(unfinished, flavour, tree, archive, vendors.key)
                (unfinished / "upper").rename(done)
            finally:
                builder(cache).stop()
                shutil.rmtree(unfinished, ignore_errors=True)
        os.utime(done)
    return done


def _sources() -> Iterator[Path]:
    yield from sorted(Path(str(devices.__file__)).parent.glob("*.py"))


def _build(new: Path, flavour: str, tree: Path, archive: Path, key: Path) -> None:
    upper = new / "upper"
    files: dict[str, tuple[str, int]] = {
        at: ((_UNAME if tool == "uname" else _SHELL) + _RUN.replace("@TOOL@", tool), 0o755)
        for tool, at in _TOOLS.items()
    }
    files |= {f"{DEVICES}/devices/{path.name}": (path.read_text(), 0o644) for path in _sources()}
    files["/usr/local/sbin/modinfo"] = (_MODINFO, 0o755)
    files[f"{DEVICES}/show"] = (_SHOW, 0o755)
    files["/usr/lib/systemd/system/rackwright-lab.service"] = (_UNIT, 0o644)
    files["/etc/apt/keyrings/lab-archive.asc"] = (key.read_text(), 0o644)
    files["/etc/os-release"] = (os_release(flavour), 0o644)
    files["/etc/apt/sources.list.d/lab-archive.list"] = ("", 0o644)
    for name, (text, mode) in files.items():
        _put(upper / name.lstrip("/"), text, mode)
    wants = upper / "usr/lib/systemd/system/sysinit.target.wants"
    wants.mkdir(parents=True)
    (wants / "rackwright-lab.service").symlink_to("../rackwright-lab.service")
    for folder in (path for path in (upper, *upper.rglob("*")) if path.is_dir()):
        folder.chmod(0o755)
    uri = f"http://{ARCHIVE_HOST}/{flavour}/"
    script = _SCRIPT.replace("@DEVICES@", f"{DEVICES}/devices")
    argv = ["bash", "-c", script, "layer", str(new / "root"), str(tree), str(new), str(archive), uri]
    step(builder(new.parent), [*argv, *recipes_kernel.installed(flavour)])
    lists = upper / "var/lib/apt/lists"
    before, after = apt_sources.list_prefix("file:///run/archive"), apt_sources.list_prefix(uri)
    for file in lists.glob(f"{before}*"):
        file.rename(file.with_name(after + file.name.removeprefix(before)))


def _put(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
