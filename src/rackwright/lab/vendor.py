"""What NVIDIA's CUDA repositories hold, as data: names, versions, dependency shapes and file names.

12.2.2 is from the vendor's own manifest (redistrib_12.2.2.json), the others from PyPI wheels, images and
install logs; a part of which no number was found bears its release's own. Metas ask for parts by `>=`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """One patch level of a CUDA toolkit."""

    version: str
    """`12.2.2`: the metas' version."""
    build: str
    """The version of the parts that have none of their own in `own`: `12.2.140`."""
    own: Mapping[str, str]
    """Stem of a part (`libcublas`, `cuda-nvcc`; without -dev and suffix) -> its version."""
    nsight_compute: str
    nsight_systems: str
    driver: str
    """The driver that ships with it: what its runtime asks for at least."""
    built: str
    """As `nvcc --version` prints it."""
    compiler: str
    """Number of the compiler's build, as `nvcc --version` prints it."""
    ptxas: str = ""
    """The wheel on the Python package index with this release's real ptxas; without it there is none."""
    gone: tuple[str, ...] = ()
    """Stems of the parts that the vendor has dropped by then."""

    @property
    def major(self) -> str:
        """Return "12"."""
        return self.version.split(".")[0]

    @property
    def short(self) -> str:
        """Return "12.2"."""
        return ".".join(self.version.split(".")[:2])

    @property
    def suffix(self) -> str:
        """Return "12-2"."""
        return self.short.replace(".", "-")

    @property
    def nvcc(self) -> str:
        """Return the compiler's version."""
        return self.own["cuda-nvcc"]

    def name(self, pattern: str) -> str:
        """Return a package's name: in `cuda-nvcc-X` X is the suffix; `-M-` stands for the major version."""
        return pattern.replace("X", self.suffix).replace("M", self.major)

    def part_version(self, pattern: str) -> str:
        """Return the version of a package of this release, without the Debian revision."""
        if pattern in METAS:
            return self.version
        stem = pattern.removesuffix("-X").removesuffix("-dev")
        return self.own.get(SAME_VERSION.get(stem, stem), self.build)


# Stem -> the stem whose version it shares.
SAME_VERSION = {"cuda-crt": "cuda-nvcc", "cuda-nvvm": "cuda-nvcc", "gds-tools": "libcufile"}

# Stem -> (shared library, its soname's number in CUDA 12, and in CUDA 13).
LIBRARIES = {
    "libcublas": ("libcublas", "12", "13"),
    "libcufft": ("libcufft", "11", "12"),
    "libcufile": ("libcufile", "0", "0"),
    "libcurand": ("libcurand", "10", "10"),
    "libcusolver": ("libcusolver", "11", "12"),
    "libcusparse": ("libcusparse", "12", "12"),
    "libnpp": ("libnppc", "12", "13"),
    "libnvjitlink": ("libnvJitLink", "12", "13"),
    "libnvjpeg": ("libnvjpeg", "12", "13"),
}
_LIBRARY_ORDER = tuple(LIBRARIES)
# The same for the parts that are named `cuda-`.
OTHER_LIBRARIES = {
    "cuda-cudart": ("libcudart", "12", "13"),
    "cuda-nvrtc": ("libnvrtc", "12", "13"),
    "cuda-opencl": ("libOpenCL", "1", "1"),
    "cuda-cupti": ("libcupti", "12", "13"),
}

# Meta -> its parts.
METAS = {
    "cuda-compiler-X": ("cuda-cuobjdump-X", "cuda-cuxxfilt-X", "cuda-nvcc-X", "cuda-nvprune-X"),
    "cuda-libraries-X": (
        "cuda-cudart-X", "cuda-nvrtc-X", "cuda-opencl-X", *(f"{name}-X" for name in _LIBRARY_ORDER),
    ),
    "cuda-libraries-dev-X": (
        "cuda-cccl-X", "cuda-cudart-dev-X", "cuda-driver-dev-X", "cuda-nvrtc-dev-X", "cuda-opencl-dev-X",
        "cuda-profiler-api-X", *(f"{name}-dev-X" for name in _LIBRARY_ORDER),
    ),
    "cuda-command-line-tools-X": (
        "cuda-cupti-X", "cuda-cupti-dev-X", "cuda-gdb-X", "cuda-nvdisasm-X", "cuda-nvprof-X", "cuda-nvtx-X",
        "cuda-sanitizer-X",
    ),
    "cuda-nsight-compute-X": (),  # and Nsight Compute itself, which has a version of its own in its name
    "cuda-nsight-systems-X": (),
    "cuda-visual-tools-X": (
        "cuda-libraries-dev-X", "cuda-nsight-X", "cuda-nsight-compute-X", "cuda-nsight-systems-X",
        "cuda-nvml-dev-X", "cuda-nvvp-X",
    ),
    "cuda-tools-X": ("cuda-command-line-tools-X", "cuda-visual-tools-X", "gds-tools-X"),
    "cuda-toolkit-X": (
        "cuda-compiler-X", "cuda-documentation-X", "cuda-libraries-X", "cuda-libraries-dev-X",
        "cuda-nvml-dev-X", "cuda-tools-X",
    ),
    "cuda-runtime-X": ("cuda-libraries-X",),  # and a driver
    "cuda-X": ("cuda-runtime-X", "cuda-toolkit-X", "cuda-demo-suite-X"),
}  # fmt: skip

