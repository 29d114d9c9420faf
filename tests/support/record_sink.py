"""A backend reduced to its end of the link: it welcomes a collector, keeps its records and acknowledges them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tidegate_collectors.link.messages import BYE
from tidegate_collectors.records import AnyRecord, Unknown, decode


class RecordSink:
    """Listens at ``path`` in a thread of its own; ``records`` grows as they come."""

    def __init__(self, path: Path, run: str = "run-1") -> None:
        self.path = path
        self.run = run
        self.records: list[AnyRecord] = []
        self.hellos: list[dict[str, object]] = []
        self.seqs: list[int] = []
        self._stop = threading.Event()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> RecordSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and hang up."""
        self._stop.set()
        self._thread.join(5)
        self._listener.close()

    def of(self, kind: type) -> list[AnyRecord]:
        """The records of one type, in the order of arrival."""
        return [record for record in list(self.records) if isinstance(record, kind)]

    def wait_for(self, condition: Callable[[list[AnyRecord]], bool], timeout_s: float = 5.0) -> None:
        """Wait until the records fulfil ``condition``; fails with the types that came."""
        until = time.monotonic() + timeout_s
        while not condition(list(self.records)):
            if time.monotonic() > until:
                came = [type(record).__name__ for record in self.records]
                raise AssertionError(f"not within {timeout_s} s; came: {came[-60:]}")
            time.sleep(0.01)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(0.1)
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        buffer = b""
        greeted = False
        while not self._stop.is_set():
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                if not greeted:
                    greeted = True
                    self.hellos.append(json.loads(line)["hello"])
                    self._say(connection, {"welcome": {"protocol": 1, "run": self.run, "acked_seq": -1}})
                    continue
                if line == BYE:
                    return
                record = decode(line)
                assert not isinstance(record, Unknown)
                self.records.append(record)
                self.seqs.append(record.seq)
            if self.seqs:
                self._say(connection, {"ack": self.seqs[-1]})

    @staticmethod
    def _say(connection: socket.socket, message: dict[str, object]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")
