"""The lab's own certificate authority: it lets the vendors' genuine https addresses work inside a lab.

Made once and kept in the cache. Its private key stays there with mode 0600, and only lab hosts trust it.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rackwright.lab.system import run

_DAYS = "3650"


def authority(cache: Path) -> Path:
    """Return the authority's certificate, made unless it is there."""
    done = cache / "authority"
    if not done.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "authority.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in cache.glob("authority-new-*"):
                shutil.rmtree(left)
            if not done.exists():
                folder = Path(tempfile.mkdtemp(dir=cache, prefix="authority-new-"))
                run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", _DAYS,
                    "-subj", "/CN=rackwright lab", "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
                    "-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"))  # fmt: skip
                folder.rename(done)
    return done / "certificate.pem"


def server_certificate(cache: Path, names: Sequence[str], address: str) -> Path:
    """Return a file with key and certificate for these host names, signed by the authority."""
    issuer = authority(cache)
    recipe = repr((sorted(names), address)).encode() + issuer.read_bytes()
    done = issuer.with_name(f"server-{hashlib.sha256(recipe).hexdigest()[:16]}.pem")
    if not done.exists():
        with tempfile.TemporaryDirectory(dir=issuer.parent, prefix=".new-") as name:
            folder = Path(name)
            alternatives = ",".join([*(f"DNS:{one}" for one in names), f"IP:{address}"])
            (folder / "extensions").write_text(
                f"subjectAltName={alternatives}\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n"
            )
            run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=rackwright lab server",
                "-keyout", str(folder / "key"), "-out", str(folder / "request"))  # fmt: skip
            serial = f"0x{hashlib.sha256(recipe).hexdigest()[:30]}"
            run("openssl", "x509", "-req", "-in", str(folder / "request"), "-CA", str(issuer),
                "-CAkey", str(issuer.with_name("key.pem")), "-set_serial", serial, "-days", _DAYS,
                "-extfile", str(folder / "extensions"), "-out", str(folder / "certificate"))  # fmt: skip
            with (folder / "key").open("ab") as both:
                both.write((folder / "certificate").read_bytes())
            (folder / "key").rename(done)
    return done
