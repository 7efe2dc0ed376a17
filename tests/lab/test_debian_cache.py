"""The cache in front of a Debian mirror, against a real upstream on loopback."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rackwright.lab.debian import DebianCache, UpstreamError

CHANGED = "Sat, 10 Jun 2023 12:00:00 GMT"


class Upstream:
    """A mirror whose behaviour a test sets by path."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.status = 200
        self.short_of = 0
        self.body = b"content"
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                upstream.asked[self.path] += 1
                time.sleep(0.1)
                self.send_response(upstream.status)
                self.send_header("Content-Length", str(len(upstream.body) + upstream.short_of))
                self.send_header("Last-Modified", CHANGED)
                self.end_headers()
                self.wfile.write(upstream.body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/debian"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    one = Upstream()
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_a_file_is_fetched_once_however_many_ask(upstream: Upstream, tmp_path: Path) -> None:
    relays = [DebianCache(tmp_path, upstream.url) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda n: relays[n % 2].get("/debian/pool/main/h/hello.deb"), range(8)))
    assert {path.read_bytes() for path in got} == {b"content"}
    assert upstream.asked == {"/debian/pool/main/h/hello.deb": 1}
    assert got[0].stat().st_mtime == 1686398400  # the mirror's time, which apt asks by


def test_an_index_is_asked_for_again_after_an_hour_a_package_never(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DebianCache(tmp_path, upstream.url)
    paths = ("/debian/dists/bookworm/InRelease", "/debian/pool/a.deb", "/debian/dists/x/by-hash/SHA256/00")
    for path in paths:
        cache.get(path)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    for path in paths:
        cache.get(path)
    assert [upstream.asked[path] for path in paths] == [2, 1, 1]


def test_a_file_that_breaks_off_is_not_kept(upstream: Upstream, tmp_path: Path) -> None:
    cache = DebianCache(tmp_path, upstream.url)
    upstream.short_of = 10
    with pytest.raises(UpstreamError, match="7 of 17 bytes"):
        cache.get("/debian/pool/a.deb")
    upstream.short_of = 0
    assert cache.get("/debian/pool/a.deb").read_bytes() == b"content"
    assert not list(tmp_path.glob("new-*"))


@pytest.mark.parametrize(("said", "answered"), [(404, 404), (403, 404), (500, 502), (503, 502)])
def test_what_the_mirror_does_not_give(upstream: Upstream, tmp_path: Path, said: int, answered: int) -> None:
    upstream.status = said
    with pytest.raises(UpstreamError) as caught:
        DebianCache(tmp_path, upstream.url).get("/debian/pool/a.deb")
    assert caught.value.status == answered


def test_without_the_mirror_an_old_index_is_served(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DebianCache(tmp_path, upstream.url)
    kept = cache.get("/debian/dists/bookworm/InRelease")
    upstream.status, upstream.body = 500, b"trouble"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 4000)
    assert cache.get("/debian/dists/bookworm/InRelease").read_bytes() == b"content"
    assert kept.exists()
    assert upstream.asked["/debian/dists/bookworm/InRelease"] == 2


@pytest.mark.parametrize("path", ["/debian", "/debian/", "/debian/dists/", "/debian/../etc/passwd", "/debian/%2e%2e/x"])
def test_what_is_no_file_is_not_asked_for(upstream: Upstream, tmp_path: Path, path: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        DebianCache(tmp_path, upstream.url).get(path)
    assert caught.value.status == 404
    assert not upstream.asked


def test_left_overs_of_a_killed_relay_go_and_those_at_work_stay(tmp_path: Path) -> None:
    old, young = tmp_path / "new-old", tmp_path / "new-young"
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    DebianCache(tmp_path, "http://127.0.0.1:9/debian")
    assert not old.exists()
    assert young.exists()
