"""What NVIDIA's CUDA repositories hold, as data: names, versions and dependency shapes for stand-in packages.

Versions of 12.2.0 and 12.2.2 as the vendor's container images and public install logs quote them; where none was
found, the release's own build number stands. The metas ask for their parts by `>=`, as the vendor's do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rackwright.lab.deb import Deb

# Part -> (version in 12.2.0, version in 12.2.2); "" stands for the release's build number.
_LIBRARIES_12_2 = {
    "libcublas": ("12.2.1.16", "12.2.5.6"),
    "libcufft": ("11.0.8.15", "11.0.8.103"),
    "libcufile": ("1.7.0.149", "1.7.2.10"),
    "libcurand": ("10.3.3.53", "10.3.3.141"),
    "libcusolver": ("11.5.0.53", "11.5.2.141"),
    "libcusparse": ("12.1.1.53", "12.1.2.141"),
    "libnpp": ("12.1.1.14", "12.2.1.4"),
    "libnvjitlink": ("12.2.91", "12.2.140"),
    "libnvjpeg": ("12.2.0.2", "12.2.2.4"),
}
_LIBRARIES = tuple(_LIBRARIES_12_2)

# Meta -> its parts. `X` becomes the release's suffix; a name without it stands as it is.
_METAS = {
    "cuda-compiler-X": ("cuda-cuobjdump-X", "cuda-cuxxfilt-X", "cuda-nvcc-X", "cuda-nvprune-X"),
    "cuda-libraries-X": (
        "cuda-cudart-X", "cuda-nvrtc-X", "cuda-opencl-X", *(f"{name}-X" for name in _LIBRARIES),
    ),
    "cuda-libraries-dev-X": (
        "cuda-cccl-X", "cuda-cudart-dev-X", "cuda-driver-dev-X", "cuda-nvrtc-dev-X", "cuda-opencl-dev-X",
        "cuda-profiler-api-X", *(f"{name}-dev-X" for name in _LIBRARIES),
    ),
    "cuda-command-line-tools-X": (
        "cuda-cupti-X", "cuda-cupti-dev-X", "cuda-gdb-X", "cuda-nvdisasm-X", "cuda-nvprof-X", "cuda-nvtx-X",
        "cuda-sanitizer-X",
    ),
    "cuda-visual-tools-X": ("cuda-libraries-dev-X", "cuda-nsight-X", "cuda-nsight-compute-X",
                            "cuda-nsight-systems-X", "cuda-nvml-dev-X", "cuda-nvvp-X"),
    "cuda-tools-X": ("cuda-command-line-tools-X", "cuda-visual-tools-X", "gds-tools-X"),
    "cuda-toolkit-X": ("cuda-compiler-X", "cuda-documentation-X", "cuda-libraries-X", "cuda-libraries-dev-X",
                       "cuda-nvml-dev-X", "cuda-tools-X"),
    "cuda-runtime-X": ("cuda-libraries-X",),
}  # fmt: skip
_PARTS = (
    "cuda-cuobjdump-X", "cuda-cuxxfilt-X", "cuda-nvcc-X", "cuda-nvprune-X", "cuda-crt-X", "cuda-nvvm-X",
    "cuda-cudart-X", "cuda-nvrtc-X", "cuda-opencl-X", "cuda-cccl-X", "cuda-cudart-dev-X", "cuda-driver-dev-X",
    "cuda-nvrtc-dev-X", "cuda-opencl-dev-X", "cuda-profiler-api-X", "cuda-cupti-X", "cuda-cupti-dev-X", "cuda-gdb-X",
    "cuda-nvdisasm-X", "cuda-nvprof-X", "cuda-nvtx-X", "cuda-sanitizer-X", "cuda-nsight-X", "cuda-nsight-compute-X",
    "cuda-nsight-systems-X", "cuda-nvml-dev-X", "cuda-nvvp-X", "cuda-documentation-X", "cuda-demo-suite-X",
)  # fmt: skip
# Part -> what else it needs. Library packages bring the settings of the linker and the `cuda` alternative.
_NEEDS = {
    "cuda-nvcc-X": ("cuda-crt-X =", "cuda-cudart-dev-X =", "cuda-nvvm-X ="),
    "cuda-cudart-dev-X": ("cuda-cudart-X =", "cuda-cccl-X =", "cuda-driver-dev-X ="),
    "cuda-cudart-X": ("cuda-toolkit-X-config-common", "cuda-toolkit-M-config-common", "cuda-toolkit-config-common"),
    "cuda-cupti-dev-X": ("cuda-cupti-X =",),
    "cuda-nsight-compute-X": ("nsight-compute-N",),
    "cuda-nsight-systems-X": ("nsight-systems-N",),
    "cuda-demo-suite-X": ("cuda-cudart-X", "libcufft-X", "libcurand-X"),
}


@dataclass(frozen=True)
class Release:
    """One patch level of a CUDA toolkit."""

    version: str
    """`12.2.2`."""
    build: str
    """Version of the parts that have no number of their own: `12.2.140`."""
    nvcc: str
    own: Mapping[str, str] | None = None
    """Library -> its version."""
    nsight_compute: str = "2024.1.1"
    nsight_systems: str = "2023.4.4"

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


CUDA_12_2_0 = Release(
    "12.2.0", "12.2.53", "12.2.91", own={name: old for name, (old, _) in _LIBRARIES_12_2.items()},
    nsight_compute="2023.2.0", nsight_systems="2023.2.3",
)  # fmt: skip
CUDA_12_2_2 = Release(
    "12.2.2", "12.2.140", "12.2.140", own={name: new for name, (_, new) in _LIBRARIES_12_2.items()},
    nsight_compute="2023.2.2", nsight_systems="2023.2.3",
)  # fmt: skip
CUDA_12_3 = Release("12.3.2", "12.3.103", "12.3.107")
CUDA_12_4 = Release("12.4.1", "12.4.127", "12.4.131")
CUDA_12_5 = Release("12.5.1", "12.5.82", "12.5.82", nsight_compute="2024.2.1", nsight_systems="2024.2.3")
CUDA_12_6 = Release("12.6.3", "12.6.77", "12.6.85", nsight_compute="2024.3.2", nsight_systems="2024.5.1")
CUDA_13_0 = Release("13.0.2", "13.0.88", "13.0.88", nsight_compute="2025.3.1", nsight_systems="2025.3.2")

_NVCC = """#!/bin/sh
# Rehearsal stand-in for nvcc {short}: its --version is the real one's, and PTX goes to NVIDIA's own ptxas.
here=$(dirname "$(readlink -f "$0")")
case "$1" in
--version|-V)
  echo 'nvcc: NVIDIA (R) Cuda compiler driver'
  echo 'Copyright (c) 2005-2023 NVIDIA Corporation'
  echo 'Cuda compilation tools, release {short}, V{nvcc}'
  exit 0 ;;
