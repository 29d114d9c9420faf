"""The backend's end of the link: a unix socket that collectors connect to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tidegate.errors import UsageError
from tidegate.ingest.account import SourceState
from tidegate.ingest.pipeline import Ingest
from tidegate_collectors import records
from tidegate_collectors.link import (
    Down,
    Hello,
    LinkError,
    Peer,
    Refuse,
    Welcome,
    allowed_client_uids,
    listen_unix,
    make_runtime_dir,
    peer_of,
)
from tidegate_collectors.link.messages import BYE, MAX_HELLO_BYTES, decode_hello, encode_line
from tidegate_collectors.policies import PolicyDocument

log = logging.getLogger(__name__)

_READ_BYTES: Final = 256 * 1024
_HELLO_TIMEOUT_S: Final = 5.0
_MAX_CONNECTIONS: Final = 256
_MAX_UNSENT_BYTES: Final = 1 << 20
_MAX_KNOWN: Final = 64
"""Senders shown, connected or not; those that were away longest are forgotten."""
GONE_CHECK_S: Final = 1.0
"""How long after a connection ended it is first asked whether its process is gone too."""
GONE_AFTER_S: Final = 30.0
"""How long a sender that seems to live may be away before it counts as gone; it tries again every few seconds."""


def bind_link(path: Path, *, gid: int | None = None) -> socket.socket:
    """The listening socket at ``path``, and its directory.

    Raises:
        UsageError: it cannot be made, for example because another backend listens there.
    """
    try:
        make_runtime_dir(path.parent)
        return listen_unix(path, gid=gid)
    except OSError as error:
        text = str(error) if isinstance(error, FileExistsError) or error.strerror is None else error.strerror
        raise UsageError(f"the link socket {path} cannot be made: {text}; choose another --runtime-dir") from None


class Connection:
    """One collector that is connected."""

    def __init__(self, writer: asyncio.StreamWriter, peer: Peer, hello: Hello, state: SourceState) -> None:
        self._writer = writer
        self.peer = peer
        self.hello = hello
        self.state = state
        self.name = f"{hello.src} (pid {peer.pid})"
        self.ended = asyncio.Event()
        self.said_bye = False

    def send(self, message: Down) -> None:
        """Write one line; a peer that does not read loses its connection rather than fill our memory."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        self._writer.write(encode_line(message))
        if transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            transport.abort()

    def ack(self, seq: int) -> None:
        """Everything up to ``seq`` is committed."""
        if seq >= 0:
            self.send(Down(ack=seq))

    def refuse(self, reason: str) -> None:
        """Say why, and close."""
        log.warning("%s is refused: %s", self.name, reason)
        self.send(Down(refuse=Refuse(reason=reason)))
        self.close()

    def close(self) -> None:
        """Close after what was written is out."""
        self._writer.close()


