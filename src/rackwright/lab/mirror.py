"""The lab's vendor mirror: signed flat apt repositories in the vendors' layout, built once and cached.

One folder below `www` for each vendor host name. Beside NVIDIA's own name stand mirrors that must be refused:
signed by a rogue key, by the rotated old key, expired, half synchronised, an HTML page. `cuda-nvcc-12-2` has
NVIDIA's own ptxas. The same recipe and keys give the same bytes.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rackwright import sources
from rackwright.errors import HostFailure, Problem
from rackwright.lab import deb, elf, recipes, recipes_driver, recipes_kernel, vendor, vendor_driver
from rackwright.lab.devices import modfile

NVIDIA_HOST = "developer.download.nvidia.com"
ARCHIVE_HOST = "archive.mirror.lab"
"""Serves, below a folder for each system, what the distribution has of kernels and compilers."""
_PATH = "compute/cuda/repos"
_VARIANTS = ("rogue.mirror.lab", "old.mirror.lab", "expired.mirror.lab", "half.mirror.lab", "html.mirror.lab")
_KEYS = ("vendor", "old", "rogue")
_RECIPES = (deb, elf, recipes, recipes_driver, recipes_kernel, vendor, vendor_driver, modfile)
# Wheel -> sha256 of the ptxas in it.
_PTXAS = {
    "nvidia-cuda-nvcc-cu12==12.2.140": "879f3cb12b0b0417fba9bf4cfc77df94cdf55502f9fa59a08313a12fdbfc03ce",
    "nvidia-cuda-nvcc-cu12==12.4.131": "1173444a1de6fd2d0f183409c91ef7d05f66a55839dad8d8ab642b2596b79b0b",
    "nvidia-cuda-nvcc-cu12==12.6.85": "81ef7761e3769ec17980aba4e416ecbc85352b8dce26cdd392b7204302a909a2",
}
_TOOLS = {"gpg": "gnupg", "gpgconf": "gnupg", "setpriv": "util-linux"}
_PIP_TIMEOUT_S = 600
# Signatures and keys bear the packages' time, so that building again gives the same bytes.
_SIGNED = "20231114T221320"
_KEPT_S = 7 * 24 * 3600
"""How long a mirror of another recipe stays after its last use: a lab may still serve it."""


@dataclass(frozen=True)
class Mirror:
    """A mirror that is built: what to serve, and the keys that sign it."""

    www: Path
    """One folder for each vendor host name."""
    keys: Path
    """Armored public keys: vendor.asc (in the vendor's place), old.asc (rotated out), rogue.asc (refused)."""
    fingerprints: Mapping[str, str]
    """`vendor`, `old`, `rogue` -> fingerprint."""
    hosts: tuple[str, ...] = (NVIDIA_HOST, ARCHIVE_HOST, *_VARIANTS)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the key in the vendor's place."""
        return self.fingerprints["vendor"]

    @property
    def key(self) -> Path:
        """Return the file of the key in the vendor's place."""
        return self.keys / "vendor.asc"

    @property
    def old_fingerprint(self) -> str:
        """Return the fingerprint of the key that was rotated out."""
        return self.fingerprints["old"]

    @property
    def old_key(self) -> Path:
        """Return the file of the key that was rotated out."""
        return self.keys / "old.asc"

    @property
    def rogue_fingerprint(self) -> str:
        """Return the fingerprint of the key that must be refused."""
        return self.fingerprints["rogue"]

    @property
    def rogue_key(self) -> Path:
        """Return the file of the key that must be refused."""
        return self.keys / "rogue.asc"


def build(cache: Path) -> Mirror:
    """Return the mirror, built into `cache` unless it is there; builders wait for one another."""
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise HostFailure(Problem(f"{tool} is not installed", "the lab's mirror", f"apt-get install {package}"))
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "mirror.lock"):
        keys, fingerprints = _keys(cache)
        recipe = hashlib.sha256(repr((sorted(fingerprints.items()), sources.CUDA_LABEL)).encode())
        for module in (*_RECIPES, sys.modules[__name__]):
            recipe.update(Path(str(module.__file__)).read_bytes())
        done = cache / f"mirror-{recipe.hexdigest()[:16]}"
        if not done.exists():
            _tidy(cache)
            unfinished = Path(tempfile.mkdtemp(dir=cache, prefix="mirror-new-"))
            unfinished.chmod(0o755)
            _write(unfinished, keys, {wheel: _ptxas(cache, wheel) for wheel in _PTXAS})
            unfinished.rename(done)
        os.utime(done)
        return Mirror(www=done, keys=keys, fingerprints=fingerprints)


