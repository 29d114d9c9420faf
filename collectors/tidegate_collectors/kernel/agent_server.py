"""The socket where launchers register sessions and calls.

Not a thread: the daemon's loop polls the sockets and calls in here. A peer can only speak for its own process, which
the kernel names (``SO_PEERCRED``); anything else it says is refused by its type.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tidegate_collectors.kernel import agent_protocol, procfs_files
from tidegate_collectors.kernel.agent_protocol import Request
from tidegate_collectors.link.peer import Peer, peer_of

MAX_CONNECTIONS: Final = 256
IDLE_S: Final = 10.0
"""A connection that says nothing for so long is closed: nobody keeps the others out by being silent."""

log = logging.getLogger(__name__)

Handler = Callable[[Peer, Request], dict[str, Any]]


class Refused(Exception):  # noqa: N818 - an answer, not a defect
    """A request that is understood and not granted; the message is sent to the peer."""


class _Connection:
    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self.sock = sock
        self.peer = peer
        self._started = self._start_ticks()
        self.buffer = bytearray()
        self.last_s = time.monotonic()
        self.refused = False
        """It said something too long; the rest is thrown away, so that it can still read why."""

    def speaks_for_itself(self) -> bool:
        """Whether the process that connected still lives. It may have left the socket to others and ended; then its
        number can be anybody's by now, and a request would capture a stranger."""
        return self._started is not None and self._start_ticks() == self._started

    def _start_ticks(self) -> int | None:
        stat = procfs_files.read_stat(self.peer.pid)
        return stat.start_ticks if stat is not None and not stat.dead else None


class AgentServer:
    """Listens on a unix socket and answers requests by ``handler``.

    Args:
        path: of the socket; a stale one is replaced.
        handler: gets the peer and the request, returns the fields of the answer, raises :class:`Refused`.
        selector: where the sockets are registered; each key's ``data`` is a function without arguments to call.
        group: name of the group that may connect besides the owner; default: see :func:`default_group`.

    Raises:
        OSError: the socket cannot be made. KeyError: no such group.
    """

    def __init__(
        self, path: Path, handler: Handler, selector: selectors.BaseSelector, group: str | None = None
    ) -> None:
        self.path = path
        self._handler = handler
        self._selector = selector
        self._connections: dict[int, _Connection] = {}
        self._listener = _listen(path, group)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close_idle(self) -> None:
        """Close connections that were silent too long."""
        before = time.monotonic() - IDLE_S
        for connection in [item for item in self._connections.values() if item.last_s < before]:
            self._drop(connection)

    def close(self) -> None:
        """Close all sockets and remove the file."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._drop(min(self._connections.values(), key=lambda item: item.last_s))
        sock.setblocking(False)
        connection = _Connection(sock, peer_of(sock))
        self._connections[sock.fileno()] = connection
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(agent_protocol.MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        if connection.refused:
            return
        connection.last_s = time.monotonic()
        connection.buffer += data
        while (end := connection.buffer.find(b"\n")) >= 0:
            line = bytes(connection.buffer[:end])
            del connection.buffer[: end + 1]
            if not self._reply(connection, self._answer(connection, line)):
                return
        if len(connection.buffer) >= agent_protocol.MAX_LINE_BYTES:
            limit = agent_protocol.MAX_LINE_BYTES
            connection.refused = True
            connection.buffer.clear()
            self._reply(connection, {"ok": False, "error": f"a line longer than {limit} bytes"})

    def _answer(self, connection: _Connection, line: bytes) -> dict[str, Any]:
        try:
            request = agent_protocol.decode(line)
            if not connection.speaks_for_itself():
                raise Refused(f"process {connection.peer.pid}, which connected, is gone or not visible here")
            return {"ok": True, **self._handler(connection.peer, request)}
        except (agent_protocol.RequestError, Refused) as error:
            return {"ok": False, "error": str(error)}
        except Exception:
            log.exception("a request of process %d failed", connection.peer.pid)
            return {"ok": False, "error": "the collector has a defect; its log says more"}

    def _reply(self, connection: _Connection, reply: dict[str, Any]) -> bool:
        try:
            connection.sock.sendall(agent_protocol.encode(reply))
        except OSError:  # gone, or it does not read its answers
            self._drop(connection)
            return False
        return True

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.sock.fileno(), None) is not None:
            self._selector.unregister(connection.sock)
            connection.sock.close()


def default_group() -> int | None:
    """Group id that may talk to a collector of root: ``tidegate`` where it exists, else the sudo user's."""
    with contextlib.suppress(KeyError):
        return grp.getgrnam("tidegate").gr_gid
    given = os.environ.get("SUDO_GID", "")
    return int(given) if os.geteuid() == 0 and given.isdigit() else None


def _listen(path: Path, group: str | None) -> socket.socket:
    gid = grp.getgrnam(group).gr_gid if group else default_group()
    # It gets its name when it listens: whoever sees the file is answered. The collector's lock is held, so nobody else
    # is there and what lies at the name is stale.
    temporary = path.with_name(f".{os.getpid()}.sock")
    temporary.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o117)
        try:
            listener.bind(str(temporary))
        finally:
            os.umask(before)
        if gid is not None:
            with contextlib.suppress(PermissionError):
                os.chown(temporary, -1, gid, follow_symlinks=False)
        listener.listen(64)
        listener.setblocking(False)
        temporary.rename(path)
    except OSError:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise
    return listener
