"""Server-sent events out of a byte stream, in bounded memory. Pure."""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 1 << 20
"""A longer event is passed over: the final event of ``/v1/responses`` repeats the whole answer."""


class EventReader:
    """Feed it chunks, it gives the ``data`` of each event that is complete.

    Attributes:
        passed_over: events that were longer than the bound.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self.passed_over = 0
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._skip_line = False
        self._skip_event = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that end in this chunk, in order."""
        found: list[bytes] = []
        lines = chunk.split(b"\n")
        for line in lines[:-1]:
            if self._rest:
                self._rest += line
                line = bytes(self._rest)
                self._rest.clear()
            if self._skip_line:
                self._skip_line = False
                continue
            self._line(line.removesuffix(b"\r"), found)
        self._keep(lines[-1])
        return found

    def _keep(self, start: bytes) -> None:
        """The beginning of a line whose end has not come yet."""
        if self._skip_line or not start:
            return
        if self._size + len(self._rest) + len(start) > self._max_bytes:
            self._rest.clear()
            self._skip_line = self._skip_event = True
            return
        self._rest += start

    def _line(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._skip_event:
                self.passed_over += 1
            elif self._data:
                found.append(b"\n".join(self._data))
            self._data, self._size, self._skip_event = [], 0, False
            return
        if not line.startswith(b"data:"):
            return
        data = line[6:] if line[5:6] == b" " else line[5:]
        self._size += len(data)
        if self._size > self._max_bytes:
            self._data, self._skip_event = [], True
        if not self._skip_event:
            self._data.append(data)
