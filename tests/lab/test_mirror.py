"""The vendor mirror as apt sees it: real apt with private lists, real gpg, NVIDIA's real ptxas."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rackwright.lab import elf, vendor_driver
from rackwright.lab.mirror import ARCHIVE_HOST, NVIDIA_HOST, Mirror
from rackwright_facts._parse import apt_index, driver_set
from rackwright_facts._parse.nvidia_driver import Flavour

REPOS = "compute/cuda/repos"
SYSTEMS = {"ubuntu2204": "ubuntu-22.04", "ubuntu2404": "ubuntu-24.04", "debian12": "debian-12"}
PTX = """.version 8.2
.target sm_90
.address_size 64
.visible .entry twice(.param .u64 a)
{
  .reg .b64 %rd<3>; .reg .f32 %f<3>;
  ld.param.u64 %rd1, [a]; ld.global.f32 %f1, [%rd1];
  add.f32 %f2, %f1, %f1; st.global.f32 [%rd1], %f2;
  ret;
}
"""
# What the toolkit needs of the distribution, as if installed: these tests need no Debian mirror.
STATUS = "".join(
    f"Package: {name}\nStatus: install ok installed\nVersion: 6.4-4\nArchitecture: amd64\n"
    "Maintainer: nobody <nobody@example.net>\nDescription: stub\n\n"
    for name in ("libtinfo5",)
)
# Every package that `apt-get install cuda-toolkit-12-2` brought on Ubuntu 22.04, by a published log.
REAL_CLOSURE = """
cuda-cccl-12-2 cuda-command-line-tools-12-2 cuda-compiler-12-2 cuda-crt-12-2 cuda-cudart-12-2
cuda-cudart-dev-12-2 cuda-cuobjdump-12-2 cuda-cupti-12-2 cuda-cupti-dev-12-2 cuda-cuxxfilt-12-2
cuda-documentation-12-2 cuda-driver-dev-12-2 cuda-gdb-12-2 cuda-libraries-12-2 cuda-libraries-dev-12-2
cuda-nsight-12-2 cuda-nsight-compute-12-2 cuda-nsight-systems-12-2 cuda-nvcc-12-2 cuda-nvdisasm-12-2
cuda-nvml-dev-12-2 cuda-nvprof-12-2 cuda-nvprune-12-2 cuda-nvrtc-12-2 cuda-nvrtc-dev-12-2 cuda-nvtx-12-2
cuda-nvvm-12-2 cuda-nvvp-12-2 cuda-opencl-12-2 cuda-opencl-dev-12-2 cuda-profiler-api-12-2
cuda-sanitizer-12-2 cuda-toolkit-12-2 cuda-toolkit-12-2-config-common cuda-toolkit-12-config-common
cuda-toolkit-config-common cuda-tools-12-2 cuda-visual-tools-12-2 gds-tools-12-2 libcublas-12-2
libcublas-dev-12-2 libcufft-12-2 libcufft-dev-12-2 libcufile-12-2 libcufile-dev-12-2 libcurand-12-2
libcurand-dev-12-2 libcusolver-12-2 libcusolver-dev-12-2 libcusparse-12-2 libcusparse-dev-12-2
libnpp-12-2 libnpp-dev-12-2 libnvjitlink-12-2 libnvjitlink-dev-12-2 libnvjpeg-12-2 libnvjpeg-dev-12-2
nsight-compute-2023.2.2 nsight-systems-2023.2.3
"""

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt is not installed on this machine")


class Apt:
    """apt-get with lists, cache, sources and status of its own."""

    def __init__(self, folder: Path, repository: Path, key: Path, *more: tuple[Path, Path]) -> None:
        for name in ("lists/partial", "cache/archives/partial", "etc"):
            (folder / name).mkdir(parents=True)
        (folder / "status").write_text(STATUS)
        entries = [f"deb [signed-by={one}] file:{where} /\n" for where, one in ((repository, key), *more)]
        (folder / "etc/sources.list").write_text("".join(entries))
        settings = {
            "Dir::Etc": folder / "etc", "Dir::Etc::sourceparts": "-", "Dir::Etc::sourcelist": "sources.list",
            "Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": "-", "Dir::Etc::parts": "-",
            "Dir::State::lists": folder / "lists", "Dir::State::status": folder / "status",
            "Dir::State": folder, "Dir::Cache": folder / "cache", "APT::Architecture": "amd64",
            "APT::Architectures": "amd64", "APT::Sandbox::User": "root", "Acquire::Languages": "none",
            "Acquire::Check-Valid-Until": "true", "Acquire::Check-Date": "true",
        }  # fmt: skip
        self.options = [argument for name, value in settings.items() for argument in ("-o", f"{name}={value}")]
        self.env = {"APT_CONFIG": "/dev/null", "LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["apt-get", *self.options, *argv], capture_output=True, text=True, env=self.env, timeout=60
        )

    def update(self) -> tuple[int, str]:
        done = self.run("update", "-o", "APT::Update::Error-Mode=any")
        return done.returncode, done.stdout + done.stderr

    def simulate(self, *packages: str) -> dict[str, str]:
        """Return package -> version of all that `apt-get install` would install."""
        done = self.run("-s", "install", "--no-install-recommends", *packages)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(re.findall(r"^Inst (\S+) \((\S+)", done.stdout, re.MULTILINE))


AptOf = Callable[..., Apt]


@pytest.fixture
def apt_of(built: Mirror, tmp_path: Path) -> AptOf:
    def make(directory: str = "ubuntu2204", *, host: str = NVIDIA_HOST, key: Path | None = None) -> Apt:
        repository = built.www / host / REPOS / directory / "x86_64"
        # Drivers need dkms, which is the distribution's.
        archive = (built.www / ARCHIVE_HOST / SYSTEMS[directory], built.key)
        return Apt(tmp_path / f"apt-{host}-{directory}", repository, key or built.key, archive)

    return make


@pytest.fixture
def jammy(apt_of: AptOf) -> Apt:
    apt = apt_of()
    assert apt.update()[0] == 0
    return apt


def test_fingerprints_are_those_of_the_key_files(built: Mirror) -> None:
    pairs = (
        (built.key, built.fingerprint), (built.old_key, built.old_fingerprint),
        (built.rogue_key, built.rogue_fingerprint),
    )  # fmt: skip
    for path, fingerprint in pairs:
        argv = ["gpg", "--with-colons", "--show-keys", str(path)]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert re.fullmatch(r"[0-9A-F]{40}", fingerprint)
        assert f"fpr:::::::::{fingerprint}:" in said
        assert path.read_text().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    assert len({fingerprint for _, fingerprint in pairs}) == 3


def test_layout_is_the_vendors(built: Mirror) -> None:
    folder = built.www / NVIDIA_HOST / REPOS / "ubuntu2204/x86_64"
    names = {path.name for path in folder.iterdir()}
    assert {
        "Packages", "Packages.gz", "Release", "Release.gpg", "InRelease", "3bf863cc.pub", "7fa2af80.pub",
        "cuda-keyring_1.1-1_all.deb", "cuda-ubuntu2204.pin", "cuda-toolkit-12-2_12.2.2-1_amd64.deb",
    } <= names  # fmt: skip
    assert (folder / "3bf863cc.pub").read_bytes() == built.key.read_bytes()
    assert (folder / "7fa2af80.pub").read_bytes() == built.old_key.read_bytes()
    release = (folder / "Release").read_text()
    assert release.startswith("Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitecture: x86_64\nDate: ")
    assert "Suite:" not in release
    assert {path.name for path in built.www.iterdir()} == set(built.hosts)


def test_everything_is_readable_by_others(built: Mirror) -> None:
    paths = [built.www, built.key, *built.www.rglob("*")]
    unreadable = [path for path in paths if not path.stat().st_mode & 0o004]
    assert len(paths) > 300
    assert not unreadable


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("12.2.0-1", {"cuda-nvcc-12-2": "12.2.140-1"}),
        (
            "12.2.2-1",
            {"cuda-nvcc-12-2": "12.2.140-1", "libcublas-12-2": "12.2.5.6-1", "libnpp-12-2": "12.2.1.4-1"},
        ),
    ],
)
def test_closure_of_the_toolkit_resolves_and_is_the_real_one(jammy: Apt, version: str, parts: dict[str, str]) -> None:
    found = jammy.simulate(f"cuda-toolkit-12-2={version}")
    assert found["cuda-toolkit-12-2"] == version
    # The metas ask by `>=`: apt takes the newest parts for the older toolkit, too.
    assert {name: found[name] for name in parts} == parts
    # The shared settings move on to the newest toolkit of all.
    assert found["cuda-toolkit-config-common"] == "13.0.96-1"
    assert found["cuda-toolkit-12-config-common"] == "12.4.127-1"
    assert found["cuda-toolkit-12-2-config-common"] == "12.2.140-1"
    assert not [name for name in found if "driver" in name and name != "cuda-driver-dev-12-2"]
    if version == "12.2.2-1":
        assert sorted(found) == sorted(REAL_CLOSURE.split())


def _as_released(index: str, meta: str, version: str) -> dict[str, str]:
    """Return the parts of a toolkit at the versions that its metas name as their bounds."""
    offered = {
        (found["Package"], found["Version"]): found.get("Depends", "")
        for found in (dict(re.findall(r"^(\S+): (.*)$", text, re.MULTILINE)) for text in index.split("\n\n"))
    }
    exact: dict[str, str] = {}
    todo = [(meta, version)]
    while todo:
        name, bound = todo.pop()
        exact[name] = min(v for n, v in offered if n == name and v.startswith(f"{bound.removesuffix('-1')}-"))
        depends = offered[name, exact[name]]
        todo += [pair for pair in re.findall(r"(\S+) \(>= (\S+)\)", depends) if pair[0] not in exact]
    return exact


def test_older_patch_level_can_be_had_whole(built: Mirror, jammy: Apt) -> None:
    index = (built.www / NVIDIA_HOST / REPOS / "ubuntu2204/x86_64/Packages").read_text()
    exact = _as_released(index, "cuda-toolkit-12-2", "12.2.0-1")
    assert exact["cuda-nvcc-12-2"] == "12.2.91-1"
    assert exact["cuda-cupti-12-2"] == "12.2.60-1"
    assert exact["nsight-compute-2023.2.0"] == "2023.2.0.16-1"
    found = jammy.simulate(*(f"{name}={version}" for name, version in exact.items()))
    assert {name: found[name] for name in exact} == exact
    assert set(found) - set(exact) == {
        "cuda-toolkit-config-common", "cuda-toolkit-12-config-common", "cuda-toolkit-12-2-config-common",
    }  # fmt: skip


@pytest.mark.parametrize("meta", ["cuda-12-2", "cuda-runtime-12-2", "cuda-demo-suite-12-2", "cuda"])
def test_runtime_metas_drag_a_driver_in_and_it_is_the_newest(jammy: Apt, meta: str) -> None:
    found = jammy.simulate(meta)
    assert found["cuda-drivers"] == "595.80-1"
    assert found["nvidia-driver"] == "595.80-1ubuntu1"
    assert "nvidia-driver-535" not in found


def test_two_driver_branches_exclude_each_other(built: Mirror, jammy: Apt) -> None:
    offer = driver_set.Offer(_index(built))
    one, other = (offer.resolve(version, "open", debian=False) for version in ("535.183.01", "580.95.05"))
    assert len(one) == 16
    assert jammy.simulate(*_exact(one)) == {**one, "dkms": jammy.simulate("dkms")["dkms"]}
    assert jammy.run("-s", "install", *_exact(one), *_exact(other)).returncode == 100
    assert jammy.run("-s", "install", "nvidia-driver-580", "nvidia-driver").returncode == 100


def test_the_last_535_is_a_dummy_that_brings_580(jammy: Apt) -> None:
    found = jammy.simulate("cuda-drivers-535")
    assert found["nvidia-driver-535"] == "535.309.01-0ubuntu1"
    assert found["nvidia-driver-580"] == "580.126.16-0ubuntu1"


def test_a_root_alone_does_not_bring_an_older_set(jammy: Apt) -> None:
    refused = jammy.run("-s", "install", "nvidia-driver-580-open=580.95.05-0ubuntu1")
    assert refused.returncode == 100
    assert "nvidia-dkms-580-open (= 580.95.05-0ubuntu1) but 580.126.16-0ubuntu1" in refused.stdout


@pytest.mark.parametrize("directory", ["ubuntu2204", "ubuntu2404", "debian12"])
@pytest.mark.parametrize("flavour", ["open", "proprietary"])
def test_every_driver_is_a_whole_set(built: Mirror, apt_of: AptOf, directory: str, flavour: Flavour) -> None:
    apt, debian = apt_of(directory), directory.startswith("debian")
    assert apt.update()[0] == 0
    offer = driver_set.Offer(_index(built, directory))
    for driver in vendor_driver.DRIVERS[directory]:
        assert driver.version in offer.upstreams(driver.branch, flavour, debian=debian)
        tools = ("nvidia-fabricmanager", "libnvidia-nscq")
        exact = offer.resolve(driver.version, flavour, debian=debian, tools=tools)
        found = apt.simulate(*_exact(exact))
        assert {name: found[name] for name in exact} == exact
        assert set(found) - set(exact) == {"dkms"}
        assert not [name for name in exact if name.endswith("-open") != (flavour == "open") and "dkms-" in name]
    assert "535.309.01" not in offer.upstreams(535, flavour, debian=debian)


def _index(built: Mirror, directory: str = "ubuntu2204") -> tuple[apt_index.Available, ...]:
    return apt_index.parse_packages((built.www / NVIDIA_HOST / REPOS / directory / "x86_64/Packages").read_text())


def _exact(versions: Mapping[str, str]) -> list[str]:
    return [f"{name}={version}" for name, version in versions.items()]


def test_utils_of_two_branches_exclude_each_other(built: Mirror) -> None:
    index = (built.www / NVIDIA_HOST / REPOS / "ubuntu2204/x86_64/Packages").read_text()
    package = index.partition("Package: nvidia-utils-535\n")[2].partition("\n\n")[0]
    assert {"Conflicts: nvidia-utils", "Replaces: nvidia-utils", "Provides: nvidia-utils"} <= set(package.split("\n"))


@pytest.mark.parametrize(
    ("meta", "version", "toolkit"),
    [
        ("cuda-toolkit", "13.0.2-1", "cuda-toolkit-13-0"),
        ("cuda-toolkit-12", "12.4.1-1", "cuda-toolkit-12-4"),
        ("cuda-toolkit=12.2.2-1", "12.2.2-1", "cuda-toolkit-12-2"),
    ],
)
def test_unversioned_metas_move_to_the_newest(jammy: Apt, meta: str, version: str, toolkit: str) -> None:
    found = jammy.simulate(meta)
    assert found[meta.partition("=")[0]] == version
    assert toolkit in found


@pytest.mark.parametrize(
    ("directory", "has", "lacks"),
    [("ubuntu2404", ("12-5", "12-6"), "12-2"), ("debian12", ("12-3", "12-4"), "12-2")],
)
def test_later_systems_have_no_12_2(apt_of: AptOf, directory: str, has: tuple[str, ...], lacks: str) -> None:
    apt = apt_of(directory)
    assert apt.update()[0] == 0
    for suffix in has:
        assert f"cuda-toolkit-{suffix}" in apt.simulate(f"cuda-toolkit-{suffix}")
    refused = apt.run("-s", "install", f"cuda-toolkit-{lacks}")
    assert refused.returncode == 100
    assert f"Unable to locate package cuda-toolkit-{lacks}" in refused.stderr


def test_debian_has_debians_names_of_the_driver(apt_of: AptOf) -> None:
    apt = apt_of("debian12")
    assert apt.update()[0] == 0
    found = apt.simulate("cuda-12-4")
    assert found["nvidia-driver"] == "595.80-1"
    assert {"libcuda1", "nvidia-kernel-dkms", "firmware-nvidia-gsp"} <= set(found)
    assert not [name for name in found if name.startswith("libnvidia-compute")]


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("rogue.mirror.lab", "NO_PUBKEY"),
        ("old.mirror.lab", "NO_PUBKEY"),
        ("expired.mirror.lab", "is expired"),
        ("html.mirror.lab", "is not signed|NOSPLIT|Clearsigned file"),
    ],
)
def test_apt_refuses_what_is_not_the_vendors(apt_of: AptOf, host: str, said: str) -> None:
    code, output = apt_of(host=host).update()
    assert code == 100
    assert re.search(said, output), output


@pytest.mark.parametrize(("host", "name"), [("rogue.mirror.lab", "rogue"), ("old.mirror.lab", "old")])
def test_a_refused_mirror_is_whole_but_for_its_key(built: Mirror, apt_of: AptOf, host: str, name: str) -> None:
    apt = apt_of(host=host, key=built.keys / f"{name}.asc")
    assert apt.update()[0] == 0
    assert apt.simulate("cuda-toolkit-12-2")["cuda-toolkit-12-2"] == "12.2.2-1"


def test_half_synchronised_mirror_lacks_one_part(apt_of: AptOf) -> None:
    apt = apt_of(host="half.mirror.lab")
    assert apt.update()[0] == 0
    refused = apt.run("-s", "install", "cuda-toolkit-12-2")
    assert refused.returncode == 100
    assert "cuda-nvprune-12-2" in refused.stdout


def test_every_package_downloads_with_the_hash_of_the_index(jammy: Apt, tmp_path: Path) -> None:
    names = sorted(jammy.simulate("cuda-12-2"))
    folder = tmp_path / "debs"
    folder.mkdir()
    done = subprocess.run(
        ["apt-get", *jammy.options, "download", *names],
        cwd=folder, capture_output=True, text=True, env=jammy.env, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("*.deb"))) == len(names)


def _unpack(built: Mirror, name: str, folder: Path) -> Path:
    package = built.www / NVIDIA_HOST / REPOS / "ubuntu2204/x86_64" / name
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    return folder


def _run(*argv: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in argv], cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("version", ["12.2.91", "12.2.140"])
def test_real_ptxas_assembles_a_kernel_for_sm_90(built: Mirror, tmp_path: Path, version: str) -> None:
    tools = _unpack(built, f"cuda-nvcc-12-2_{version}-1_amd64.deb", tmp_path) / "usr/local/cuda-12.2/bin"
    (tmp_path / "k.ptx").write_text(PTX)
    said = _run(tools / "ptxas", "--version", cwd=tmp_path).stdout
    assert "Cuda compilation tools, release 12.2, V12.2.140" in said
    done = _run(tools / "nvcc", "-cubin", "-arch=sm_90", "-o", "k.cubin", "k.ptx", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cubin = (tmp_path / "k.cubin").read_bytes()
    assert cubin[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", cubin, 18) == (190,)  # EM_CUDA
    assert struct.unpack_from("<I", cubin, 48)[0] & 0xFF == 90
    # It is an assembler and no file that says yes.
    (tmp_path / "bad.ptx").write_text(PTX.replace("add.f32", "add.f33"))
    assert _run(tools / "nvcc", "-cubin", "-arch", "sm_90", "bad.ptx", cwd=tmp_path).returncode != 0
    (tmp_path / "new.ptx").write_text(PTX.replace(".version 8.2", ".version 8.4"))
    newer = _run(tools / "ptxas", "-arch=sm_90", "new.ptx", cwd=tmp_path)
    assert newer.returncode != 0
    assert "Unsupported .version 8.4; current version is '8.2'" in newer.stdout + newer.stderr


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("12.2.91", ("Built on Tue_Jun_13_19:16:58_PDT_2023", "Build cuda_12.2.r12.2/compiler.32965470_0")),
        ("12.2.140", ("Built on Tue_Aug_15_22:02:13_PDT_2023", "Build cuda_12.2.r12.2/compiler.33191640_0")),
    ],
)
def test_nvcc_says_its_version_as_the_real_one(
    built: Mirror, tmp_path: Path, version: str, lines: tuple[str, str]
) -> None:
    nvcc = _unpack(built, f"cuda-nvcc-12-2_{version}-1_amd64.deb", tmp_path) / "usr/local/cuda-12.2/bin/nvcc"
    assert _run(nvcc, "--version", cwd=tmp_path).stdout.splitlines() == [
        "nvcc: NVIDIA (R) Cuda compiler driver",
        "Copyright (c) 2005-2023 NVIDIA Corporation",
        lines[0],
        f"Cuda compilation tools, release 12.2, V{version}",
        lines[1],
    ]


def test_nvcc_says_that_it_cannot_compile_cuda_cpp(built: Mirror, tmp_path: Path) -> None:
    nvcc = _unpack(built, "cuda-nvcc-12-2_12.2.140-1_amd64.deb", tmp_path) / "usr/local/cuda-12.2/bin/nvcc"
    (tmp_path / "k.cu").write_text("__global__ void k() {}\n")
    done = _run(nvcc, "-o", "k", "k.cu", cwd=tmp_path)
    assert done.returncode == 1
    assert "rehearsal stand-in" in done.stderr
    assert not (tmp_path / "k").exists()


def test_a_stand_in_library_loads_and_has_its_soname(tmp_path: Path) -> None:
    path = tmp_path / "libcudart.so.12.2.140"
    path.write_bytes(elf.shared_library("libcudart.so.12"))
    assert ctypes.CDLL(str(path))._name == str(path)
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    subprocess.run([ldconfig, "-n", str(tmp_path)], check=True)
    assert (tmp_path / "libcudart.so.12").readlink() == Path("libcudart.so.12.2.140")
