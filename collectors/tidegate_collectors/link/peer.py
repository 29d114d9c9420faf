"""Who is at the other end of a unix socket, and who may be."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from dataclasses import dataclass
from typing import Final

SERVICE_USERS: Final = ("tidegate", "nobody")
"""Users that the backend drops its rights to, in this order, unless ``$TIDEGATE_USER`` names another."""

_UCRED: Final = struct.Struct("=iII")


@dataclass(frozen=True, slots=True)
class Peer:
    """Credentials of a connected process, as the kernel says."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """Credentials of the process at the other end. For a listening peer: of the process that called ``listen``."""
    return Peer(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def service_user() -> pwd.struct_passwd | None:
    """The unprivileged user that the backend runs as when root starts it; none when no candidate exists."""
    configured = os.environ.get("TIDEGATE_USER")
    for name in (configured,) if configured else SERVICE_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def allowed_server_uids() -> frozenset[int]:
    """Users whose backend a collector talks to: root, its own, and the service user."""
    service = service_user()
    return frozenset({0, os.geteuid()} | ({service.pw_uid} if service else set()))


def allowed_client_uids() -> frozenset[int]:
    """Users whose collector a backend listens to by default: root and its own."""
    return frozenset({0, os.geteuid()})
