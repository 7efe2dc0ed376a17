"""Stand-in packages out of the vendor's data: metas, parts, keyring, with scripts and conffiles.

A part holds what a deploy can see of the real one: libraries by their soname, `lib64`, an nvcc, and NVIDIA's
own ptxas where the release names a wheel; `ptxas` is the wheel's name -> that file's content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rackwright.lab import recipes_driver, vendor
from rackwright.lab.deb import Deb
from rackwright.lab.elf import shared_library
from rackwright.lab.vendor import Release

Files = dict[str, tuple[bytes, int]]

# Options in the spellings that nvcc takes; its --version is the real one's, word for word.
_NVCC = r"""#!/bin/sh
# Rehearsal stand-in for nvcc of CUDA @SHORT@: PTX goes to NVIDIA's own ptxas, CUDA C++ cannot be compiled.
here=$(dirname "$(readlink -f "$0")")
arch=sm_52 out= in=
while [ $# -gt 0 ]; do
  case "$1" in
  --version|-V)
    echo 'nvcc: NVIDIA (R) Cuda compiler driver'
    echo 'Copyright (c) 2005-@YEAR@ NVIDIA Corporation'
    echo 'Built on @BUILT@'
    echo 'Cuda compilation tools, release @SHORT@, V@NVCC@'
    echo 'Build cuda_@SHORT@.r@SHORT@/compiler.@COMPILER@_0'
    exit 0 ;;
  -arch=*|--gpu-architecture=*) arch=${1#*=} ;;
  -arch|--gpu-architecture) arch=$2; shift ;;
  -o|--output-file) out=$2; shift ;;
  -*) ;;
  *) in=$1 ;;
  esac
  shift
