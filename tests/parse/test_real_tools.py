"""The parsers against the tools themselves: dpkg, apt, gpg and update-alternatives of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackwright.lab import recipes
from rackwright_facts._parse import (
    alternatives,
    apt_index,
    apt_preferences,
    apt_simulate,
    apt_sources,
    cuda,
    cuda_set,
    debversion,
    dpkg,
    dpkg_verify,
    locks,
    openpgp,
    os_release,
)  # fmt: skip
from rackwright_facts._parse.dpkg import Package
from rackwright_facts.packages import INSTALLED

needs = {tool: pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}") for tool in
         ("dpkg", "apt-get", "gpg", "update-alternatives")}  # fmt: skip


def _fetched(stdout: str) -> set[str]:
    """Return what `apt-get update --print-uris` would fetch first of each repository."""
    found = {apt_sources.normal_uri(line.split("'")[1]) for line in stdout.splitlines() if line.startswith("'")}
    return {uri.removesuffix("/InRelease").replace("/.", "") for uri in found if uri.endswith("/InRelease")}


def _release(uri: str, suite: str) -> str:
    """Return where a repository's Release lies (sources.list(5): a suite with a slash is a path)."""
    return apt_sources.normal_uri(f"{uri}/{suite.strip('./')}" if suite.endswith("/") else f"{uri}/dists/{suite}")


def _run(*argv: str | Path, check: bool = True, **more: Any) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(argv, check=check, capture_output=True, text=True, env=environment, **more).stdout


_PART = st.text("0123456789abcAB.+~", min_size=1, max_size=8)


@needs["dpkg"]
@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), _PART, _PART, st.booleans()), min_size=8, max_size=8))
def test_versions_compare_as_dpkg_says(parts: list[tuple[int, str, str, bool]]) -> None:
    versions = [f"{epoch}:0{up}" + (f"-{rev}" if with_rev else "") for epoch, up, rev, with_rev in parts]
    pairs = [(a, b) for a in versions for b in versions[:4]]
    asks = "".join(f"dpkg --compare-versions '{a}' lt '{b}' && echo -1 || {{ dpkg --compare-versions '{a}' eq '{b}'"
                   f" && echo 0 || echo 1; }}\n" for a, b in pairs)  # fmt: skip
    said = [int(line) for line in _run("bash", "-c", asks).split()]
    assert [debversion.compare(a, b) for a, b in pairs] == said


@needs["dpkg"]
def test_every_package_of_this_machine_is_read() -> None:
    answer = subprocess.run(["bash", "-c", INSTALLED.command], check=True, capture_output=True).stdout
    packages = INSTALLED.parse(answer)
    assert len(packages) == len(_run("dpkg-query", "-W").splitlines())
    assert packages["bash"].installed
    for package in packages.values():
        for group in dpkg.parse_depends(package.depends):
            if package.installed:  # dpkg would not have configured it otherwise, if each of its parts is read right
                there = [packages[one.name] for one in group if one.name in packages]
                fits = any(dpkg.satisfied(one, packages[one.name].version) for one in group if one.name in packages)
                assert fits or not there or any(not one.installed for one in there) or package.state != "installed"


_SOURCES = {
    "plain.list": (
        "# comment\ndeb http://a.example/debian bookworm main contrib # more\n\n"
        "deb-src http://a.example/debian bookworm main\n"
    ),
    "options.list": "deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg trusted=yes] https://b.example/r/ ./\n",
    "flat.list": "deb [ arch=amd64,arm64 ]   https://c.example/repos/x86_64/   /\n",
    "one.sources": "Types: deb\nURIs: https://d.example/a https://d.example/b/\nSuites: s1 s2\nComponents: main\n",
    "two.sources": (
        "# c\nTypes: deb deb-src\nURIs: https://e.example/\nSuites: /\nSigned-By: /k.gpg\n\n"
        "Enabled: no\nTypes: deb\nURIs: https://f.example/\nSuites: x\nComponents: main\n"
    ),
    "key.sources": (
        "Types: deb\nURIs:\n https://g.example/one\n https://g.example/two\nSuites: x\nComponents: main\n"
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEZcz\n -----END PGP PUBLIC KEY BLOCK-----\n"
    ),
}
_UNREADABLE = {
    "page.list": '<!DOCTYPE html>\n<html lang="en">\n',
    "word.list": "deb\n",
    "nosuite.list": "deb http://a.example/debian\n",
    "nocomponent.list": "deb http://a.example/debian bookworm\n",
    "nouri.sources": "Types: deb\nSuites: x\nComponents: main\n",
    "page.sources": "<!DOCTYPE html>\n<html>\n",
}