def _tidy(cache: Path) -> None:
    """Remove what a killed builder left behind, and mirrors not used for long. The caller holds the lock."""
    for path in (*cache.glob("mirror-*"), *cache.glob("keys-new-*"), *cache.glob("wheel-new-*")):
        unfinished = "-new-" in path.name
        if path.is_dir() and (unfinished or path.stat().st_mtime < time.time() - _KEPT_S):
            shutil.rmtree(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _gpg(home: Path, *argv: str, stdin: bytes = b"") -> bytes:
    fixed = ("--batch", "--no-tty", "--quiet", "--faked-system-time", _SIGNED)
    done = subprocess.run(
        ["gpg", "--homedir", str(home), *fixed, *argv],
        input=stdin,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise HostFailure(Problem(f"gpg failed: {said}", str(home.resolve().parent), "remove it and try again"))
    return done.stdout


@contextmanager
def _agent(home: Path) -> Iterator[Path]:
    """Give gpg's agent a short name of `home`, for a socket's path has 107 bytes (unix(7)); end it after."""
    with tempfile.TemporaryDirectory(prefix="rackwright-") as folder:
        short = Path(folder) / "gnupg"
        short.symlink_to(home.resolve())
        try:
            yield short
        finally:
            subprocess.run(["gpgconf", "--homedir", str(short), "--kill", "all"], capture_output=True)


def _keys(cache: Path) -> tuple[Path, dict[str, str]]:
    """Return the folder of the public keys, made once, and their fingerprints."""
    folder = cache / "signing-keys"
    if not folder.exists():
        new = Path(tempfile.mkdtemp(dir=cache, prefix="keys-new-"))
        home = new / "gnupg"
        home.mkdir(mode=0o700)
        with _agent(home) as short:
            for name in _KEYS:
                identity = f"rackwright lab, {name} key <{name}@lab.invalid>"
                _gpg(short, "--passphrase", "", "--quick-generate-key", identity, "rsa2048", "sign", "never")
                (new / f"{name}.asc").write_bytes(_gpg(short, "--armor", "--export", f"{name}@lab.invalid"))
        new.chmod(0o755)
        new.rename(folder)
    listing = {
        name: _gpg(folder / "gnupg", "--with-colons", "--show-keys", str(folder / f"{name}.asc")).decode()
        for name in _KEYS
    }
    return folder, {
        name: next(line.split(":")[9] for line in text.splitlines() if line.startswith("fpr"))
        for name, text in listing.items()
    }


def _ptxas(cache: Path, wheel: str) -> bytes:
    """Return NVIDIA's ptxas out of its wheel on the Python package index; kept in the cache."""
    kept = cache / f"ptxas-{wheel.rpartition('=')[2]}"
    if kept.exists():
        content = kept.read_bytes()
    else:
        with tempfile.TemporaryDirectory(dir=cache, prefix="wheel-new-") as folder:
            content = _from_wheel(Path(folder), wheel, kept)
    if hashlib.sha256(content).hexdigest() != _PTXAS[wheel]:
        what = f"this is not the ptxas of {wheel}"
        raise HostFailure(Problem(what, str(kept), "remove that file: the next run fetches it again"))
    if not kept.exists():
        temporary = cache / f"{kept.name}.new"
        temporary.write_bytes(content)
        temporary.rename(kept)
    return content


def _from_wheel(folder: Path, wheel: str, kept: Path) -> bytes:
    # setpriv: a pip that outlives its killed builder would go on writing where the next one tidies.
    argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    argv += [
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--platform",
        "manylinux1_x86_64",
        "--platform",
        "manylinux2014_x86_64",
    ]
    argv += ["--platform", "manylinux_2_17_x86_64", "--dest", str(folder), wheel]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, stdin=subprocess.DEVNULL)
        said = next(iter(done.stderr.strip().splitlines()[-1:]), "pip download")
    except subprocess.TimeoutExpired:
        said = f"no answer within {_PIP_TIMEOUT_S} s"
    found = list(folder.glob("*.whl"))
    if not found:
        raise HostFailure(
            Problem(
                f"pip cannot fetch {wheel}, which holds the rehearsal's ptxas",
                said,
                f"give this Python pip and a package index, or put the wheel's ptxas at {kept}",
            )
        )
    with zipfile.ZipFile(found[0]) as archive:
        return archive.read("nvidia/cuda_nvcc/bin/ptxas")


def _write(root: Path, keys: Path, ptxas: Mapping[str, bytes]) -> None:
    url = f"https://{NVIDIA_HOST}/{_PATH}"
    repos = root / NVIDIA_HOST / _PATH
    key = (keys / "vendor.asc").read_bytes()
    binary = _gpg(keys / "gnupg", "--dearmor", stdin=key)
    with _agent(keys / "gnupg") as home:
        for directory, offer in vendor.REPOSITORIES.items():
            folder = repos / directory / "x86_64"
            folder.mkdir(parents=True)
            packages = recipes.repository(directory, ptxas)
            index = _packages(folder, [*packages, recipes.keyring_package(directory, binary, url)])
            _sign(folder, index, home, "vendor")
            (folder / sources.CUDA_KEY_FILE).write_bytes(key)
            (folder / "7fa2af80.pub").write_bytes((keys / "old.asc").read_bytes())
            if offer.pin:
                (folder / f"cuda-{directory}.pin").write_bytes(recipes.pin())
        _variants(root, repos / "ubuntu2204" / "x86_64", keys, home)
        for flavour in recipes_kernel.LINES:
            folder = root / ARCHIVE_HOST / flavour
            folder.mkdir(parents=True)
            index = _packages(folder, recipes_kernel.repository(flavour))
            _sign(folder, index, home, "vendor", fields={"Origin": "rackwright lab", "Label": "rackwright lab"})


def _packages(folder: Path, packages: Iterable[deb.Deb]) -> bytes:
    paragraphs = []
    for package in packages:
        content = deb.build(package)
        (folder / package.filename).write_bytes(content)
        paragraphs.append(deb.paragraph(package, content))
    return "\n".join(paragraphs).encode()


def _sign(
    folder: Path,
    index: bytes,
    home: Path,
    signer: str,
    *,
    fields: Mapping[str, str] | None = None,
    valid_until: str = "",
) -> None:
    """Write the indexes and the signed Release of a flat repository; by default as the vendor's."""
    files = {"Packages": index, "Packages.gz": gzip.compress(index, compresslevel=6, mtime=0)}
    fields = {
        **(fields or {"Origin": "NVIDIA", "Label": sources.CUDA_LABEL}), "Architecture": "x86_64",
        "Date": "Tue, 14 Nov 2023 22:13:20 UTC",
    }  # fmt: skip
    if valid_until:
        fields["Valid-Until"] = valid_until
    text = deb.release(files, fields=fields).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "Release").write_bytes(text)
    user = f"{signer}@lab.invalid"
    (folder / "InRelease").write_bytes(_gpg(home, "--local-user", user, "--clearsign", stdin=text))
    (folder / "Release.gpg").write_bytes(_gpg(home, "--local-user", user, "--armor", "--detach-sign", stdin=text))


