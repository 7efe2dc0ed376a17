"""A host's ssh connection: quick, aware of a peer that is gone, and begun anew where it has ended."""

from __future__ import annotations

import socket

from paramiko import SSHException
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.connectors.util import clear_askpass_cache

FAILURES = (OSError, EOFError, SSHException, PyinfraError)
"""What a command, or a connection to a host that is gone or going, may raise; a time-out is an OSError."""

# A cable that is cut in the middle of a command: give the peer up after so long without an acknowledgement.
_DEAD_PEER_S = 30
_TUNED = "rackwright_tuned"


def tune(host: Host) -> None:
    """Make the ssh connection quick (paramiko leaves Nagle's algorithm on: 40 ms an exec) and aware of a dead peer."""
    if host.connector_data.get(_TUNED):
        return
    host.connector_data[_TUNED] = True
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client is not None else None
    sock = getattr(transport, "sock", None)
    if sock is None or not hasattr(sock, "setsockopt"):
        return  # a proxy command's pipe, or a connector without ssh
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", None), 10),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), 5),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", None), 4),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", None), _DEAD_PEER_S * 1000),
    ):
        if option is not None:
            sock.setsockopt(level, option, value)


def reconnect(host: Host) -> bool:
    """Connect anew, and return whether that went well."""
    # What pyinfra and we remember of the old connection: its askpass file, and that its socket was tuned.
    clear_askpass_cache(host)
    host.connector_data.pop(_TUNED, None)
    try:
        host.disconnect()
    except FAILURES:
        host.connected = False
    try:
        host.connect(show_errors=False)
    except FAILURES:
        return False
    if host.connected:
        tune(host)
    return bool(host.connected)
