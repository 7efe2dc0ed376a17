"""What befalls hosts between two runs: each fault strikes a host that has the driver 580.126.16 as declared."""

from __future__ import annotations

import random

from faults import Fault

VERSION = "580.126.16"
_V = f"{VERSION}-0ubuntu1"
_PINS = "/etc/apt/preferences.d/rackwright-driver-versions"
_P = "/etc/apt/preferences.d"
_BLACKLIST = "/etc/modprobe.d/rackwright-nvidia.conf"
_DROP_IN = "/etc/systemd/system/nvidia-persistenced.service.d/rackwright.conf"
_K = "5.15.0-119-generic"
PARTS = (
    "libnvidia-compute-580", "nvidia-utils-580", "nvidia-dkms-580-open", "libnvidia-gl-580", "nvidia-driver-580-open",
    "nvidia-compute-utils-580", "nvidia-fabricmanager", "libnvidia-nscq", "nvidia-firmware-580-580.126.16",
    "nvidia-kernel-source-580-open", "xserver-xorg-video-nvidia-580",
)  # fmt: skip


def _fixed(name: str, script: str, *leaves: str) -> Fault:
    return Fault(name, lambda _: script, leaves)


def _of_a_part(name: str, script: str) -> Fault:
    return Fault(name, lambda rng: script.replace("PART", rng.choice(PARTS)))


_OLDER = " ".join(
    f"{name}=580.95.05-{'1' if name in ('nvidia-fabricmanager', 'libnvidia-nscq') else '0ubuntu1'}"
    for name in ("libnvidia-compute-580", "nvidia-utils-580", "libnvidia-decode-580", "libnvidia-encode-580",
                 "nvidia-compute-utils-580", "nvidia-driver-580-open", "nvidia-dkms-580-open", "libnvidia-gl-580",
                 "nvidia-kernel-common-580", "nvidia-kernel-source-580-open", "libnvidia-common-580",
                 "libnvidia-extra-580", "xserver-xorg-video-nvidia-580", "libnvidia-cfg1-580", "libnvidia-fbc1-580",
                 "nvidia-firmware-580-580.95.05", "libnvidia-nscq", "nvidia-fabricmanager")
)  # fmt: skip
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y --allow-change-held-packages --allow-downgrades"

# "reboot" in a name: the host has to be rebooted to be as it was.
FAULTS: tuple[Fault, ...] = (
    _of_a_part("part-removed", "dpkg --force-all --remove PART"),
    _of_a_part("part-purged", "dpkg --force-all --purge PART"),
    _of_a_part("part-unheld", "apt-mark unhold PART"),
    _fixed("all-unheld", "apt-mark unhold $(apt-mark showhold)"),
    _fixed("set-removed", f"{_APT} purge 'libnvidia-*' 'nvidia-*' 'xserver-xorg-video-nvidia-*'"),
    _fixed("fabricmanager-older", f"{_APT} install nvidia-fabricmanager=580.95.05-1"),
    _fixed("nscq-newer", f"{_APT} install libnvidia-nscq=595.80-1"),
    _fixed("set-older-reboot", f"{_APT} install {_OLDER} nvidia-firmware-580-580.126.16-"),
    _fixed("meta-that-follows-the-latest", f"{_APT} install nvidia-open-580"),
    _fixed("pinning-package", f"{_APT} install nvidia-driver-pinning-595",
           f"{_P}/nvidia-driver-pinning-595.disabled", "package nvidia-driver-pinning-595",
           "/var/lib/dpkg/info/nvidia-driver-pinning-595.list"),
    _fixed("half-configured", "sed -i '/^Package: libnvidia-gl-580$/,/^$/s/^Status: .*/Status: hold ok"
           " half-configured/' /var/lib/dpkg/status"),
    _fixed("half-installed", "sed -i '/^Package: nvidia-utils-580$/,/^$/s/^Status: .*/Status: hold reinstreq"
           " half-installed/' /var/lib/dpkg/status"),
    _fixed("pins-removed", f"rm {_PINS}"),
    _fixed("pins-edited", f"sed -i s/{VERSION}/580.95.05/ {_PINS}"),
    _fixed("foreign-pin", f"printf 'Package: *nvidia*\\nPin: version 595*\\nPin-Priority: 1001\\n' >{_P}/nvidia",
           f"{_P}/nvidia.disabled"),
    _fixed("blacklist-removed", f"rm {_BLACKLIST}"),
    _fixed("blacklist-edited", f"sed -i /nouveau/d {_BLACKLIST}"),
    _fixed("nouveau-in-the-initramfs", f"rm {_BLACKLIST}; mkdir -p /etc/initramfs-tools; echo nouveau"
           " >>/etc/initramfs-tools/modules; update-initramfs -u -k all", "/etc/initramfs-tools/modules"),
    _fixed("drop-in-removed", f"rm {_DROP_IN}; systemctl daemon-reload; systemctl restart nvidia-persistenced"),
    _fixed("drop-in-edited", f"sed -i s/--persistence-mode/--no-persistence-mode/ {_DROP_IN}; systemctl daemon-reload"),
    _fixed("persistenced-disabled", "systemctl disable --now nvidia-persistenced"),
    _fixed("fabricmanager-disabled", "systemctl disable --now nvidia-fabricmanager"),
    _fixed("kernel-meta-unheld", "apt-mark unhold linux-image-generic linux-headers-generic"),
    _fixed("headers-removed", f"dpkg --force-all --purge linux-headers-{_K}"),
    _fixed("compiler-removed", "dpkg --force-all --purge gcc-11"),
    _fixed("module-removed", f"dkms remove -m nvidia -v {VERSION} -k {_K}"),
    _fixed("dkms-removed", "dpkg --force-all --purge dkms"),
)  # fmt: skip


def drawn(fault: Fault, seed: str) -> str:
    """Return the fault's script as this seed draws it."""
    return fault.script(random.Random(f"{seed} {fault.name}"))