@pytest.fixture
def apt(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run apt with all of its folders in a temporary one."""
    for folder in ("etc/sources.list.d", "etc/preferences.d", "lists/partial", "cache/archives/partial"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "status").touch()
    options = {
        "Dir::Etc": f"{tmp_path}/etc", "Dir::State::Lists": f"{tmp_path}/lists", "Dir::Cache": f"{tmp_path}/cache",
        "Dir::State::status": f"{tmp_path}/status", "Dir::State": f"{tmp_path}/state", "Dir::Etc::Parts": "/dev/null",
        "Acquire::Languages": "none",
    }  # fmt: skip
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [argv[0], *flags, *argv[1:]], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
        )

    return run


@needs["apt-get"]
@pytest.mark.parametrize("name", _SOURCES)
def test_entries_are_those_that_apt_reads(name: str, tmp_path: Path, apt: Callable[..., Any]) -> None:
    path = tmp_path / "etc/sources.list.d" / name
    path.write_text(_SOURCES[name])
    done = apt("apt-get", "update", "--print-uris")
    assert done.returncode == 0, done.stderr
    file = apt_sources.parse(str(path), path.read_bytes())
    assert file.problem == ""
    ours = {_release(u, s) for entry in file.entries if entry.enabled for u in entry.uris for s in entry.suites}
    assert ours == _fetched(done.stdout)


@needs["apt-get"]
@pytest.mark.parametrize("name", _UNREADABLE)
def test_what_apt_cannot_read_has_a_problem_with_its_line(name: str, tmp_path: Path, apt: Callable[..., Any]) -> None:
    path = tmp_path / "etc/sources.list.d" / name
    path.write_text(_UNREADABLE[name])
    assert apt("apt-get", "indextargets").returncode != 0
    assert "line 1" in apt_sources.parse(str(path), path.read_bytes()).problem


@needs["apt-get"]
@pytest.mark.parametrize(("name", "gone"), [
    ("plain.list", "a.example/debian"), ("options.list", "b.example/r"), ("one.sources", "d.example/a"),
    ("one.sources", "d.example/b"), ("two.sources", "e.example"), ("key.sources", "g.example/one"),
])  # fmt: skip
def test_apt_no_longer_sees_what_was_taken_out_and_all_else(
    name: str, gone: str, tmp_path: Path, apt: Callable[..., Any]
) -> None:
    other = "\n\nTypes: deb\nURIs: https://stays.example/\nSuites: x\nComponents: main\n" if "sources" in name else (
        "deb https://stays.example/ x main\n"
    )  # fmt: skip
    path = tmp_path / "etc/sources.list.d" / name
    text = (_SOURCES[name] + other).encode()
    file = apt_sources.parse(str(path), text)
    edited = apt_sources.without_uris(file, lambda uri: apt_sources.normal_uri(uri) == gone)
    assert edited is not None
    path.write_bytes(edited)
    done = apt("apt-get", "update", "--print-uris")
    assert done.returncode == 0, done.stderr
    kept = {
        _release(uri, suite)
        for entry in file.entries if entry.enabled
        for uri in entry.uris if apt_sources.normal_uri(uri) != gone
        for suite in entry.suites
    }  # fmt: skip
    assert _fetched(done.stdout) == kept
    assert b"stays.example" in edited
    changed = [line for line in text.split(b"\n") if line not in edited.split(b"\n")]
    assert all(gone.partition("/")[0].encode() in line or line == b"URIs:" for line in changed)


def test_a_file_with_nothing_else_is_given_up() -> None:
    file = apt_sources.parse("/x/a.list", b"# only this\ndeb https://a.example/ /\n")
    assert apt_sources.without_uris(file, lambda uri: True) is None


@pytest.mark.parametrize("spelling", [
    "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64",
    "http://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/",
    "HTTPS://Developer.Download.NVIDIA.com:443/compute//cuda/repos/ubuntu2204/x86_64//",
    "https://me:pw@developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86%5f64/",
    "tor+https://developer.download.nvidia.com./compute/cuda/repos/ubuntu2204/x86_64",
])  # fmt: skip
def test_one_repository_in_any_spelling(spelling: str) -> None:
    assert apt_sources.normal_uri(spelling) == "developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"


@given(st.binary(max_size=200), st.sampled_from(["/x/a.list", "/x/a.sources"]))
def test_any_bytes_are_a_file_or_a_problem(content: bytes, path: str) -> None:
    file = apt_sources.parse(path, content)
    edited = apt_sources.without_uris(file, lambda uri: True)
    if edited is not None:
        assert not [entry for entry in apt_sources.parse(path, edited).entries if entry.enabled]
    preferences = apt_preferences.parse("/x/p", content)
    rest = apt_preferences.without(preferences, preferences.stanzas[:1])
    if rest is not None and preferences.stanzas and not preferences.problem:
        assert apt_preferences.parse("/x/p", rest).stanzas == () or len(preferences.stanzas) > 1


def test_pins_are_taken_out_with_their_explanations_alone() -> None:
    text = (
        b"# the site's\nExplanation: keep\nPackage: bash\nPin: version 5*\nPin-Priority: 900\n\n"
        b"Explanation: goes\nPackage: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n\n"
        b"Package: nsight-compute\nPin: origin *ubuntu.com*\nPin-Priority: -1\n"
    )
    file = apt_preferences.parse("/etc/apt/preferences.d/x", text)
    assert [(one.package, one.pin, one.priority) for one in file.stanzas] == [
        (("bash",), "version 5*", 900), (("*",), "release l=NVIDIA CUDA", 600),
        (("nsight-compute",), "origin *ubuntu.com*", -1),
    ]  # fmt: skip
    rest = apt_preferences.without(file, [file.stanzas[1]])
    assert rest is not None
    assert rest == text[: text.index(b"Explanation: goes")] + text[text.index(b"Package: nsight") :]


@pytest.fixture(scope="module")
def gnupg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., bytes]]:
    home = tmp_path_factory.mktemp("g")
    home.chmod(0o700)

    def gpg(*argv: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", *argv],
            input=stdin, capture_output=True, check=True,
        ).stdout  # fmt: skip

    yield gpg
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


@needs["gpg"]
def test_keys_are_those_that_gpg_made(gnupg: Callable[..., bytes]) -> None:
    for name, kind in (("one", "rsa2048"), ("two", "ed25519"), ("three", "rsa2048")):
        gnupg("--quick-generate-key", f"{name}@lab.invalid", kind, "default", "never")
    listed = gnupg("--with-colons", "--list-keys").decode().splitlines()
    primary = [after.split(":")[9] for line, after in pairwise(listed) if line.startswith("pub")]
    binary, armored = gnupg("--export"), gnupg("--armor", "--export")
    assert list(openpgp.fingerprints(binary)) == primary
    assert list(openpgp.fingerprints(armored)) == primary
    blocks = b"".join(gnupg("--armor", "--export", one).replace(b"\n", b"\r\n") for one in primary)
    assert list(openpgp.fingerprints(b"a word before\n" + blocks)) == primary
    alone = openpgp.only(armored, primary[1])
    assert openpgp.fingerprints(alone) == (primary[1],)
    shown = gnupg("--with-colons", "--show-keys", stdin=alone).decode()
    assert next(line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr")) == primary[1]
    assert list(openpgp.fingerprints(openpgp.without(binary, primary[:1]))) == primary[1:]
    with pytest.raises(ValueError, match="no key"):
        openpgp.only(binary, "A" * 40)
    with pytest.raises(ValueError, match="secret"):
        openpgp.fingerprints(gnupg("--export-secret-keys", "two@lab.invalid"))
    for cut in (binary[:-3], armored[: len(armored) // 2]):
        with pytest.raises(ValueError, match=r"."):
            openpgp.fingerprints(cut)


@given(st.binary(max_size=100))
def test_any_bytes_are_keys_or_a_reason(data: bytes) -> None:
    try:
        openpgp.fingerprints(data)
    except ValueError as error:
        assert str(error)


@needs["update-alternatives"]
def test_alternatives_as_they_really_answer(tmp_path: Path) -> None:
    for folder in ("alt", "admin", "cuda-12.2", "cuda-12.4"):
        (tmp_path / folder).mkdir()
    tool = ["update-alternatives", "--altdir", f"{tmp_path}/alt", "--admindir", f"{tmp_path}/admin"]
    for path, priority in (("cuda-12.2", "122"), ("cuda-12.4", "124")):
        _run(*tool, "--install", f"{tmp_path}/cuda", "cuda", f"{tmp_path}/{path}", priority)
    answer = alternatives.parse_query(_run(*tool, "--query", "cuda"))
    assert (answer.status, answer.value) == ("auto", f"{tmp_path}/cuda-12.4")
    assert answer.choices == {f"{tmp_path}/cuda-12.2": 122, f"{tmp_path}/cuda-12.4": 124}
    _run(*tool, "--set", "cuda", f"{tmp_path}/cuda-12.2")
    answer = alternatives.parse_query(_run(*tool, "--query", "cuda"))
    assert (answer.status, answer.value, answer.link) == ("manual", f"{tmp_path}/cuda-12.2", f"{tmp_path}/cuda")


@needs["apt-get"]
def test_simulations_as_apt_prints_them(tmp_path: Path, apt: Callable[..., Any]) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    debs = [one for one in recipes.repository("ubuntu2204", defaultdict(bytes)) if not one.name.startswith("nsight")]
    paragraphs = (f"{one.control()}Filename: ./{one.filename}\nSize: 1\nSHA256: {'0' * 64}\n" for one in debs)
    (repository / "Packages").write_text("\n".join(paragraphs))
    (tmp_path / "etc/sources.list.d/x.list").write_text(f"deb [trusted=yes] copy:{repository} ./\n")
    # Installed: an older driver-free set of two, one of which the wanted one will move.
    (tmp_path / "status").write_text(
        "Package: cuda-cccl-12-2\nStatus: hold ok installed\nVersion: 12.2.53-1\nArchitecture: amd64\nMaintainer: x\n"
        "Description: x\n\nPackage: cuda-12-2\nStatus: install ok installed\nVersion: 12.2.0-1\nArchitecture: amd64\n"
        "Maintainer: x\nDescription: x\n\n"
    )
    assert apt("apt-get", "update", "-qq").returncode == 0
    wanted = (
        "-s",
        "-V",
        "install",
        "--no-install-recommends",
        "--allow-change-held-packages",
        "-o",
        "APT::Architecture=amd64",
    )
    done = apt("apt-get", *wanted, "cuda-cccl-12-2=12.2.140-1", "libcublas-12-2", "cuda-12-2-")
    result = apt_simulate.parse(done.stdout + done.stderr)
    steps = {step.name: (step.old, step.new, step.architecture) for step in result.installs}
    assert steps["cuda-cccl-12-2"] == ("12.2.53-1", "12.2.140-1", "amd64")
    assert steps["libcublas-12-2"][0] is None
    assert [(step.name, step.old) for step in result.removals] == [("cuda-12-2", "12.2.0-1")]
    assert result.errors == ()
    unmet = apt("apt-get", *wanted, "cuda-toolkit-12-2=12.2.2-1")  # nsight is not there
    assert any("nsight" in line for line in apt_simulate.parse(unmet.stdout + unmet.stderr).errors)
    unknown = apt("apt-get", *wanted, "cuda-toolkit-12-2=99")
    assert apt_simulate.parse(unknown.stdout + unknown.stderr).errors


@pytest.fixture(scope="module")
def offered() -> tuple[apt_index.Available, ...]:
    debs = recipes.repository("ubuntu2204", defaultdict(bytes))
    return apt_index.parse_packages("\n".join(f"{deb.control()}Size: 1\n" for deb in debs))


def _installed(offered: tuple[apt_index.Available, ...], versions: dict[str, str]) -> dict[str, Package]:
    """Return these packages as dpkg would have them, with the one that the distribution brings."""
    depends = {(one.name, one.version): one.depends for one in offered} | {("libtinfo5", "6.3-2"): ""}
    return {
        name: Package(
            name=name, version=version, architecture="amd64", want="hold", state="installed",
            depends=depends[name, version],
        )
        for name, version in {**versions, "libtinfo5": "6.3-2"}.items()
    }  # fmt: skip


@pytest.mark.parametrize(("version", "nvcc"), [("12.2.0-1", "12.2.91-1"), ("12.2.2-1", "12.2.140-1")])
def test_a_release_is_its_own_parts_and_known_again(
    offered: tuple[apt_index.Available, ...], version: str, nvcc: str
) -> None:
    versions = cuda_set.resolve(offered, "cuda-toolkit-12-2", version, {})
    assert versions["cuda-nvcc-12-2"] == nvcc
    assert not [name for name in versions if name.startswith(("cuda-drivers", "nvidia", "cuda-runtime"))]
    there = _installed(offered, versions)
    assert cuda_set.installed_set(there, "12.2") == versions
    assert cuda_set.installed_set(there, version.removesuffix("-1")) == versions
    assert cuda_set.installed_set(there, "12.4") is None
    for name in versions:  # any one part missing, half configured or to be installed again
        for change in ({"state": "half-configured"}, {"reinst_required": True}, None):
            broken = {**there}
            if change is None:
                del broken[name]
            else:
                broken[name] = there[name].model_copy(update=change)
            assert cuda_set.installed_set(broken, "12.2") is None, (name, change)


def test_a_part_of_another_patch_level_breaks_the_set(offered: tuple[apt_index.Available, ...]) -> None:
    new = _installed(offered, cuda_set.resolve(offered, "cuda-toolkit-12-2", "12.2.2-1", {}))
    old = _installed(offered, cuda_set.resolve(offered, "cuda-toolkit-12-2", "12.2.0-1", {}))
    # Newer parts satisfy the older meta's `>=`, and apt says nothing: it is not the set that was released.
    assert cuda_set.installed_set({**new, "cuda-toolkit-12-2": old["cuda-toolkit-12-2"]}, "12.2") is None
    assert cuda_set.installed_set({**old, "cuda-nvcc-12-2": new["cuda-nvcc-12-2"]}, "12.2") is None


def test_a_repository_that_lacks_a_part_is_told(offered: tuple[apt_index.Available, ...]) -> None:
    half = [one for one in offered if one.name != "cuda-nvprune-12-2"]
    with pytest.raises(ValueError, match="cuda-nvprune-12-2, which the repository does not have"):
        cuda_set.resolve(half, "cuda-toolkit-12-2", "12.2.2-1", {})


def test_small_answers() -> None:
    assert os_release.parse('ID=ubuntu\nVERSION_ID="22.04"\nNAME=\'a b\'\n# x\nbad line\nX="open\n') == {
        "ID": "ubuntu", "VERSION_ID": "22.04", "NAME": "a b",
    }  # fmt: skip
    assert locks.parse("/var/lib/dpkg/lock-frontend 4076 unattended-upgr\n\n")[0].pid == 4076
    verified = dpkg_verify.parse(
        "??5??????   /usr/bin/ls\nmissing     /usr/bin/nvcc\n??5?????? c /etc/bash.bashrc\nwarning: x\n"
    )
    assert verified.changed == ("/usr/bin/ls", "/usr/bin/nvcc")
    assert verified.conffiles == ("/etc/bash.bashrc",)
    said = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.2, V12.2.140\n"
    assert cuda.nvcc_version(said) == ("12.2", "12.2.140")
    proof = cuda.parse_proof(f"{said}@ failed 7 8 out of memory\n")
    assert (proof.mode, proof.passed, proof.gpus, str(proof)) == ("failed", 7, 8, "failed: out of memory")
    assert str(cuda.parse_proof(f"{said}@ ran 8 8\n")) == "ran 8/8"
    for text in (said, "", f"{said}@ danced 1 1\n"):
        with pytest.raises(ValueError, match=r"."):
            cuda.parse_proof(text)


_PARSERS: tuple[Callable[[str], object], ...] = (
    os_release.parse, locks.parse, dpkg_verify.parse, cuda.parse_proof, cuda.nvcc_version, dpkg.parse_query,
    dpkg.parse_depends, apt_index.parse_packages, apt_simulate.parse, alternatives.parse_query,
)  # fmt: skip


@given(st.one_of(st.text(max_size=200), st.text("Package: Version\n\t12.-@ ()[]|,=<>Inst", max_size=200)))
def test_any_text_is_a_model_or_a_reason(text: str) -> None:
    for parse in _PARSERS:
        try:
            parse(text)
        except ValueError:
            continue
