"""The lab's vendor mirror: signed flat apt repositories in the vendors' layout, built once and cached.

One folder below `www` for each vendor host name. Beside NVIDIA's own name stand mirrors that must be refused: signed by
a rogue key, by the rotated old key, expired, half synchronised, an HTML page. `cuda-nvcc-12-2` holds NVIDIA's own ptxas.
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
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rackwright import sources
from rackwright.errors import HostFailure, Problem
from rackwright.lab import deb, vendor

NVIDIA_HOST = "developer.download.nvidia.com"
_PATH = "compute/cuda/repos"
_VARIANTS = ("rogue.mirror.lab", "old.mirror.lab", "expired.mirror.lab", "half.mirror.lab", "html.mirror.lab")
_WHEEL = "nvidia-cuda-nvcc-cu12==12.2.140"
_KEYS = ("vendor", "old", "rogue")


@dataclass(frozen=True)
class Mirror:
    """A mirror that is built: what to serve, and the keys that sign it."""

    www: Path
    """One folder for each vendor host name."""
    keys: Path
    """Armored public keys: vendor.asc (in the vendor's place), old.asc (rotated out), rogue.asc (to be refused)."""
    fingerprints: Mapping[str, str]
    """`vendor`, `old`, `rogue` -> fingerprint."""
    hosts: tuple[str, ...] = (NVIDIA_HOST, *_VARIANTS)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the key in the vendor's place."""
        return self.fingerprints["vendor"]

    @property
    def key(self) -> Path:
        """Return the file of the key in the vendor's place."""
        return self.keys / "vendor.asc"


def build(cache: Path) -> Mirror:
    """Return the mirror, built into `cache` unless it is there. Safe beside another builder, and when killed."""
    for tool, package in (("gpg", "gnupg"),):
        if shutil.which(tool) is None:
            raise HostFailure(Problem(f"{tool} is not installed", "the lab's mirror", f"apt-get install {package}"))
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "mirror.lock"):
        keys, fingerprints = _keys(cache)
        recipe = hashlib.sha256()
        for module in (deb, vendor, sys.modules[__name__]):
            recipe.update(Path(str(module.__file__)).read_bytes())
        recipe.update(repr(sorted(fingerprints.items())).encode())
        done = cache / f"mirror-{recipe.hexdigest()[:16]}"
        if not done.exists():
            for stale in cache.glob("mirror-*"):
                if stale.is_dir():
                    shutil.rmtree(stale)
            unfinished = Path(tempfile.mkdtemp(dir=cache, prefix="mirror-new-"))
            unfinished.chmod(0o755)
            _write(unfinished, keys, _ptxas(cache))
            unfinished.rename(done)
        return Mirror(www=done, keys=keys, fingerprints=fingerprints)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _gpg(home: Path, *argv: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["gpg", "--homedir", str(home), "--batch", "--no-tty", "--quiet", *argv], input=stdin, capture_output=True
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise HostFailure(Problem(f"gpg failed: {said}", str(home), "remove that folder, and try again"))
    return done.stdout


@contextmanager
def _agent(home: Path) -> Iterator[None]:
    try:
        yield
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True)


def _keys(cache: Path) -> tuple[Path, dict[str, str]]:
    """Return the folder of the public keys, made once, and their fingerprints."""
    folder = cache / "keys"
    if not folder.exists():
        new = Path(tempfile.mkdtemp(dir=cache, prefix="keys-new-"))
        home = new / "gnupg"
        home.mkdir(mode=0o700)
        with _agent(home):
            for name in _KEYS:
                identity = f"rackwright lab, {name} key <{name}@lab.invalid>"
                _gpg(home, "--passphrase", "", "--quick-generate-key", identity, "rsa2048", "sign", "never")
                (new / f"{name}.asc").write_bytes(_gpg(home, "--armor", "--export", f"{name}@lab.invalid"))
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


