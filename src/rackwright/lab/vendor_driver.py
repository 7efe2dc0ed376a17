"""What NVIDIA's repositories hold of drivers, as data: names, versions and dependency shapes.

Up to 580 the branch is in the names, from 590 on in the version alone (NVIDIA driver installation guide). Parts ask
for each other by `=`, the metas for the driver by `>=`: `cuda-drivers-535=X` pins nothing (dstackai/dstack#2355).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Driver:
    """One version of the driver as one repository packages it."""

    version: str
    """`580.95.05`."""
    revision: str
    """Debian revision of the packages; metas and fabric manager have `1`."""

    @property
    def branch(self) -> int:
        """Return 580."""
        return int(self.version.split(".")[0])

    @property
    def full(self) -> str:
        """Return the version of the driver's packages."""
        return f"{self.version}-{self.revision}"

    @property
    def suffix(self) -> str:
        """Return how names of this branch end: "-580", and nothing from 590 on."""
        return f"-{self.branch}" if self.branch < UNVERSIONED else ""

    @property
    def has_open_metas(self) -> bool:
        """Return whether there is `nvidia-open-BRANCH`; there is none for 535."""
        return self.branch > 535


UNVERSIONED = 590
"""From this branch on the names leave the branch out."""
UNVERSIONED_TOOLS = 580
"""From this branch on fabric manager, nscq and imex do."""

# Part -> what it needs of the same set. "@" marks parts that come open and proprietary; "|" is either kind.
UBUNTU: Mapping[str, tuple[str, ...]] = {
    "libnvidia-cfg1": (),
    "libnvidia-common": (),
    "libnvidia-compute": (),
    "libnvidia-decode": ("libnvidia-compute",),
    "libnvidia-encode": ("libnvidia-decode",),
    "libnvidia-extra": (),
    "libnvidia-fbc1": (),
    "libnvidia-gl": ("libnvidia-common",),
    "nvidia-compute-utils": ("libnvidia-compute",),
    "nvidia-firmware": (),
    "nvidia-kernel-common": ("nvidia-firmware",),
    "nvidia-kernel-source@": (),
    "nvidia-dkms@": ("nvidia-kernel-source@", "nvidia-kernel-common"),
    "nvidia-utils": ("libnvidia-compute",),
    "xserver-xorg-video-nvidia": ("libnvidia-cfg1",),
    "nvidia-driver@": (
        "libnvidia-gl", "nvidia-dkms@", "nvidia-kernel-common", "nvidia-kernel-source@", "libnvidia-compute",
        "libnvidia-extra", "nvidia-compute-utils", "libnvidia-decode", "libnvidia-encode", "nvidia-utils",
        "xserver-xorg-video-nvidia", "libnvidia-cfg1", "libnvidia-fbc1",
    ),
}  # fmt: skip

# Debian's names, which the vendor's own debian12 repository uses too. The branch is in the version alone.
DEBIAN: Mapping[str, tuple[str, ...]] = {
    "firmware-nvidia-gsp": (),
    "libcuda1": (),
    "libnvidia-ml1": (),
    "libnvidia-cfg1": (),
    "nvidia-alternative": (),
    "nvidia-kernel-support": ("nvidia-alternative",),
    "nvidia-kernel-dkms": ("firmware-nvidia-gsp", "nvidia-kernel-support"),
    "nvidia-kernel-open-dkms": ("firmware-nvidia-gsp", "nvidia-kernel-support"),
    "nvidia-driver-libs": ("libnvidia-cfg1",),
    "nvidia-persistenced": ("libnvidia-cfg1",),
    "nvidia-smi": ("libnvidia-ml1",),
    "nvidia-driver": (
        "nvidia-alternative", "nvidia-driver-libs", "nvidia-kernel-dkms|nvidia-kernel-open-dkms",
        "nvidia-kernel-support", "libcuda1", "nvidia-smi", "nvidia-persistenced",
    ),
}  # fmt: skip

# Beside the set, on machines that have what they serve. At 580 they lose the branch in their names.
TOOLS = ("nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex")


def _ubuntu(*versions: str) -> tuple[Driver, ...]:
    return tuple(Driver(one, "1ubuntu1" if int(one.split(".")[0]) >= UNVERSIONED else "0ubuntu1") for one in versions)


def _debian(*versions: str) -> tuple[Driver, ...]:
    return tuple(Driver(one, "1") for one in versions)


DRIVERS: Mapping[str, tuple[Driver, ...]] = {
    "ubuntu2204": _ubuntu("535.104.05", "535.183.01", "580.95.05", "580.126.16", "595.71.05", "595.80"),
    "ubuntu2404": _ubuntu("580.95.05", "580.126.16", "595.71.05", "595.80"),
    "debian12": _debian("535.104.05", "535.183.01", "580.95.05", "580.126.16", "595.71.05", "595.80"),
}

# Package -> (version, what it turns into). As Ubuntu's later 535 packages: dummies that bring 580.
TRANSITIONAL_535 = "535.309.01-0ubuntu1"
