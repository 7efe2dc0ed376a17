"""The Debian mirror that this machine's own apt uses, and a cache in front of it that all labs share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rackwright.errors import HostFailure, Problem
from rackwright_facts._parse import apt_sources

MIRROR_VARIABLE = "RACKWRIGHT_DEBIAN_MIRROR"
_FRESH_S = 3600
_LEFT_S = 3600
_TIMEOUT_S = 60
_CHUNK = 1 << 16


def debian_mirror(etc: Path = Path("/etc/apt"), lists: Path = Path("/var/lib/apt/lists")) -> str:
    """Return the Debian mirror that this machine's apt uses, or the one that `$RACKWRIGHT_DEBIAN_MIRROR` names."""
    named = os.environ.get(MIRROR_VARIABLE)
    if named:
        if not named.startswith(("http://", "https://")):
            fix = f"export {MIRROR_VARIABLE}=http://MIRROR/debian"
            raise HostFailure(Problem(f"{named!r} is no http or https URL", f"${MIRROR_VARIABLE}", fix))
        return named.rstrip("/")
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        for entry in apt_sources.parse(str(path), path.read_bytes()).entries:
            for uri in entry.uris:
                if _is_debian(uri, entry, lists):
                    return uri.rstrip("/")
    fix = f"export {MIRROR_VARIABLE}=http://MIRROR/debian"
    raise HostFailure(Problem("no Debian mirror is known for the lab's hosts", f"{etc}: no entry serves Debian", fix))


def _is_debian(uri: str, entry: apt_sources.Entry, lists: Path) -> bool:
    """Return whether an entry is Debian's own archive: others too have `/debian`, a suite `bookworm` and `main`."""
    # Updates, backports and security have a hyphen: bookworm-security.
    suites = [suite for suite in entry.suites if "-" not in suite and "/" not in suite]
    if not (entry.enabled and "deb" in entry.types and "main" in entry.components and suites):
        return False
    if not uri.startswith(("http://", "https://")):
        return False
    keyrings = entry.options.get("signed-by", "").replace(",", " ").split()
    if any(Path(keyring).name.startswith("debian-archive-") for keyring in keyrings):
        return True
    return any(_origin(lists, uri, suite) == "Debian" for suite in suites)


def _origin(lists: Path, uri: str, suite: str) -> str | None:
    for name in ("InRelease", "Release"):
        path = lists / f"{apt_sources.list_prefix(uri)}dists_{suite}_{name}"
        if path.is_file():
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith("Origin:"):
                    return line.partition(":")[2].strip()
    return None


def apt_proxies() -> dict[str, str]:
    """Return the proxies that this machine's apt is told to use, by scheme."""
    found = {}
    for scheme in ("http", "https"):
        argv = ["apt-config", "dump", "--format", "%v%n", f"Acquire::{scheme}::Proxy"]
        try:
            said = subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said and said != "DIRECT":
            found[scheme] = said.splitlines()[0]
    return found


class UpstreamError(Exception):
    """The mirror did not give a file; `status` is what to answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class DebianCache:
    """Files of a Debian mirror, each fetched once by whoever asks first, in whichever lab."""

    def __init__(self, folder: Path, mirror: str, proxies: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._tops = {"debian": mirror, "debian-security": f"{mirror.rpartition('/')[0]}/debian-security"}
        handlers = [urllib.request.ProxyHandler(dict(proxies))] if proxies else []
        self._opener = urllib.request.build_opener(*handlers)
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("new-*"):  # of a relay that was killed; another's may be at work on younger ones
            if time.time() - left.stat().st_mtime > _LEFT_S:
                left.unlink(missing_ok=True)

    def serves(self, path: str) -> bool:
        """Return whether a request's path belongs to the mirror."""
        return path.strip("/").partition("/")[0] in self._tops

    def get(self, path: str) -> Path:
        """Return the file of a path such as `/debian/dists/...`; raises `UpstreamError`."""
        top, _, rest = path.lstrip("/").partition("/")
        if not rest or rest.endswith("/") or ".." in unquote(rest).split("/"):
            raise UpstreamError(404, "not a file")
        url = f"{self._tops[top]}/{rest}"
        name = hashlib.sha256(url.encode()).hexdigest()
        kept = self._folder / name
        # The lock holds between threads and between relays alike; a few files share one.
        with (self._folder / f"lock-{name[:2]}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _fresh(kept, rest):
                return kept
            try:
                self._fetch(url, kept)
            except urllib.error.HTTPError as error:
                if error.code in (403, 404, 410):
                    raise UpstreamError(404, str(error)) from error
                return _stale(kept, error)
            except OSError as error:
                return _stale(kept, error)
        return kept

    def _fetch(self, url: str, kept: Path) -> None:
        with self._opener.open(url, timeout=_TIMEOUT_S) as answer:
            handle, name = tempfile.mkstemp(dir=self._folder, prefix="new-")
            unfinished = Path(name)
            try:
                with os.fdopen(handle, "wb") as out:
                    shutil.copyfileobj(answer, out, _CHUNK)
                    size, promised = out.tell(), answer.headers.get("Content-Length")
                if promised is not None and size != int(promised):
                    raise OSError(f"{urlsplit(url).path}: {size} of {promised} bytes came")
                changed = answer.headers.get("Last-Modified")
                if changed is not None:
                    at = parsedate_to_datetime(changed).timestamp()
                    os.utime(unfinished, (at, at))
                unfinished.replace(kept)
            finally:
                unfinished.unlink(missing_ok=True)


def _fresh(kept: Path, path: str) -> bool:
    try:
        fetched = kept.stat().st_ctime  # the modification time is the mirror's
    except FileNotFoundError:
        return False
    unchanging = path.startswith("pool/") or "/by-hash/" in path
    return unchanging or time.time() - fetched < _FRESH_S


def _stale(kept: Path, error: Exception) -> Path:
    """Without the mirror an old index is better than none: the rehearsal goes on offline."""
    if kept.exists():
        return kept
    raise UpstreamError(502, f"the Debian mirror: {error}") from error