# The linker's settings and the `cuda` alternative. Asked for without a version: apt takes the newest.
CONFIG_COMMON = ("cuda-toolkit-X-config-common", "cuda-toolkit-M-config-common", "cuda-toolkit-config-common")

# Part -> what it needs of its own release (by `>=`). The vendor's cuda-nvcc may need build-essential too (its
# container images get a compiler that no recipe names); left out here: 250 MB on each host for nothing.
PARTS = {
    "cuda-cccl-X": (),
    "cuda-crt-X": (),
    "cuda-cudart-X": (),
    "cuda-cudart-dev-X": ("cuda-cccl-X", "cuda-cudart-X", "cuda-driver-dev-X"),
    "cuda-cuobjdump-X": (),
    "cuda-cupti-X": (),
    "cuda-cupti-dev-X": ("cuda-cupti-X",),
    "cuda-cuxxfilt-X": (),
    "cuda-demo-suite-X": ("cuda-runtime-X",),
    "cuda-documentation-X": (),
    "cuda-driver-dev-X": (),
    "cuda-gdb-X": (),
    "cuda-nsight-X": (),
    "cuda-nvcc-X": ("cuda-crt-X", "cuda-cudart-dev-X", "cuda-nvvm-X"),
    "cuda-nvdisasm-X": (),
    "cuda-nvml-dev-X": (),
    "cuda-nvprof-X": ("cuda-cupti-X",),
    "cuda-nvprune-X": (),
    "cuda-nvrtc-X": (),
    "cuda-nvrtc-dev-X": ("cuda-nvrtc-X",),
    "cuda-nvtx-X": (),
    "cuda-nvvm-X": (),
    "cuda-nvvp-X": ("cuda-nvprof-X",),
    "cuda-opencl-X": (),
    "cuda-opencl-dev-X": ("cuda-opencl-X",),
    "cuda-profiler-api-X": (),
    "cuda-sanitizer-X": (),
    "gds-tools-X": ("libcufile-X",),
    **{f"{name}-X": () for name in LIBRARIES},
    **{f"{name}-dev-X": (f"{name}-X",) for name in LIBRARIES},
}
# Nsight Systems of CUDA 12.2 needs what Ubuntu 24.04 no longer has (Jimver/cuda-toolkit#365).
NSIGHT_SYSTEMS_NEEDS = {"12.2": "libtinfo5"}

_WHEEL = "nvidia-cuda-nvcc-cu12"

