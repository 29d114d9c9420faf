"""The collector's end of the link: a thread that sends, so that the caller never waits."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_collectors.link import messages
from tidegate_collectors.link.messages import Down, Hello, LinkError
from tidegate_collectors.link.peer import allowed_server_uids, peer_of
from tidegate_collectors.link.queue import Stamper, Unacked, is_sample
from tidegate_collectors.policies import PolicyDocument
from tidegate_collectors.records import MAX_LINE_BYTES, Record

log = logging.getLogger(__name__)

_GATHER_S: Final = 0.002
"""How long the thread lets records gather after the first one: far fewer system calls, well below 5 ms."""

_SEND_BYTES: Final = 256 * 1024
_MAX_DOWN_BYTES: Final = 1 << 20
_WELCOME_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts to connect, in seconds; each is drawn between half and all of its value."""

    first_s: float = 0.05
    max_s: float = 5.0
    refused_s: float = 30.0


@dataclass(frozen=True, slots=True)
class LinkStats:
    """The state of the link at one instant. Counts are since the start of the client."""

    connected: bool
    run: str | None
    queued: int
    sent: int
    acked_seq: int
    dropped_samples: int
    dropped_records: int
    reconnects: int
    last_error: str


class LinkClient:
    """Sends records to the backend and hears its policies.

    :meth:`send` may be called from any thread and never blocks on the network. Records are kept until the backend has
    committed them; after a reconnect those that were not are sent again.

    Args:
        path: the backend's socket.
        hello: who calls; ``hello.src`` and ``hello.host`` are stamped on each record.
        max_records: how many unacknowledged records are kept before samples are dropped.
        max_bytes: the same bound in bytes of lines.
        on_run: called in the link's thread with the run id of each welcome that differs from the one before.
        on_policy: called in the link's thread with each policy that fits its bounds.
        on_command: called in the link's thread with each command, unchecked.
        backoff: waits between attempts.
        server_uids: users whose backend is trusted; default root, the own user and the service user.
    """

    def __init__(
        self,
        path: Path,
        hello: Hello,
        *,
        max_records: int = 65536,
        max_bytes: int = 16 * 1024 * 1024,
        on_run: Callable[[str], None] | None = None,
        on_policy: Callable[[PolicyDocument], None] | None = None,
        on_command: Callable[[dict[str, object]], None] | None = None,
        backoff: Backoff | None = None,
        server_uids: frozenset[int] | None = None,
    ) -> None:
        self._path = path
        self._hello = hello
        self._on_run = on_run
        self._on_policy = on_policy
        self._on_command = on_command
        self._backoff = backoff or Backoff()
        self._server_uids = allowed_server_uids() if server_uids is None else server_uids
        self._stamper = Stamper(hello.src, hello.host)
        self._queue = Unacked(max_records, max_bytes)
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._idle = True  # whether a send must wake the thread
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tidegate-link", daemon=True)
        self._connected = False
        self._run: str | None = None
        self._sent = 0
        self._acked_seq = -1
        self._connects = 0
        self._last_error = ""

    @property
    def stats(self) -> LinkStats:
        """Counters and state now."""
        with self._lock:
            return LinkStats(
                connected=self._connected,
                run=self._run,
                queued=len(self._queue),
                sent=self._sent,
                acked_seq=self._acked_seq,
                dropped_samples=self._queue.dropped_samples,
                dropped_records=self._queue.dropped_records,
                reconnects=max(0, self._connects - 1),
                last_error=self._last_error,
            )

    def start(self) -> None:
        """Start the thread; records sent before are kept."""
        self._thread.start()

    def send(self, record: Record) -> None:
        """Stamp the record, keep it and send it soon. Never blocks on the backend."""
        with self._lock:
            line = self._stamper.stamp(record)
            if len(line) > MAX_LINE_BYTES:
                # The backend would refuse the whole connection for it; the hole in seq shows it as lost.
                self._queue.dropped_records += 1
                return
            self._queue.add(record.seq, line, sample=is_sample(record))
            wake = self._idle
            self._idle = False
        if wake:
            self._wake_thread()

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait until everything is acknowledged or the time is over, then end the thread."""
        if self._thread.is_alive():
            with self._drained:
                self._drained.wait_for(lambda: not len(self._queue) or self._stop.is_set(), timeout_s)
            self._stop.set()
            self._wake_thread()
            self._thread.join(timeout=_WELCOME_TIMEOUT_S + 1.0)
        self._stop.set()
        if self._wake >= 0 and not self._thread.is_alive():
            os.close(self._wake)
            self._wake = -1

    # --- the thread --------------------------------------------------------------------------------------------

    def _wake_thread(self) -> None:
        if self._wake >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._wake, 1)

    def _main(self) -> None:
        attempt = 0
        while not self._stop.is_set():
            refused = False
            try:
                with self._connect() as sock:
                    self._greet(sock)
                    attempt = 0
                    self._serve(sock)
            except LinkError as error:
                refused = True
                self._failed(str(error))
            except OSError as error:
                self._failed(_explain(error, self._path))
            finally:
                with self._lock:
                    self._connected = False
            self._pause(attempt, refused=refused)
            attempt += 1

    def _failed(self, text: str) -> None:
        with self._lock:
            repeated = text == self._last_error
            self._last_error = text
        log.log(logging.DEBUG if repeated else logging.WARNING, "link to %s: %s", self._path, text)

    def _pause(self, attempt: int, *, refused: bool) -> None:
        wait_s = (
            self._backoff.refused_s
            if refused
            else min(self._backoff.max_s, self._backoff.first_s * 2.0 ** min(attempt, 16))
        )
        self._stop.wait(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(_WELCOME_TIMEOUT_S)
            sock.connect(str(self._path))
            peer = peer_of(sock)
            if peer.uid not in self._server_uids:
                raise LinkError(f"{self._path} is served by user {peer.uid}, who is not trusted; set TIDEGATE_USER")
        except BaseException:
            sock.close()
            raise
        return sock

    def _greet(self, sock: socket.socket) -> None:
        """Say hello and wait for the welcome; leaves what came after it in ``self._received``."""
        sock.sendall(messages.encode_line(messages.Up(hello=self._hello)))
        self._received = bytearray()
        while b"\n" not in self._received:
            data = sock.recv(65536)
            if not data:
                raise ConnectionResetError("the backend closed the connection before its welcome")
            self._received += data
            if len(self._received) > _MAX_DOWN_BYTES:
                raise LinkError("the backend's first line is too long")
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        first = messages.decode_down(line)
        if first.refuse is not None:
            raise LinkError(f"refused: {first.refuse.reason}")
        if first.welcome is None:
            raise LinkError("the backend's first line is no welcome")
        if first.welcome.protocol != messages.PROTOCOL:
            raise LinkError(f"the backend speaks link protocol {first.welcome.protocol}, not {messages.PROTOCOL}")
        with self._lock:
            new_run = first.welcome.run if first.welcome.run != self._run else None
            self._run = first.welcome.run
            self._acked_seq = max(self._acked_seq, first.welcome.acked_seq)
            self._queue.rewind(self._acked_seq)
            self._connected = True
            self._connects += 1
            self._last_error = ""
            self._drained.notify_all()
        if new_run is not None and self._on_run is not None:
            self._guard(lambda: self._on_run(new_run) if self._on_run else None, "on_run")

    def _serve(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(sock, select.POLLIN)
        out = memoryview(b"")
        self._handle_down()
        while not self._stop.is_set():
            if not out:
                with self._lock:
                    out = memoryview(self._queue.take(_SEND_BYTES))
                    self._idle = not out
            poll.modify(sock, select.POLLIN | (select.POLLOUT if out else 0))
            for fd, events in poll.poll(1000):
                if fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                    if not out and not self._stop.is_set():
                        time.sleep(_GATHER_S)
                    continue
                if events & select.POLLOUT and out:
                    try:
                        count = sock.send(out)
                    except BlockingIOError:
                        count = 0
                    with self._lock:
                        self._sent += bytes(out[:count]).count(b"\n")
                    out = out[count:]
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._receive(sock)
        with self._lock:
            done = not out and not len(self._queue)  # else what is left unsaid must look like a loss
        if done:
            with contextlib.suppress(OSError):
                sock.send(messages.BYE + b"\n")

    def _receive(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the backend closed the connection")
        self._received += data
        if len(self._received) > _MAX_DOWN_BYTES and b"\n" not in data:
            raise LinkError("a line from the backend is too long")
        self._handle_down()

    def _handle_down(self) -> None:
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        for line in lines:
            self._obey(messages.decode_down(line))

    def _obey(self, message: Down) -> None:
        if message.ack is not None:
            with self._lock:
                self._acked_seq = max(self._acked_seq, message.ack)
                self._queue.ack(message.ack)
                self._drained.notify_all()
        if message.refuse is not None:
            raise LinkError(f"refused: {message.refuse.reason}")
        policy = message.policy
        if policy is not None and self._on_policy is not None:
            self._guard(lambda: self._on_policy(policy) if self._on_policy else None, "on_policy")
        command = message.command
        if command is not None and self._on_command is not None:
            self._guard(lambda: self._on_command(command) if self._on_command else None, "on_command")

    def _guard(self, call: Callable[[], None], name: str) -> None:
        """A defect in a callback must not end the link."""
        try:
            call()
        except Exception:
            log.exception("%s failed", name)


def _explain(error: OSError, path: Path) -> str:
    if error.errno == errno.ENOENT:
        return f"no backend: {path} does not exist; start one with: tidegate serve"
    if error.errno == errno.ECONNREFUSED:
        return f"no backend listens on {path}; start one with: tidegate serve"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no right to connect to {path}: {error.strerror}"
    return str(error) or type(error).__name__