esac
arch=sm_52 out=a.cubin in=
while [ $# -gt 0 ]; do
  case "$1" in
  -arch=*) arch=${{1#-arch=}} ;; -o) out=$2; shift ;; -cubin) ;; *) in=$1 ;;
  esac
  shift
done
case "$in" in
*.ptx) exec "$here/ptxas" -arch="$arch" -o "$out" "$in" ;;
esac
echo 'nvcc: this is a rehearsal stand-in: it assembles PTX and cannot compile CUDA C++' >&2
exit 1
"""

_ALTERNATIVES = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
  update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-{short} {priority}
  update-alternatives --install /usr/local/cuda-{major} cuda-{major} /usr/local/cuda-{short} {priority}
fi
"""
_NO_ALTERNATIVES = """#!/bin/sh
set -e
if [ "$1" = remove ]; then
  update-alternatives --remove cuda /usr/local/cuda-{short}
  update-alternatives --remove cuda-{major} /usr/local/cuda-{short}
fi
"""
_LDCONFIG = "#!/bin/sh\nset -e\nldconfig\n"


def toolkit(release: Release, *, ptxas: bytes) -> Iterator[Deb]:
    """Yield all packages of one release but the shared config-common ones."""
    for meta, parts in _METAS.items():
        depends = [_bound(release, part) for part in parts]
        if meta == "cuda-runtime-X":
            depends.append("cuda-drivers (>= 535.54.03)")
        yield _deb(release, meta, f"{release.version}-1", depends)
    for part in _PARTS:
        yield _part(release, part, ptxas)
    for library in _LIBRARIES:
        common = [name.replace("X", release.suffix).replace("M", release.major) for name in _NEEDS["cuda-cudart-X"]]
        soname = f"/usr/local/cuda-{release.short}/targets/x86_64-linux/lib/{library}.so.{release.major}"
        version = f"{_version(release, library + '-X')}-1"
        yield _deb(release, f"{library}-X", version, common, {soname: (b"stand-in\n", 0o644)})
        yield _deb(release, f"{library}-dev-X", version, [_bound(release, f"{library}-X")])
    gds = "/lib/systemd/system/nvidia-gds-stats.service"
    unit = f"[Unit]\nDescription=GDS statistics of CUDA {release.short} (stand-in)\n[Service]\nType=oneshot\nExecStart=/bin/true\n"
    yield _deb(
        release, "gds-tools-X", f"{_version(release, 'libcufile-X')}-1", [_bound(release, "libcufile-X")],
        # The same path in every release: the vendor's packages of two releases share files too, by Replaces.
        {gds: (unit.encode(), 0o644)}, replaces="gds-tools-12-2, gds-tools-12-3, gds-tools-12-4, gds-tools-12-5, "
        "gds-tools-12-6, gds-tools-13-0",
    )  # fmt: skip
    short, major = release.short, release.major
    for tool, version in (("nsight-compute", release.nsight_compute), ("nsight-systems", release.nsight_systems)):
        # Nsight Systems of 12.2 needs what Ubuntu 24.04 no longer has: the distribution's part of the set.
        extra = {"Depends": "libtinfo5"} if (tool, short) == ("nsight-systems", "12.2") else {}
        yield Deb(f"{tool}-{version}", f"{version}.3-1", fields={"Section": "multiverse/devel", **extra})
    values = {"short": short, "major": major, "priority": short.replace(".", "")}
    yield Deb(
        f"cuda-toolkit-{release.suffix}-config-common", f"{release.build}-1", "all",
        files={f"/usr/share/doc/cuda-toolkit-{release.suffix}-config-common/copyright": (b"stand-in\n", 0o644)},
        scripts={"postinst": _ALTERNATIVES.format(**values), "prerm": _NO_ALTERNATIVES.format(**values)},
    )  # fmt: skip
    depends = [_bound(release, part) for part in ("cuda-runtime-X", "cuda-toolkit-X", "cuda-demo-suite-X")]
    yield Deb(f"cuda-{release.suffix}", f"{release.version}-1", fields={"Depends": ", ".join(depends)})


def shared(release: Release) -> Iterator[Deb]:
    """Yield the config-common packages that all toolkits of a major version, and all toolkits, share."""
    major, version = release.major, f"{release.build}-1"
    for name, file, folder in (
        (f"cuda-toolkit-{major}-config-common", f"988_cuda-{major}.conf", f"/usr/local/cuda-{major}"),
        ("cuda-toolkit-config-common", "000_cuda.conf", "/usr/local/cuda"),
    ):
        path = f"/etc/ld.so.conf.d/{file}"
        yield Deb(
            name, version, "all", files={path: (f"{folder}/targets/x86_64-linux/lib\n".encode(), 0o644)},
            conffiles=(path,), scripts={"postinst": _LDCONFIG},
        )  # fmt: skip


def moving_metas(newest: Release, newest_12: Release | None) -> Iterator[Deb]:
    """Yield the metas that move on by themselves: `cuda`, `cuda-toolkit`, `cuda-toolkit-12`."""
    version = f"{newest.version}-1"
    yield Deb("cuda", version, fields={"Depends": f"cuda-{newest.suffix} (>= {newest.version})"})
    yield Deb("cuda-toolkit", version, fields={"Depends": f"cuda-toolkit-{newest.suffix} (>= {newest.version})"})
    if newest_12 is not None:
        depends = f"cuda-toolkit-{newest_12.suffix} (>= {newest_12.version})"
        yield Deb("cuda-toolkit-12", f"{newest_12.version}-1", fields={"Depends": depends})


def drivers(branch: int, version: str) -> Iterator[Deb]:
    """Yield a driver set small enough to show that something drags it in."""
    names = (f"nvidia-driver-{branch}", f"libnvidia-compute-{branch}", f"nvidia-utils-{branch}")
    for name in names:
        yield Deb(name, f"{version}-0ubuntu1", fields={"Section": "multiverse/devel"})
    depends = ", ".join(f"{name} (>= {version})" for name in names)
    yield Deb(f"cuda-drivers-{branch}", f"{version}-1", fields={"Depends": depends})
    yield Deb("cuda-drivers", f"{version}-1", fields={"Depends": f"cuda-drivers-{branch} (= {version}-1)"})


def keyring_package(directory: str, key: bytes, url: str) -> Deb:
    """Return `cuda-keyring`: the vendor's key, its list and its pin, as conffiles."""
    source = f"/etc/apt/sources.list.d/cuda-{directory}-x86_64.list"
    keyring = "/usr/share/keyrings/cuda-archive-keyring.gpg"
    return Deb(
        "cuda-keyring", "1.1-1", "all",
        files={
            keyring: (key, 0o644),
            source: (f"deb [signed-by={keyring}] {url}/{directory}/x86_64/ /\n".encode(), 0o644),
            "/etc/apt/preferences.d/cuda-repository-pin-600": (pin(), 0o644),
        },
        conffiles=(source, "/etc/apt/preferences.d/cuda-repository-pin-600"),
    )  # fmt: skip


def pin() -> bytes:
    """Return the vendor's pin file (structure as in `cuda-ubuntu2204.pin`)."""
    stanzas = [f"Package: {name}\nPin: origin *ubuntu.com*\nPin-Priority: -1\n" for name in ("nsight-compute", "nsight-systems")]
    stanzas += [
        f"Package: {name}\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n" for name in ("nvidia-modprobe", "nvidia-settings", "*")
    ]
    return "\n".join(stanzas).encode()


def _version(release: Release, part: str) -> str:
    library = part.removesuffix("-X").removesuffix("-dev")
    if release.own and library in release.own:
        return release.own[library]
    if part == "gds-tools-X" and release.own:
        return release.own["libcufile"]
    return release.nvcc if part in ("cuda-nvcc-X", "cuda-crt-X", "cuda-nvvm-X") else release.build


def _bound(release: Release, part: str) -> str:
    version = release.version if part in _METAS else _version(release, part)
    return f"{part.replace('X', release.suffix)} (>= {version})"


def _deb(
    release: Release, part: str, version: str, depends: list[str],
    files: Mapping[str, tuple[bytes, int]] | None = None, *, links: Mapping[str, str] | None = None, replaces: str = "",
) -> Deb:  # fmt: skip
    fields = {"Section": "multiverse/devel", "Multi-Arch": "foreign"}
    if depends:
        fields["Depends"] = ", ".join(depends)
    name = part.replace("X", release.suffix)
    if replaces:
        fields["Replaces"] = ", ".join(other for other in replaces.split(", ") if other != name)
    return Deb(name, version, fields=fields, files=files or {}, links=links or {})


def _part(release: Release, part: str, ptxas: bytes) -> Deb:
    depends = []
    for need in _NEEDS.get(part, ()):
        name, _, exact = need.partition(" ")
        if exact:
            depends.append(_bound(release, name))
        elif name.endswith("-N"):
            version = release.nsight_compute if "compute" in name else release.nsight_systems
            depends.append(f"{name.removesuffix('N')}{version} (>= {version}.3)")
        else:
            depends.append(name.replace("X", release.suffix).replace("M", release.major))
    home = f"/usr/local/cuda-{release.short}"
    files: dict[str, tuple[bytes, int]] = {}
    links: dict[str, str] = {}
    if part == "cuda-nvcc-X":
        files[f"{home}/bin/nvcc"] = (_NVCC.format(short=release.short, nvcc=release.nvcc).encode(), 0o755)
        if ptxas:
            files[f"{home}/bin/ptxas"] = (ptxas, 0o755)
    elif part == "cuda-cudart-X":
        files[f"{home}/targets/x86_64-linux/lib/libcudart.so.{release.major}"] = (b"stand-in\n", 0o644)
        links[f"{home}/lib64"] = "targets/x86_64-linux/lib"
    elif part == "cuda-cudart-dev-X":
        files[f"{home}/targets/x86_64-linux/include/cuda_runtime.h"] = (b"/* stand-in */\n", 0o644)
        links[f"{home}/include"] = "targets/x86_64-linux/include"
    else:
        files[f"{home}/share/stand-in/{part.replace('X', release.suffix)}"] = (f"{release.version}\n".encode(), 0o644)
    return _deb(release, part, f"{_version(release, part)}-1", depends, files, links=links)
