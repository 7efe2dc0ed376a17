"""The lab's web server: vendor mirrors under the vendors' names, and a caching way to the machine's Debian mirror.

Its sockets are opened inside the lab's network, its own requests leave from the machine's: nothing is routed. Port 80
and 443 serve by Host header or by path; 3128 is a forward proxy for the same names, 3129 one that asks for credentials.
"""

from __future__ import annotations

import base64
import email.utils
import json
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rackwright.lab.debian import DebianCache, UpstreamError
from rackwright.lab.system import network

PORTS = {80: "plain", 443: "tls", 3128: "proxy", 3129: "proxy with credentials"}
PROXY_USER, PROXY_PASSWORD = "lab", "s3cret;$x"
_CHUNK = 1 << 16
_IDLE_S = 60


class Relay:
    """What to serve: a folder for each vendor host name, and the Debian mirror under the relay's own names."""

    def __init__(self, www: Path | None, debian: DebianCache | None, names: Collection[str], log: Path) -> None:
        self._www, self._debian, self._names = www, debian, frozenset(names)
        self.vendors = frozenset(path.name for path in www.iterdir() if path.is_dir()) if www else frozenset()
        self.tls: ssl.SSLContext | None = None
        self._log = log.open("a", buffering=1)

    def log(self, text: str) -> None:
        """Write one line of the access log."""
        self._log.write(f"{time.time():.3f} {text}\n")

    def knows(self, host: str) -> bool:
        """Return whether the proxy may go there."""
        return host in self._names or host in self.vendors

    def file(self, host: str, path: str) -> Path:
        """Return the file that a request means; raises `UpstreamError` with the status to answer."""
        parts = [part for part in unquote(path).split("/") if part]
        if self._www is not None and ".." not in parts and "\0" not in path:
            if host in self.vendors:
                parts.insert(0, host)
            found = self._www.joinpath(*parts)
            if parts and parts[0] in self.vendors and found.is_file():
                return found
        if host not in self.vendors and self._debian is not None and self._debian.serves(path):
            return self._debian.get(path)
        raise UpstreamError(404, "no such file")


def span(wanted: str, size: int) -> tuple[int, int] | None:
    """Return first byte and end of what a Range header asks for, None for the whole (RFC 9110, 14.2).

    Raises `ValueError` when nothing of it is there.
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted.strip(), flags=re.ASCII)
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < begin:
            return None
    if begin >= end:
        raise ValueError(f"bytes {wanted} of {size}")
    return begin, end


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "rackwright-lab"
    relay: Relay
    kind = "plain"
    timeout = _IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        self.relay.log(f"{self.kind} {self.client_address[0]} {format % args}")

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_CONNECT(self) -> None:
        """Be the vendor at the other end of a tunnel that a client asks a proxy for."""
        host, _, port = self.path.rpartition(":")
        if not self.kind.startswith("proxy"):
            self.send_error(405)
        elif not self._authorized():
            self._ask_for_credentials()
        elif port != "443" or not self.relay.knows(host.lower()) or self.relay.tls is None:
            self.send_error(403, "this proxy does not go there")
        else:
            self.send_response(200, "Connection established")
            self.end_headers()
            self.close_connection = True
            with self.relay.tls.wrap_socket(self.connection, server_side=True) as secured:
                _handler(self.relay, "tls by proxy")(secured, self.client_address, self.server)

    def _answer(self, *, body: bool) -> None:
        url = urlsplit(self.path)
        is_proxy = self.kind.startswith("proxy")
        if bool(url.netloc) != is_proxy:
            self.send_error(400, f"this port is {'a' if is_proxy else 'no'} proxy")
            return
        if not self._authorized():
            self._ask_for_credentials()
            return
        host = (url.netloc or self.headers.get("Host", "")).rpartition("@")[2].partition(":")[0].lower()
        if is_proxy and not self.relay.knows(host):
            self.send_error(403, "this proxy does not go there")
            return
        try:
            found = self.relay.file(host, url.path)
        except UpstreamError as error:
            self.send_error(error.status, str(error))
            return
        self._send(found, body=body)

    def _authorized(self) -> bool:
        if self.kind != "proxy with credentials":
            return True
        expected = base64.b64encode(f"{PROXY_USER}:{PROXY_PASSWORD}".encode()).decode()
        return self.headers.get("Proxy-Authorization", "") == f"Basic {expected}"

    def _ask_for_credentials(self) -> None:
        self.send_response(407)
        self.send_header("Proxy-Authenticate", 'Basic realm="lab"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, path: Path, *, body: bool) -> None:
        with path.open("rb") as source:
            size, modified = source.seek(0, 2), int(path.stat().st_mtime)
            changed, tag = email.utils.formatdate(modified, usegmt=True), f'"{modified:x}-{size:x}"'
            if self._has_it(modified, tag):
                self.send_response(304)
                self.send_header("ETag", tag)
                self.end_headers()
                return
            part = None
            # A part of what has changed meanwhile would be joined to what the client has of the former file.
            if self.headers.get("If-Range", tag) in (tag, changed):
                try:
                    part = span(self.headers.get("Range", ""), size)
                except ValueError:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{size}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            begin, end = part or (0, size)
            self.send_response(206 if part else 200)
            for name, value in {
                "Content-Type": "application/octet-stream", "Content-Length": str(end - begin), "ETag": tag,
                "Last-Modified": changed, "Accept-Ranges": "bytes",
            }.items():  # fmt: skip
                self.send_header(name, value)
            if part:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            self.end_headers()
            if body:
                source.seek(begin)
                while begin < end and (chunk := source.read(min(_CHUNK, end - begin))):
                    self.wfile.write(chunk)
                    begin += len(chunk)

    def _has_it(self, modified: int, tag: str) -> bool:
        tags = self.headers.get("If-None-Match")
        if tags is not None:
            return tag in (one.strip() for one in tags.split(","))
        since = email.utils.parsedate_tz(self.headers.get("If-Modified-Since", ""))
        return since is not None and email.utils.mktime_tz(since) >= modified


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[_Handler]) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_port = listening.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that break off are part of the rehearsal."""


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket of the network that the calling thread is in."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((address, port))
    listening.listen(128)
    return listening


def certified(certificate: Path) -> ssl.SSLContext:
    """Return how to serve https with this certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def _handler(relay: Relay, kind: str) -> type[_Handler]:
    return type("Handler", (_Handler,), {"relay": relay, "kind": kind})


def server(relay: Relay, listening: socket.socket, kind: str) -> ThreadingHTTPServer:
    """Return a server of one of the kinds in `PORTS`, on a listening socket."""
    if kind == "tls":
        assert relay.tls is not None
        # The handshake is left to the connection's own thread, so that a slow client holds up nobody.
        listening = relay.tls.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
    return _Server(listening, _handler(relay, kind))


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    (settings,) = arguments
    given = json.loads(settings)
    debian = DebianCache(Path(given["cache"]), given["mirror"], given["proxies"])
    relay = Relay(Path(given["www"]), debian, (given["address"], "controller"), Path(given["log"]))
    relay.tls = certified(Path(given["certificate"]))
    with network(given["namespace"]):
        listening = {kind: listen(given["address"], port) for port, kind in PORTS.items()}
    # The threads begin after the way back: a thread starts in the network of the one that starts it.
    threads = [threading.Thread(target=server(relay, one, kind).serve_forever) for kind, one in listening.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