def _ptxas(cache: Path) -> bytes:
    """Return NVIDIA's ptxas 12.2, out of its wheel on the Python package index; kept in the cache."""
    kept = cache / "ptxas-12.2.140"
    if kept.exists():
        return kept.read_bytes()
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
             "--platform", "manylinux1_x86_64", "--dest", folder, _WHEEL],
            capture_output=True, text=True,
        )  # fmt: skip
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise HostFailure(
                Problem(
                    f"pip cannot fetch {_WHEEL}, which holds the ptxas of the rehearsal",
                    done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip download",
                    "give this machine a Python package index, or put the file at " + str(kept),
                )
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read("nvidia/cuda_nvcc/bin/ptxas")
    temporary = kept.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.rename(kept)
    return content


def _write(root: Path, keys: Path, ptxas: bytes) -> None:
    url = f"https://{NVIDIA_HOST}/{_PATH}"
    repos = root / NVIDIA_HOST / _PATH
    jammy = [
        *vendor.toolkit(vendor.CUDA_12_2_0, ptxas=ptxas), *vendor.toolkit(vendor.CUDA_12_2_2, ptxas=ptxas),
        *vendor.toolkit(vendor.CUDA_12_4, ptxas=b""), *vendor.toolkit(vendor.CUDA_13_0, ptxas=b""),
        *vendor.shared(vendor.CUDA_12_2_0), *vendor.shared(vendor.CUDA_12_2_2),
        *vendor.shared(vendor.CUDA_12_4), *vendor.shared(vendor.CUDA_13_0),
        *vendor.moving_metas(vendor.CUDA_13_0, vendor.CUDA_12_4), *vendor.drivers(535, "535.104.05"),
    ]  # fmt: skip
    noble = [
        *vendor.toolkit(vendor.CUDA_12_5, ptxas=b""), *vendor.toolkit(vendor.CUDA_12_6, ptxas=b""),
        *vendor.shared(vendor.CUDA_12_5), *vendor.shared(vendor.CUDA_12_6), *vendor.drivers(560, "560.35.05"),
    ]  # fmt: skip
    bookworm = [
        *vendor.toolkit(vendor.CUDA_12_3, ptxas=b""), *vendor.toolkit(vendor.CUDA_12_4, ptxas=b""),
        *vendor.shared(vendor.CUDA_12_3), *vendor.shared(vendor.CUDA_12_4), *vendor.drivers(545, "545.23.08"),
    ]  # fmt: skip
    key = (keys / "vendor.asc").read_bytes()
    binary = _gpg(keys / "gnupg", "--dearmor", stdin=key)
    with _agent(keys / "gnupg"):
        for directory, packages in (("ubuntu2204", jammy), ("ubuntu2404", noble), ("debian12", bookworm)):
            folder = repos / directory / "x86_64"
            folder.mkdir(parents=True)
            index = _packages(folder, [*_unique(packages), vendor.keyring_package(directory, binary, url)])
            _sign(folder, index, keys, "vendor")
            (folder / sources.CUDA_KEY_FILE).write_bytes(key)
            (folder / "7fa2af80.pub").write_bytes((keys / "old.asc").read_bytes())
            (folder / f"cuda-{directory}.pin").write_bytes(vendor.pin())
        _variants(root, repos / "ubuntu2204" / "x86_64", keys)


def _unique(packages: Iterable[deb.Deb]) -> list[deb.Deb]:
    return list({(package.name, package.version): package for package in packages}.values())


def _packages(folder: Path, packages: Iterable[deb.Deb]) -> bytes:
    paragraphs = []
    for package in packages:
        content = deb.build(package)
        (folder / package.filename).write_bytes(content)
        paragraphs.append(deb.paragraph(package, content))
    return "\n".join(paragraphs).encode()


def _sign(folder: Path, index: bytes, keys: Path, signer: str, *, valid_until: str = "") -> None:
    """Write the indexes and the signed Release of a flat repository."""
    files = {"Packages": index, "Packages.gz": gzip.compress(index, compresslevel=6, mtime=0)}
    fields = {
        "Origin": "NVIDIA", "Label": sources.CUDA_LABEL, "Architecture": "x86_64",
        "Date": "Tue, 14 Nov 2023 22:13:20 UTC",
    }  # fmt: skip
    if valid_until:
        fields["Valid-Until"] = valid_until
    text = deb.release(files, fields=fields).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "Release").write_bytes(text)
    home, user = keys / "gnupg", f"{signer}@lab.invalid"
    (folder / "InRelease").write_bytes(_gpg(home, "--local-user", user, "--clearsign", stdin=text))
    (folder / "Release.gpg").write_bytes(
        _gpg(home, "--local-user", user, "--armor", "--detach-sign", stdin=text)
    )


def _variants(root: Path, genuine: Path, keys: Path) -> None:
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
        _sign(folder, content, keys, signer, valid_until=until)
        (folder / sources.CUDA_KEY_FILE).write_bytes((keys / f"{signer}.asc").read_bytes())
    page = root / "html.mirror.lab" / _PATH / "ubuntu2204" / "x86_64"
    page.mkdir(parents=True)
    for name in ("InRelease", "Release", "Packages"):
        (page / name).write_text("<!DOCTYPE html>\n<html lang=\"en\"><body>Unsupported distribution!</body></html>\n")