CUDA_12_2_0 = Release(
    "12.2.0", "12.2.53",
    own={
        "cuda-nvcc": "12.2.91", "cuda-nvrtc": "12.2.91", "cuda-cupti": "12.2.60", "cuda-nvprof": "12.2.60",
        "cuda-nvvp": "12.2.60", "cuda-nvml": "12.2.81", "libcublas": "12.2.1.16", "libcufft": "11.0.8.15",
        "libcufile": "1.7.0.149", "libcurand": "10.3.3.53", "libcusolver": "11.5.0.53",
        "libcusparse": "12.1.1.53", "libnpp": "12.1.1.14", "libnvjitlink": "12.2.91", "libnvjpeg": "12.2.0.2",
    },
    nsight_compute="2023.2.0.16", nsight_systems="2023.2.3.1001", driver="535.54.03",
    built="Tue_Jun_13_19:16:58_PDT_2023", compiler="32965470",
    # The wheel of 12.2.2, too: one ptxas of the series is enough for the rehearsal.
    ptxas=f"{_WHEEL}==12.2.140",
)  # fmt: skip
CUDA_12_2_2 = Release(
    "12.2.2", "12.2.140",
    own={
        "cuda-nvcc": "12.2.140", "cuda-cupti": "12.2.142", "cuda-nsight": "12.2.144",
        "cuda-nvprof": "12.2.142", "cuda-nvvp": "12.2.142", "libcublas": "12.2.5.6", "libcufft": "11.0.8.103",
        "libcufile": "1.7.2.10",
        "libcurand": "10.3.3.141", "libcusolver": "11.5.2.141", "libcusparse": "12.1.2.141",
        "libnpp": "12.2.1.4", "libnvjpeg": "12.2.2.4",
    },
    nsight_compute="2023.2.2.3", nsight_systems="2023.2.3.1004", driver="535.104.05",
    built="Tue_Aug_15_22:02:13_PDT_2023", compiler="33191640", ptxas=f"{_WHEEL}==12.2.140",
)  # fmt: skip
CUDA_12_3_2 = Release(
    "12.3.2", "12.3.101",
    own={
        "cuda-nvcc": "12.3.107", "cuda-nvrtc": "12.3.107", "libcublas": "12.3.4.1", "libcufft": "11.0.12.1",
        "libcufile": "1.8.1.2", "libcurand": "10.3.4.107", "libcusolver": "11.5.4.101",
        "libcusparse": "12.2.0.103", "libnpp": "12.2.3.2", "libnvjpeg": "12.3.0.81",
    },
    nsight_compute="2023.3.1.1", nsight_systems="2023.3.3.42", driver="545.23.08",
    built="Wed_Nov_22_10:17:15_PST_2023", compiler="33567101",
)  # fmt: skip
CUDA_12_4_1 = Release(
    "12.4.1", "12.4.127",
    own={
        "cuda-nvcc": "12.4.131", "libcublas": "12.4.5.8", "libcufft": "11.2.1.3", "libcufile": "1.9.1.3",
        "libcurand": "10.3.5.147", "libcusolver": "11.6.1.9", "libcusparse": "12.3.1.170",
        "libnpp": "12.2.5.30", "libnvjpeg": "12.3.1.117",
    },
    nsight_compute="2024.1.1.4", nsight_systems="2023.4.4.54", driver="550.54.15",
    built="Thu_Mar_28_02:18:24_PDT_2024", compiler="34097967", ptxas=f"{_WHEEL}==12.4.131",
)  # fmt: skip
CUDA_12_5_1 = Release(
    "12.5.1", "12.5.82",
    own={
        "cuda-nvcc": "12.5.82", "libcublas": "12.5.3.2", "libcufft": "11.2.3.61", "libcufile": "1.10.1.7",
        "libcurand": "10.3.6.82", "libcusolver": "11.6.3.83", "libcusparse": "12.5.1.3",
        "libnpp": "12.3.0.159", "libnvjpeg": "12.3.2.81",
    },
    nsight_compute="2024.2.1.2", nsight_systems="2024.2.3.38", driver="555.42.06",
    built="Thu_Jun__6_02:18:23_PDT_2024", compiler="34385749",
)  # fmt: skip
CUDA_12_6_3 = Release(
    "12.6.3", "12.6.77",
    own={
        "cuda-nvcc": "12.6.85", "cuda-nvrtc": "12.6.85", "cuda-cupti": "12.6.80", "libcublas": "12.6.4.1",
        "libcufft": "11.3.0.4", "libcufile": "1.11.1.6", "libcurand": "10.3.7.77", "libcusolver": "11.7.1.2",
        "libcusparse": "12.5.4.2", "libnpp": "12.3.1.54", "libnvjitlink": "12.6.85", "libnvjpeg": "12.3.3.54",
    },
    nsight_compute="2024.3.2.3", nsight_systems="2024.5.1.113", driver="560.35.05",
    built="Tue_Oct_29_23:50:19_PDT_2024", compiler="35059454", ptxas=f"{_WHEEL}==12.6.85",
)  # fmt: skip
CUDA_13_0_2 = Release(
    "13.0.2", "13.0.85",
    own={
        "cuda-nvcc": "13.0.88", "cuda-nvrtc": "13.0.88", "cuda-cudart": "13.0.96", "libcublas": "13.1.0.3",
        "libcufft": "12.0.0.61", "libcufile": "1.15.1.6", "libcurand": "10.4.0.35",
        "libcusolver": "12.0.4.66",
        "libcusparse": "12.6.3.3", "libnpp": "13.0.1.2", "libnvjitlink": "13.0.88", "libnvjpeg": "13.0.1.86",
    },
    nsight_compute="2025.3.1.4", nsight_systems="2025.3.2.474", driver="580.95.05",
    built="Wed_Aug_20_01:58:59_PM_PDT_2025", compiler="36424714", gone=("cuda-nvprof", "cuda-nvvp"),
)  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """What one repository has."""

    releases: tuple[Release, ...]
    pin: bool
    """Whether the vendor publishes a pin file beside it, as it does for Ubuntu."""


REPOSITORIES = {
    "ubuntu2204": Offer((CUDA_12_2_0, CUDA_12_2_2, CUDA_12_4_1, CUDA_13_0_2), pin=True),
    "ubuntu2404": Offer((CUDA_12_5_1, CUDA_12_6_3), pin=True),
    "debian12": Offer((CUDA_12_3_2, CUDA_12_4_1), pin=False),
}