def _variants(root: Path, genuine: Path, keys: Path, home: Path) -> None:
    """Write the mirrors that go wrong, each in its own way, over the genuine packages."""
    index = (genuine / "Packages").read_bytes()
    half = b"\n\n".join(
        paragraph for paragraph in index.split(b"\n\n") if b"Package: cuda-nvprune-12-2\n" not in paragraph
    )
    for host, content, signer, until in (
        ("rogue.mirror.lab", index, "rogue", ""),
        ("old.mirror.lab", index, "old", ""),
        ("expired.mirror.lab", index, "vendor", "Wed, 15 Nov 2023 22:13:20 UTC"),
        ("half.mirror.lab", half, "vendor", ""),
    ):
        folder = root / host / _PATH / "ubuntu2204" / "x86_64"
        folder.mkdir(parents=True)
        for package in genuine.glob("*.deb"):
            (folder / package.name).symlink_to(os.path.relpath(package, folder))
        _sign(folder, content, home, signer, valid_until=until)
        (folder / sources.CUDA_KEY_FILE).write_bytes((keys / f"{signer}.asc").read_bytes())
    page = root / "html.mirror.lab" / _PATH / "ubuntu2204" / "x86_64"
    page.mkdir(parents=True)
    # A server that answers every name with a page, and 200: lists, keys and indexes alike.
    names = ("InRelease", "Release", "Release.gpg", "Packages", "Packages.gz", "cuda-ubuntu2204.list")
    for name in (*names, sources.CUDA_KEY_FILE):
        (page / name).write_text('<!DOCTYPE html>\n<html lang="en"><body>Unsupported distribution!</body></html>\n')
