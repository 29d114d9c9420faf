from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.engine_lines import decision, transition
from tests.support.ingesting import Peer, backend, opened_recording
from tests.support.scenes import T0, scene, scene_lines, stamped
from tidegate.errors import NotFoundError
from tidegate.exporters.jsonl import export_lines
from tidegate.store import Reads
from tidegate_collectors.records import (
    Capability,
    EngineEnd,
    EngineMode,
    EngineSample,
    EngineStart,
    HostSample,
    KvCalibration,
    Note,
    Record,
    SessionEnd,
    SessionStart,
    TurnStart,
)


async def exported(reads: Reads, run: str, session: str | None = None) -> bytes:
    return b"".join([block async for block in export_lines(reads, run, session=session)])


async def test_a_live_run_with_everything_that_can_go_wrong_survives_export_and_import_byte_by_byte(
    tmp_path: Path,
) -> None:
    lines = stamped(scene(end=False), src="k-1")
    unknown = b'{"type":"of.tomorrow","v":1,"seq":%d,"src":"k-1","t":6,"x":"\\u00e9"}' % len(lines)
    spaced = lines[3].replace(b'":', b'" : ')
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "k-1")
        # a gap, a broken line, one sent twice, odd spacing, an unknown type
        sent = [*lines[:3], spaced, lines[4], lines[4], b"broken", *lines[6:20], *lines[25:], unknown]
        peer.send(b"".join(line + b"\n" for line in sent))
        await peer.acked(len(lines))
        await peer.close()
        live = await exported(b.store.reads, "live")
    assert spaced + b"\n" in live
    assert unknown + b"\n" in live
    assert (
        live.count(b"\n") == len(lines) + 1 - 6 + 4
    )  # missing: 1 + 5; the backend's: run.meta, two losses, a note on the clock
    async with opened_recording(tmp_path / "a.jsonl", live) as first:
        report = first.report
        assert (report.errors_total, report.gaps, report.lost, report.clock_back) == (0, 0, 0, 1)
        again = await exported(first.store.reads, first.run.id)
        assert again == live


async def test_an_import_that_had_to_tell_of_losses_is_stable_from_then_on(tmp_path: Path) -> None:
    lines = scene_lines()
    broken = b"\n".join([*lines[:9], b"broken", *lines[10:20], *lines[30:]]) + b"\n"
    async with opened_recording(tmp_path / "a.jsonl", broken) as first:
        once = await exported(first.store.reads, first.run.id)
    async with opened_recording(tmp_path / "b.jsonl", once) as second:
        assert (second.report.errors_total, second.report.gaps) == (0, 0)
        assert await exported(second.store.reads, second.run.id) == once


async def test_the_extract_of_a_session_has_what_concerns_it_and_opens_without_losses(tmp_path: Path) -> None:
    records = [
        *scene(end=False)[:1],
        Capability(t=T0, name="psi", available=True),
        HostSample(t=T0 + 1, mem_available_bytes=1, mem_total_bytes=2),
        SessionStart(t=T0 + 100, session="a"),
        SessionStart(t=T0 + 100, session="a b"),
        HostSample(t=T0 + 150, mem_available_bytes=2, mem_total_bytes=2),
        Note(t=T0 + 160, text="a", session="a b"),
        Note(t=T0 + 170, text="of nobody"),
        SessionEnd(t=T0 + 200, session="a"),
        HostSample(t=T0 + 250, mem_available_bytes=3, mem_total_bytes=2),
    ]
    lines = stamped(records)
    async with opened_recording(tmp_path / "r.jsonl", b"\n".join(lines) + b"\n") as recording:
        extract = await exported(recording.store.reads, recording.run.id, "a")
        got = extract.splitlines()
        assert got[1:] == [lines[1], lines[3], lines[5], lines[7], lines[8]]
        meta = msgspec.json.decode(got[0])
        assert meta.pop("extract") == {"session": "a"}
        assert meta == msgspec.json.decode(lines[0])
        for unknown in ("../x", "A", ""):
            with pytest.raises(NotFoundError, match="no session"):
                await exported(recording.store.reads, recording.run.id, unknown)
    async with opened_recording(tmp_path / "e.jsonl", extract) as again:
        assert (again.report.gaps, again.report.extract_of_session) == (0, "a")
        assert await exported(again.store.reads, again.run.id, "a") == extract


async def test_the_extract_of_a_session_has_its_engines(tmp_path: Path) -> None:
    """GIVEN two engines WHEN a session of one of them is extracted THEN what that one is, and measured, is there whole,
    its samples while the session ran, and nothing of the other; of a session that names none, both."""

    def engine(name: str) -> list[Record]:
        return [
            EngineStart(t=T0, engine=name),
            KvCalibration(t=T0 + 1, engine=name),
            EngineSample(t=T0 + 2, engine=name),
            EngineSample(t=T0 + 102, engine=name),
            EngineMode(t=T0 + 300, engine=name, mode="observe"),
            EngineEnd(t=T0 + 301, engine=name),
        ]

    def of(name: str, first: int) -> list[bytes]:
        return [lines[first + n] for n in (0, 1, 3, 4, 5)]

    records = [
        *scene(end=False)[:1], *engine("e"), *engine("f"), *engine(""),
        SessionStart(t=T0 + 100, session="a"), decision(101, "a"), SessionEnd(t=T0 + 200, session="a"),
        SessionStart(t=T0 + 100, session="b"), transition(101, "b", engine=""), SessionEnd(t=T0 + 200, session="b"),
        SessionStart(t=T0 + 100, session="c"), TurnStart(t=T0 + 101, session="c"), SessionEnd(t=T0 + 200, session="c"),
        SessionStart(t=T0 + 100, session="d"), SessionEnd(t=T0 + 200, session="d"),
    ]  # fmt: skip
    lines = stamped(records)
    async with opened_recording(tmp_path / "r.jsonl", b"\n".join(lines) + b"\n") as recording:
        reads, run = recording.store.reads, recording.run.id

        async def engines_in(session: str) -> list[bytes]:
            got = (await exported(reads, run, session)).splitlines()[1:]
            return [line for line in got if b'"session"' not in line]

        assert await engines_in("a") == of("e", 1)
        assert await engines_in("b") == of("", 13)
        assert await engines_in("c") == of("e", 1) + of("f", 7) + of("", 13)
        assert await engines_in("d") == []
        extract = await exported(reads, run, "a")
    async with opened_recording(tmp_path / "e.jsonl", extract) as again:
        assert await exported(again.store.reads, again.run.id, "a") == extract
