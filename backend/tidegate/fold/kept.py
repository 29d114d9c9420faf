"""The calls of a session: those that run at hand, those at rest in blocks that are read when they are asked for.

A call is at rest when it does not run and holds no memory. Blocks are what a snapshot keeps of calls at rest: most of
them never change again, so a block is written once, and a state that was read from a snapshot decodes only the calls
that somebody names.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView
from typing import Final

import msgspec
from msgspec import Raw, Struct

from .call import Call
from .packing import MSGPACK, Beside, Part, pack, pack_small

BLOCK_CALLS: Final = 128
"""Ordinals that one block covers."""


class Written(Struct, array_like=True):
    """Calls as the session's part holds them. ``blocks`` are (number, ordinal of the snapshot it was written with)."""

    kept: int
    live: list[Call]
    running: list[str]
    lingering: list[str]
    blocks: list[tuple[int, int]]


_call: Final = msgspec.msgpack.Decoder(Call)
_block: Final = msgspec.msgpack.Decoder(dict[str, Raw])
_json_block: Final = msgspec.json.Decoder(dict[str, Call])


class Calls(Beside):
    """Calls by id, in order of their ordinal.

    Attributes:
        running: those that run, by id.
        lingering: those that have ended and whose processes left behind hold memory still, by id.
        stale: numbers of the blocks that are not as they were written.
    """

    __slots__ = (
        "_blocks", "_by_id", "_closed", "_in_order", "_kept", "_name", "_part", "_raw", "_written_at", "lingering",
        "running", "stale",
    )  # fmt: skip

    def __init__(self) -> None:
        self.running: dict[str, Call] = {}
        self.lingering: dict[str, Call] = {}
        self.stale: set[int] = set()
        self._written_at: dict[int, int] = {}
        self._by_id: dict[str, Call] = {}
        self._raw: dict[str, Raw] = {}  # at rest in an open block, not yet decoded
        self._blocks: dict[int, dict[str, None]] = {}  # ids of what is known of a block
        self._closed: set[int] = set()
        self._kept = 0
        self._in_order = True
        self._part: Part | None = None
        self._name = ""

    def __len__(self) -> int:
        return self._kept

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __getitem__(self, name: str) -> Call:
        call = self.get(name)
        if call is None:
            raise KeyError(name)
        return call

    def get(self, name: str) -> Call | None:
        """The call of that id."""
        call = self._by_id.get(name)
        if call is not None:
            return call
        if self._closed:
            for number in sorted(self._closed):
                self._open(number)
        raw = self._raw.pop(name, None) if self._raw else None
        if raw is None:
            return self._by_id.get(name)
        call = self._by_id[name] = _call.decode(raw)
        self._in_order = False
        return call

    def keys(self) -> KeysView[str]:
        """All ids, in order."""
        return self._all().keys()

    def values(self) -> list[Call]:
        """All calls, in order."""
        return list(self._all().values())

    def items(self) -> list[tuple[str, Call]]:
        """All calls with their ids, in order."""
        return list(self._all().items())

    def add(self, call: Call) -> None:
        """A call that is new and runs; its ordinal is the greatest so far."""
        self._by_id[call.id] = self.running[call.id] = call
        self._kept += 1
        self._blocks.setdefault(call.ordinal // BLOCK_CALLS, {})[call.id] = None

    def touch(self, call: Call) -> None:
        """The call is at rest now, or was and changes: its block is not as it was written.

        One that runs again may stay in its block: what is at hand is newer than what a block says.
        """
        self.stale.add(call.ordinal // BLOCK_CALLS)

    def remove(self, call: Call) -> None:
        """Forget a call."""
        del self._by_id[call.id]
        self.running.pop(call.id, None)
        self.lingering.pop(call.id, None)
        self._kept -= 1
        self._blocks[call.ordinal // BLOCK_CALLS].pop(call.id, None)
        self.touch(call)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def attach(self, written: Written, name: str, part: Part) -> None:
        """Become what was written; blocks are read from part ``name`` + their number."""
        self._kept = written.kept
        self._written_at = dict(written.blocks)
        self._closed = set(self._written_at)
        for call in written.live:
            self._by_id[call.id] = call
            self._blocks.setdefault(call.ordinal // BLOCK_CALLS, {})[call.id] = None
        self.running = {call_id: self._by_id[call_id] for call_id in written.running}
        self.lingering = {call_id: self._by_id[call_id] for call_id in written.lingering}
        self._in_order = False
        self._name, self._part = name, part

    def closed(self) -> list[tuple[str, int]]:
        """Parts that may still be asked for, and the ordinals they were written with."""
        return [(f"{self._name}{number}", self._written_at[number]) for number in sorted(self._closed)]

    def write(self, name: str, ord_: int) -> dict[str, bytes]:
        """The blocks that changed since they were last written, as parts; from here on they count as written."""
        parts: dict[str, bytes] = {}
        for number in sorted(self.stale):
            data = self._write_block(number)
            if data is None:
                self._written_at.pop(number, None)
            else:
                parts[f"{name}{number}"] = data
                self._written_at[number] = ord_
        self.stale.clear()
        return parts

    def forget_written(self) -> None:
        """Take all blocks as not written."""
        self._all()
        self.stale.update(self._blocks)
        self._written_at.clear()

    def written(self) -> Written:
        """What the session's own part says of its calls."""
        live = self.running | self.lingering
        return Written(
            self._kept, list(live.values()), list(self.running), list(self.lingering), list(self._written_at.items())
        )

    def _write_block(self, number: int) -> bytes | None:
        if number in self._closed:
            self._open(number)
        held: dict[str, Call | Raw] = {}
        for name in self._blocks.get(number, ()):
            if name not in self.running and name not in self.lingering:
                held[name] = self._by_id.get(name) or self._raw[name]
        if not held:
            return None
        try:
            return pack_small(held)
        except OverflowError:
            return pack({name: self[name] for name in held})

    def _open(self, number: int) -> None:
        """Read a block: its ids and, packed still, its calls. One that has been named since is newer here."""
        if self._part is None:
            raise RuntimeError("these calls were read from a snapshot whose parts nobody gave")
        self._closed.discard(number)
        data = self._part(f"{self._name}{number}", self._written_at[number])
        names = self._blocks.setdefault(number, {})
        if data[:1] == MSGPACK:
            for name, raw in _block.decode(memoryview(data)[1:]).items():
                if name not in self._by_id:
                    self._raw[name] = raw
                    names[name] = None
        else:
            for name, call in _json_block.decode(memoryview(data)[1:]).items():
                if name not in self._by_id:
                    self._by_id[name] = call
                    names[name] = None
        self._in_order = False

    def _all(self) -> dict[str, Call]:
        if not self._in_order:
            for number in sorted(self._closed):
                self._open(number)
            for name, raw in self._raw.items():
                self._by_id[name] = _call.decode(raw)
            self._raw.clear()
            self._by_id = dict(sorted(self._by_id.items(), key=lambda item: item[1].ordinal))
            self._in_order = True
        return self._by_id