class LinkServer:
    """Accepts collectors, checks who they are, and hands their lines to the ingest.

    Args:
        ingest: started.
        sock: a listening unix socket, see :func:`bind_link`.
        allowed_uids: users whose processes may connect besides root and our own.
    """

    def __init__(self, ingest: Ingest, sock: socket.socket, *, allowed_uids: Iterable[int] = ()) -> None:
        self._ingest = ingest
        self._sock = sock
        self._path = Path(sock.getsockname())
        self._allowed = allowed_client_uids() | frozenset(allowed_uids)
        self._server: asyncio.Server | None = None
        self._connections: dict[str, Connection] = {}
        self._hellos: dict[str, Hello] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._away: dict[str, asyncio.TimerHandle] = {}

    async def start(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_unix_server(self._accept, sock=self._sock, limit=_READ_BYTES)

    async def stop(self) -> None:
        """Close all connections and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)
        for timer in self._away.values():
            timer.cancel()
        self._away.clear()
        await self._server.wait_closed()
        self._server = None
        with contextlib.suppress(OSError):
            self._path.unlink()

    @property
    def listening(self) -> bool:
        """Whether collectors can connect."""
        return self._server is not None and self._server.is_serving()

    @property
    def path(self) -> Path:
        """Where collectors connect."""
        return self._path

    def sources(self) -> list[dict[str, Any]]:
        """Every sender seen since the start of the backend."""
        return [
            {
                "src": src,
                "role": hello.role,
                "version": hello.version,
                "host": hello.host,
                "connected": src in self._connections,
                "last_t_us": state.last_t or None,
                "queued": None,
                "records": state.records,
                "lost": state.lost,
            }
            for src, hello in self._hellos.items()
            if (state := self._ingest.intake.sources.get(src)) is not None
        ]

    def capabilities(self) -> list[dict[str, Any]]:
        """The capabilities that the connected collectors said they have."""
        return [
            {**capability, "src": src}
            for src, connection in self._connections.items()
            for capability in connection.hello.capabilities
        ]

    def send_policy(self, document: PolicyDocument, *, role: str | None = None) -> int:
        """Send a policy to the connected collectors of a role; returns to how many."""
        chosen = [c for c in self._connections.values() if role is None or c.hello.role == role]
        for connection in chosen:
            connection.send(Down(policy=document))
        return len(chosen)

    # --- connections -------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception:
            log.exception("a connection of the link failed")
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = peer_of(writer.get_extra_info("socket"))
        try:
            connection, rest = await self._greet(reader, writer, peer)
        except LinkError as error:
            self._ingest.rejected()
            log.warning("process %d of user %d is refused: %s", peer.pid, peer.uid, error)
            writer.write(encode_line(Down(refuse=Refuse(reason=str(error)))))
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(writer.drain(), 1.0)
            return
        src = connection.hello.src
        try:
            await self._read(reader, connection, rest)
        finally:
            if self._connections.get(src) is connection:
                del self._connections[src]
                if not connection.said_bye:
                    self._look_after(connection, asyncio.get_running_loop().time() + GONE_AFTER_S)
            connection.ended.set()

    def _look_after(self, connection: Connection, deadline_s: float) -> None:
        """See to it that a sender that does not come back is told as gone: it cannot say so itself."""

        def look() -> None:
            del self._away[connection.hello.src]
            if _lives(connection.peer.pid) and loop.time() < deadline_s:
                self._look_after(connection, deadline_s)
            else:
                self._ingest.gone(connection.state)

        loop = asyncio.get_running_loop()
        self._away[connection.hello.src] = loop.call_later(GONE_CHECK_S, look)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> tuple[Connection, bytes]:
        """Check the peer and its hello; returns the connection and what came after the hello."""
        if peer.uid not in self._allowed:
            raise LinkError(f"user {peer.uid} may not connect; allow it with TIDEGATE_LINK_UIDS={peer.uid}")
        if len(self._connections) >= _MAX_CONNECTIONS:
            raise LinkError(f"there are {_MAX_CONNECTIONS} collectors already")
        received = bytearray()
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                while b"\n" not in received:
                    data = await reader.read(_READ_BYTES)
                    if not data:
                        raise ConnectionResetError
                    received += data
                    if b"\n" not in received and len(received) > MAX_HELLO_BYTES:
                        break
        except TimeoutError:
            raise LinkError(f"no hello within {_HELLO_TIMEOUT_S:g} s") from None
        line, _, rest = bytes(received).partition(b"\n")
        hello = decode_hello(line)
        previous = self._connections.get(hello.src)
        if previous is not None:
            # The same sender anew: its old connection is dead, whatever the kernel still says of it.
            previous.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(previous.ended.wait(), 5.0)
        if (timer := self._away.pop(hello.src, None)) is not None:
            timer.cancel()
        state = self._ingest.attach(hello.src)
        state.broken = 0
        connection = Connection(writer, peer, hello, state)
        self._connections[hello.src] = connection
        self._remember(hello)
        connection.send(Down(welcome=Welcome(run=self._ingest.run.id, acked_seq=state.committed_seq)))
        log.info("%s of %s is connected", connection.name, hello.host)
        return connection, rest

    def _remember(self, hello: Hello) -> None:
        """Keep what a sender said of itself; each start of a collector is one more, and each frame names them all."""
        self._hellos.pop(hello.src, None)
        self._hellos[hello.src] = hello
        for src in [src for src in self._hellos if src not in self._connections][
            : max(0, len(self._hellos) - _MAX_KNOWN)
        ]:
            del self._hellos[src]

    async def _read(self, reader: asyncio.StreamReader, connection: Connection, rest: bytes) -> None:
        number = 2  # the hello was line 1
        while True:
            block, newline, rest_after = rest.rpartition(b"\n")
            if newline:
                lines = block.split(b"\n")
                if lines[-1] == BYE:
                    connection.said_bye = True
                    del lines[-1]
                await self._ingest.put(connection, lines, number)
                number += len(lines)
                rest = rest_after
            elif len(rest) > records.MAX_LINE_BYTES:
                self._ingest.rejected()
                connection.refuse(f"line {number} is longer than {records.MAX_LINE_BYTES} bytes")
                return
            data = await reader.read(_READ_BYTES)
            if not data:
                return
            rest += data


def _lives(pid: int) -> bool:
    # A process of another pid namespace has the number 0 for us: nobody can tell.
    return pid == 0 or Path(f"/proc/{pid}").exists()