done
case "$in" in
'') echo 'nvcc fatal   : No input files specified; use option --help for more information' >&2; exit 1 ;;
*.ptx)
  name=${in##*/}
  [ -x "$here/ptxas" ] || { echo 'nvcc: rehearsal stand-in of CUDA @SHORT@ without ptxas' >&2; exit 1; }
  exec "$here/ptxas" -arch="$arch" -o "${out:-${name%.ptx}.cubin}" "$in" ;;
esac
echo 'nvcc: this is a rehearsal stand-in: it assembles PTX and cannot compile CUDA C++' >&2
exit 1
"""
_ALTERNATIVES = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
  echo 'Setting alternatives'
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
_LINKER_TRIGGER = {"triggers": "activate-noawait ldconfig\n"}


def repository(directory: str, ptxas: Mapping[str, bytes]) -> list[Deb]:
    """Return all packages of a repository but the keyring, none twice."""
    offer = vendor.REPOSITORIES[directory]
    found: dict[tuple[str, str], Deb] = {}
    for release in offer.releases:
        for package in (*_toolkit(release, ptxas), *_shared(release), *_moving(release)):
            found.setdefault((package.name, package.version), package)
    for package in recipes_driver.repository(directory):
        found.setdefault((package.name, package.version), package)
    return list(found.values())


def _toolkit(release: Release, ptxas: Mapping[str, bytes]) -> Iterator[Deb]:
    for meta, parts in vendor.METAS.items():
        depends = [_bound(release, part) for part in parts if not _is_gone(release, part)]
        if meta == "cuda-runtime-X":
            depends.append(f"cuda-drivers (>= {release.driver})")
        elif meta == "cuda-nsight-compute-X":
            depends.append(f"{_nsight('compute', release.nsight_compute)} (>= {release.nsight_compute})")
        elif meta == "cuda-nsight-systems-X":
            depends.append(f"{_nsight('systems', release.nsight_systems)} (>= {release.nsight_systems})")
        yield _deb(release.name(meta), f"{release.version}-1", depends)
    for part, needs in vendor.PARTS.items():
        if not _is_gone(release, part):
            yield _part(release, part, needs, ptxas)
    yield _deb(_nsight("compute", release.nsight_compute), f"{release.nsight_compute}-1", [])
    needs_more = vendor.NSIGHT_SYSTEMS_NEEDS.get(release.short)
    yield _deb(
        _nsight("systems", release.nsight_systems),
        f"{release.nsight_systems}-1",
        [needs_more] if needs_more else [],
    )


def _is_gone(release: Release, part: str) -> bool:
    return part.removesuffix("-X").removesuffix("-dev") in release.gone


def _nsight(tool: str, version: str) -> str:
    return f"nsight-{tool}-{'.'.join(version.split('.')[:3])}"


def _bound(release: Release, part: str) -> str:
    return f"{release.name(part)} (>= {release.part_version(part)})"


def _deb(
    name: str, version: str, depends: list[str], files: Files | None = None, *,
    links: Mapping[str, str] | None = None, scripts: Mapping[str, str] | None = None,
    conffiles: tuple[str, ...] = (), more: Mapping[str, str] | None = None,
) -> Deb:  # fmt: skip
    fields = {"Section": "multiverse/devel", "Multi-Arch": "foreign"}
    if depends:
        fields["Depends"] = ", ".join(depends)
    return Deb(
        name, version, fields={**fields, **(more or {})}, files=files or {}, links=links or {},
        scripts=scripts or {}, conffiles=conffiles,
    )  # fmt: skip


def _part(release: Release, part: str, needs: tuple[str, ...], ptxas: Mapping[str, bytes]) -> Deb:
    home, name = f"/usr/local/cuda-{release.short}", release.name(part)
    lib = f"{home}/targets/x86_64-linux/lib"
    stem = part.removesuffix("-X")
    depends = [_bound(release, need) for need in needs]
    files: Files = {f"/usr/share/doc/{name}/copyright": (b"Rehearsal stand-in; holds no NVIDIA code.\n", 0o644)}
    links: dict[str, str] = {}
    scripts: Mapping[str, str] = {}
    conffiles: tuple[str, ...] = ()
    library = {**vendor.LIBRARIES, **vendor.OTHER_LIBRARIES}.get(stem.removesuffix("-dev"))
    if library is not None:
        base, number = f"{library[0]}.so", library[1] if release.major == "12" else library[2]
        if stem.endswith("-dev"):
            links[f"{lib}/{base}"] = f"{base}.{number}"
        else:
            full = f"{base}.{number}.{release.part_version(part)}"
            files[f"{lib}/{full}"] = (shared_library(f"{base}.{number}"), 0o644)
            links[f"{lib}/{base}.{number}"] = full
            scripts = _LINKER_TRIGGER
            if stem != "cuda-opencl":
                depends += [release.name(common) for common in vendor.CONFIG_COMMON]
    if part == "cuda-nvcc-X":
        files[f"{home}/bin/nvcc"] = (_nvcc(release), 0o755)
        if release.ptxas:
            copyright_ = b"Rehearsal stand-in; bin/ptxas is NVIDIA's own, out of its wheel " + release.ptxas.encode()
            files[f"/usr/share/doc/{name}/copyright"] = (copyright_ + b"\n", 0o644)
            files[f"{home}/bin/ptxas"] = (ptxas[release.ptxas], 0o755)
    elif part == "cuda-cudart-X":
        links[f"{home}/lib64"] = "targets/x86_64-linux/lib"
    elif part == "cuda-cudart-dev-X":
        links[f"{home}/include"] = "targets/x86_64-linux/include"
        files[f"{home}/targets/x86_64-linux/include/cuda_runtime.h"] = (b"/* rehearsal stand-in */\n", 0o644)
    elif part == "libcufile-X":
        conffiles = (f"{home}/gds/cufile.json",)
        files[conffiles[0]] = (b'{"logging": {"level": "ERROR"}}\n', 0o644)
    version = f"{release.part_version(part)}-1"
    return _deb(name, version, depends, files, links=links, scripts=scripts, conffiles=conffiles)


def _nvcc(release: Release) -> bytes:
    text = _NVCC
    for mark, value in (
        ("@SHORT@", release.short), ("@NVCC@", release.nvcc), ("@BUILT@", release.built),
        ("@YEAR@", release.built[-4:]), ("@COMPILER@", release.compiler),
    ):  # fmt: skip
        text = text.replace(mark, value)
    return text.encode()


def _shared(release: Release) -> Iterator[Deb]:
    """Yield what toolkits share: the alternative, and the linker's settings by major version and for all."""
    version = f"{release.part_version('cuda-cudart-X')}-1"
    short, major = release.short, release.major
    values = {"short": short, "major": major, "priority": short.replace(".", "")}
    scripts = {"postinst": _ALTERNATIVES.format(**values), "prerm": _NO_ALTERNATIVES.format(**values)}
    own, of_major, of_all = (release.name(pattern) for pattern in vendor.CONFIG_COMMON)
    yield Deb(own, version, "all", fields={"Section": "multiverse/devel"}, scripts=scripts)
    for name, file, folder in (
        (of_major, f"988_cuda-{major}.conf", f"/usr/local/cuda-{major}"),
        (of_all, "000_cuda.conf", "/usr/local/cuda"),
    ):
        path = f"/etc/ld.so.conf.d/{file}"
        yield Deb(
            name, version, "all", fields={"Section": "multiverse/devel"}, conffiles=(path,),
            files={path: (f"{folder}/targets/x86_64-linux/lib\n".encode(), 0o644)},
            scripts={"postinst": _LDCONFIG},
        )  # fmt: skip


def _moving(release: Release) -> Iterator[Deb]:
    """Yield the metas whose newest version is always the newest toolkit."""
    targets = {
        "cuda": "cuda-X",
        "cuda-toolkit": "cuda-toolkit-X",
        f"cuda-toolkit-{release.major}": "cuda-toolkit-X",
    }
    for name, target in targets.items():
        yield _deb(name, f"{release.version}-1", [_bound(release, target)])


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
    """Return the vendor's pin file, with the stanzas of `cuda-ubuntu2204.pin`."""
    never = {"nsight-compute": ("origin *ubuntu.com*", -1), "nsight-systems": ("origin *ubuntu.com*", -1)}
    ours = dict.fromkeys(("nvidia-modprobe", "nvidia-settings", "*"), ("release l=NVIDIA CUDA", 600))
    return "\n".join(
        f"Package: {name}\nPin: {pin}\nPin-Priority: {priority}\n"
        for name, (pin, priority) in {**never, **ours}.items()
    ).encode()
