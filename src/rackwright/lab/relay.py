"""The lab's web server: vendor mirrors under the vendors' names, and a caching way to the machine's Debian mirror.

Its sockets are opened inside the lab's network, its own requests leave from the machine's: nothing is routed. Port 80
and 443 serve by Host header or by path, port 3128 is a forward proxy for the same names, 3129 one that asks for credentials.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import json
import os
import shutil
import socket
import ssl
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rackwright.lab.system import Process, network

PORTS = {80: "plain", 443: "tls", 3128: "proxy", 3129: "proxy with credentials"}
PROXY_USER, PROXY_PASSWORD = "lab", "s3cret;$x"
_DEBIAN = ("debian", "debian-security")
_CHUNK = 1 << 16


class Relay:
    """What to serve: folders by host name, and the Debian mirror with its cache."""

    def __init__(self, www: Path, cache: Path, mirror: str, log: Path) -> None:
        self.www, self.cache, self.mirror = www, cache, mirror
        self._log = log.open("a", buffering=1)
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def log(self, text: str) -> None:
        """Write one line of the access log."""
        self._log.write(f"{time.time():.3f} {text}\n")

    def file(self, host: str, path: str) -> Path | None:
        """Return the file that a request means, or None."""
        parts = [part for part in unquote(path).split("/") if part]
        if ".." in parts:
            return None
        for folder in (self.www / host, self.www):
            if not host and folder == self.www / host:
                continue
            found = folder.joinpath(*parts)
            if folder.is_dir() and found.is_file():
                return found
        return None

    def debian(self, path: str) -> Path | None:
        """Return a file of the Debian mirror, fetched once; None when the mirror does not have it."""
        parts = [part for part in path.split("/") if part]
        if not parts or parts[0] not in _DEBIAN or ".." in parts:
            return None
        base = self.mirror if parts[0] == "debian" else self.mirror.rpartition("/")[0] + "/debian-security"
        kept = self.cache / hashlib.sha256(f"{base}/{'/'.join(parts[1:])}".encode()).hexdigest()
        with self._guard:
            lock = self._locks.setdefault(str(kept), threading.Lock())
        with lock:
            # Pool files never change; indexes are fresh for an hour.
            if kept.exists() and ("pool" in parts or time.time() - kept.stat().st_mtime < 3600):
                return kept
            try:
                with urllib.request.urlopen(f"{base}/{'/'.join(parts[1:])}", timeout=60) as answer:  # noqa: S310
                    handle, name = tempfile.mkstemp(dir=self.cache)
                    with os.fdopen(handle, "wb") as out:
                        shutil.copyfileobj(answer, out, _CHUNK)
                    os.replace(name, kept)
            except (urllib.error.URLError, OSError, TimeoutError) as error:
                self.log(f"debian {path}: {error}")
                return kept if kept.exists() else None
        return kept


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    relay: Relay
    kind = "plain"
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        self.relay.log(f"{self.kind} {self.client_address[0]} {format % args}")

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        url = urlsplit(self.path)
        proxied = bool(url.netloc)
        if proxied and "proxy" not in self.kind:
            self.send_error(400, "this port is no proxy")
            return
        if "proxy" in self.kind and not proxied:
            self.send_error(400, "this port is a proxy")
            return
        if self.kind == "proxy with credentials" and not self._authorized():
            self.send_response(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="lab"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        host = (url.netloc or self.headers.get("Host", "")).rpartition("@")[2].partition(":")[0].lower()
        found = self.relay.file(host, url.path) or self.relay.debian(url.path)
        if found is None:
            self.send_error(404)
            return
        self._send(found, body=body)

    def _authorized(self) -> bool:
        expected = base64.b64encode(f"{PROXY_USER}:{PROXY_PASSWORD}".encode()).decode()
        return self.headers.get("Proxy-Authorization", "") == f"Basic {expected}"

    def _send(self, path: Path, *, body: bool) -> None:
        stat = path.stat()
        since = email.utils.parsedate_tz(self.headers.get("If-Modified-Since", ""))
        if since is not None and email.utils.mktime_tz(since) >= int(stat.st_mtime):
            self.send_response(304)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, last = 0, stat.st_size - 1
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes=") and "," not in wanted:
            begin, _, end = wanted[6:].partition("-")
            if begin.isdigit():
                first, last = int(begin), min(last, int(end)) if end.isdigit() else last
        if first > last and stat.st_size:
            self.send_error(416)
            return
        self.send_response(206 if wanted and first else 200)
        self.send_header("Content-Length", str(max(0, last - first + 1)))
        self.send_header("Last-Modified", email.utils.formatdate(stat.st_mtime, usegmt=True))
        if wanted and first:
            self.send_header("Content-Range", f"bytes {first}-{last}/{stat.st_size}")
        self.end_headers()
        if body:
            with path.open("rb") as source:
                source.seek(first)
                left = last - first + 1
                while left > 0 and (chunk := source.read(min(_CHUNK, left))):
                    self.wfile.write(chunk)
                    left -= len(chunk)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, listening: socket.socket, handler: type[_Handler]) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that break off are part of the rehearsal."""


def server(relay: Relay, listening: socket.socket, kind: str, certificate: Path | None = None) -> ThreadingHTTPServer:
    """Return a server on a listening socket."""
    if kind == "tls":
        assert certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # The handshake is left to the connection's own thread, so that a slow client holds up nobody.
        listening = context.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
    handler = type("Handler", (_Handler,), {"relay": relay, "kind": kind})
    return _Server(listening, handler)


def main(arguments: list[str]) -> None:
    """Serve until killed, or until the process that owns the lab is gone."""
    (settings,) = arguments
    given = json.loads(settings)
    relay = Relay(Path(given["www"]), Path(given["cache"]), given["mirror"], Path(given["log"]))
    relay.cache.mkdir(parents=True, exist_ok=True)
    for port, kind in PORTS.items():
        with network(given["namespace"]):
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((given["address"], port))
            listening.listen(128)
        one = server(relay, listening, kind, Path(given["certificate"]))
        threading.Thread(target=one.serve_forever, daemon=True).start()
    owner = Process(*given["owner"]) if given["owner"] else None
    while owner is None or owner.alive():
        time.sleep(1)
    from rackwright.lab.lab import Lab

    Lab(given["lab"]).down(purge=True)


if __name__ == "__main__":
    main(sys.argv[1:])
