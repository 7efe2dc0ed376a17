"""The relay's server, on loopback."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackwright.lab.authority import authority, server_certificate
from rackwright.lab.relay import (
    PROXY_PASSWORD,
    PROXY_USER,
    Relay,
    certified,
    listen,
    server,
    span,
)

VENDOR = "vendor.example"
BODY = bytes(range(256)) * 4
Open = Callable[..., http.client.HTTPConnection]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def relay(tmp_path: Path, cache: Path) -> Relay:
    www = tmp_path / "www"
    (www / VENDOR / "repo").mkdir(parents=True)
    (www / VENDOR / "repo" / "a b.deb").write_bytes(BODY)
    (www / VENDOR / "empty").touch()
    (tmp_path / "secret").write_text("secret")
    (www / "loose").write_text("in no vendor's folder")
    one = Relay(www, None, ("127.0.0.1", "controller"), tmp_path / "log")
    one.tls = certified(server_certificate(cache, (VENDOR,), "127.0.0.1"))
    return one


@pytest.fixture
def start(relay: Relay) -> Iterator[Callable[[str], int]]:
    servers: list[ThreadingHTTPServer] = []

    def one(kind: str) -> int:
        servers.append(server(relay, listen("127.0.0.1", 0), kind))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1].server_port

    yield one
    for each in servers:
        each.shutdown()
        each.server_close()


def _get(port: int, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in named)
    for name, value in named.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


def test_a_vendor_by_its_name_and_by_path(start: Callable[[str], int]) -> None:
    port = start("plain")
    assert _get(port, "/repo/a%20b.deb", Host=VENDOR)[:2] == (200, BODY)
    assert _get(port, "/repo/a%20b.deb", Host=f"{VENDOR.upper()}:80")[:2] == (200, BODY)
    assert _get(port, f"/{VENDOR}/repo/a%20b.deb")[:2] == (200, BODY)
    assert _get(port, "/empty", Host=VENDOR)[:2] == (200, b"")
    assert _get(port, "/repo/none", Host=VENDOR)[0] == 404
    assert _get(port, "/repo", Host=VENDOR)[0] == 404


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/../secret", VENDOR),
        ("/%2e%2e/%2e%2e/secret", VENDOR),
        (f"/{VENDOR}/../../secret", "127.0.0.1"),
        ("/secret", ".."),
        ("/secret", ""),
        ("/loose", "127.0.0.1"),
        ("/%00", VENDOR),
        ("/debian/dists/x", "127.0.0.1"),
    ],
)
def test_nothing_outside_the_vendors_folders(start: Callable[[str], int], path: str, host: str) -> None:
    status, body, _ = _get(start("plain"), path, Host=host)
    assert status == 404
    assert b"secret" not in body


def test_head_and_conditions(start: Callable[[str], int]) -> None:
    port = start("plain")
    status, body, headers = _get(port, f"/{VENDOR}/repo/a%20b.deb", method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(BODY)))
    since, tag = headers["Last-Modified"], headers["ETag"]
    for condition in ({"If_Modified_Since": since}, {"If_None_Match": tag}, {"If_None_Match": f'"x", {tag}'}):
        assert _get(port, f"/{VENDOR}/repo/a%20b.deb", **condition)[:2] == (304, b"")
    for condition in (
        {"If_Modified_Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"If_None_Match": '"other"', "If_Modified_Since": since},
    ):
        assert _get(port, f"/{VENDOR}/repo/a%20b.deb", **condition)[:2] == (200, BODY)


@pytest.mark.parametrize(
    ("wanted", "begin", "end"),
    [("bytes=0-99", 0, 100), ("bytes=100-", 100, 1024), ("bytes=-24", 1000, 1024), ("bytes=1000-9999", 1000, 1024)],
)
def test_a_part(start: Callable[[str], int], wanted: str, begin: int, end: int) -> None:
    port = start("plain")
    status, body, headers = _get(port, f"/{VENDOR}/repo/a%20b.deb", Range=wanted)
    assert (status, body) == (206, BODY[begin:end])
    assert headers["Content-Range"] == f"bytes {begin}-{end - 1}/1024"
    changed = headers["Last-Modified"]
    assert _get(port, f"/{VENDOR}/repo/a%20b.deb", Range=wanted, If_Range=changed)[0] == 206
    stale = "Thu, 01 Jan 1970 00:00:00 GMT"
    assert _get(port, f"/{VENDOR}/repo/a%20b.deb", Range=wanted, If_Range=stale)[:2] == (200, BODY)


def test_a_part_that_is_not_there(start: Callable[[str], int]) -> None:
    port = start("plain")
    status, body, headers = _get(port, f"/{VENDOR}/repo/a%20b.deb", Range="bytes=1024-")
    assert (status, body, headers["Content-Range"]) == (416, b"", "bytes */1024")
    for wanted in ("bytes=0-1,5-6", "lines=1-2", "bytes=-", "bytes=5-2"):
        assert _get(port, f"/{VENDOR}/repo/a%20b.deb", Range=wanted)[:2] == (200, BODY)


@given(st.one_of(st.text(), st.from_regex(r"\Abytes=\d{0,3}-\d{0,3}\Z")), st.integers(0, 500))
def test_any_range_gives_a_part_of_the_file(wanted: str, size: int) -> None:
    try:
        part = span(wanted, size)
    except ValueError:
        return
    if part is not None:
        begin, end = part
        assert 0 <= begin < end <= size


def test_https_by_the_labs_authority_alone(start: Callable[[str], int], cache: Path) -> None:
    port = start("tls")
    trusting = ssl.create_default_context(cafile=str(authority(cache)))
    plain = socket.create_connection(("127.0.0.1", port), timeout=10)
    with trusting.wrap_socket(plain, server_hostname=VENDOR) as secured:
        secured.sendall(f"GET /repo/a%20b.deb HTTP/1.0\r\nHost: {VENDOR}\r\n\r\n".encode())
        assert b"200 OK" in secured.recv(1000)
    for context, name in ((ssl.create_default_context(), VENDOR), (trusting, "other.example")):
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        with plain, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname=name)


def test_a_client_that_says_nothing_holds_up_nobody(start: Callable[[str], int], cache: Path) -> None:
    port = start("tls")
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), timeout=5) as two:
        trusting = ssl.create_default_context(cafile=str(authority(cache)))
        trusting.wrap_socket(two, server_hostname=VENDOR).close()


def test_proxy(start: Callable[[str], int], tmp_path: Path) -> None:
    port = start("proxy")
    assert _get(port, f"http://{VENDOR}/repo/a%20b.deb")[:2] == (200, BODY)
    assert _get(port, "http://elsewhere.example/repo/a%20b.deb")[0] == 403
    assert _get(port, f"/{VENDOR}/repo/a%20b.deb")[0] == 400
    assert _get(start("plain"), f"http://{VENDOR}/repo/a%20b.deb")[0] == 400
    assert f'proxy 127.0.0.1 "GET http://{VENDOR}/repo/a%20b.deb HTTP/1.1" 200' in (tmp_path / "log").read_text()


def test_proxy_with_credentials(start: Callable[[str], int]) -> None:
    port = start("proxy with credentials")
    right = base64.b64encode(f"{PROXY_USER}:{PROXY_PASSWORD}".encode()).decode()
    status, _, headers = _get(port, f"http://{VENDOR}/empty")
    assert (status, headers["Proxy-Authenticate"]) == (407, 'Basic realm="lab"')
    assert _get(port, f"http://{VENDOR}/empty", Proxy_Authorization="Basic x")[0] == 407
    assert _get(port, f"http://{VENDOR}/empty", Proxy_Authorization=f"Basic {right}")[0] == 200
    assert _get(port, f"{VENDOR}:443", method="CONNECT")[0] == 407


def test_https_through_the_proxy(start: Callable[[str], int], cache: Path, tmp_path: Path) -> None:
    port = start("proxy")
    trusting = ssl.create_default_context(cafile=str(authority(cache)))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=10)
    connection.set_tunnel(VENDOR, 443)
    for _ in range(2):  # the connection is kept
        connection.request("GET", "/repo/a%20b.deb")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, BODY)
    connection.close()
    log = (tmp_path / "log").read_text()
    assert f'proxy 127.0.0.1 "CONNECT {VENDOR}:443 HTTP/1.0" 200' in log
    assert 'tls by proxy 127.0.0.1 "GET /repo/a%20b.deb HTTP/1.1" 200' in log
    for elsewhere in ("elsewhere.example:443", f"{VENDOR}:22"):
        assert _get(port, elsewhere, method="CONNECT")[0] == 403
