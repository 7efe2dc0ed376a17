"""OpenPGP certificates by fingerprint: which keys a file holds, and one of them taken out (RFC 4880, RFC 9580).

No signature is checked here: apt does that, with the one certificate whose fingerprint was declared.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable

from rackwright_facts._parse.model import Model

_PUBLIC_KEY, _SECRET_KEY = 6, 5
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)


class Certificate(Model):
    """A public key with all that belongs to it."""

    fingerprint: str
    """40 (v4) or 64 (v6) hexadecimal digits, upper case, of the primary key."""
    packets: bytes
    """The certificate in binary form."""


def dearmor(data: bytes) -> bytes:
    """Return binary packets: all ASCII-armored blocks of the text, or the data as it is when it is binary."""
    blocks = _ARMOR.findall(data)
    if not blocks:
        if b"-----BEGIN PGP" in data:
            raise ValueError("no complete public key block in it")
        return data
    binary = b""
    for block in blocks:
        lines = block.replace(b"\r", b"").split(b"\n")
        # Headers end with an empty line; a line that begins with "=" is the checksum.
        body = lines[lines.index(b"") + 1 :] if b"" in lines else lines
        text = b"".join(line.strip() for line in body if not line.startswith(b"="))
        try:
            binary += base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"a damaged public key block: {error}") from error
    return binary


def _packets(data: bytes) -> Iterable[tuple[int, bytes, bytes]]:
    """Yield (tag, body, whole packet)."""
    position = 0
    while position < len(data):
        start, first = position, data[position]
        if not first & 0x80:
            raise ValueError("not OpenPGP data")
        position += 1
        try:
            if first & 0x40:
                tag, (length, position) = first & 0x3F, _new_length(data, position)
            else:
                tag, size = (first >> 2) & 0x0F, first & 0x03
                if size == 3:
                    raise ValueError("an OpenPGP packet of indeterminate length")
                width = 1 << size
                length = int.from_bytes(data[position : position + width], "big")
                position += width
        except IndexError:
            raise ValueError("an OpenPGP packet that ends too early") from None
        end = position + length
        if end > len(data):
            raise ValueError("an OpenPGP packet that ends too early")
        yield tag, data[position:end], data[start:end]
        position = end


def _new_length(data: bytes, position: int) -> tuple[int, int]:
    first = data[position]
    if first < 192:
        return first, position + 1
    if first < 224:
        return ((first - 192) << 8) + data[position + 1] + 192, position + 2
    if first == 255:
        return int.from_bytes(data[position + 1 : position + 5], "big"), position + 5
    raise ValueError("an OpenPGP packet of partial length")


def _fingerprint(body: bytes) -> str:
    if not body:
        raise ValueError("an empty key")
    if body[0] == 4:
        digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
        return digest.hexdigest().upper()
    if body[0] == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ValueError(f"a key of version {body[0]}, which is not supported")


def certificates(data: bytes) -> tuple[Certificate, ...]:
    """Return the certificates of a keyring, binary or armored. Anything else is a `ValueError`."""
    found: list[tuple[str, bytes]] = []
    for tag, body, whole in _packets(dearmor(data)):
        if tag == _SECRET_KEY:
            raise ValueError("a secret key: give the public one")
        if tag == _PUBLIC_KEY:
            found.append((_fingerprint(body), whole))
        elif found:
            fingerprint, packets = found[-1]
            found[-1] = (fingerprint, packets + whole)
        else:
            raise ValueError("OpenPGP data that does not begin with a public key")
    return tuple(Certificate(fingerprint=fingerprint, packets=packets) for fingerprint, packets in found)


def fingerprints(data: bytes) -> tuple[str, ...]:
    """Return the fingerprints of the primary keys in a keyring."""
    return tuple(certificate.fingerprint for certificate in certificates(data))


def only(data: bytes, fingerprint: str) -> bytes:
    """Return the one certificate with this fingerprint, in binary form; `ValueError` when it is not there."""
    for certificate in certificates(data):
        if certificate.fingerprint == fingerprint:
            return certificate.packets
    raise ValueError(f"no key {fingerprint} in it")


def without(data: bytes, unwanted: Iterable[str]) -> bytes:
    """Return the keyring in binary form less the keys with these fingerprints."""
    gone = set(unwanted)
    return b"".join(c.packets for c in certificates(data) if c.fingerprint not in gone)
