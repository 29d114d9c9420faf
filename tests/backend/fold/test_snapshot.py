"""A state that was written down and read again goes on as if nothing had been, whatever the records."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.fold.test_properties import SMALL, everything
from tests.support import records as make
from tests.support import stories
from tidegate.fold import Limits, State, apply, coverage, engine, fold, kept, packing, saved, snapshot, views
from tidegate.fold.coverage import Coverage, WrittenSpans
from tidegate.fold.lanes import Lanes
from tidegate.fold.model import Call, Host, LostCount, Process, Processes, Run, Session, Source, Tick, Totals
from tidegate.fold.spark import Spark
from tidegate.fold.turn import Turn, Turns
from tidegate_collectors.records import EngineSample, KvCalibration, Loss, MemSample, ProcExec, ProcExit

Parts = dict[tuple[str, int], bytes]


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Blocks of two calls and groups of two sessions, so that short streams have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "BLOCK_CALLS", 2)
        patch.setattr(coverage, "BLOCK_SPANS", 2)
        patch.setattr(coverage, "TAIL_SPANS", 1)
        patch.setattr(saved, "GROUP_SESSIONS", 2)
        patch.setattr(snapshot, "GROUP_SESSIONS", 2)
        yield


def keep(state: State, parts: Parts) -> bytes:
    """Dump, keep what is new, and give the root."""
    dump = snapshot.dump(state)
    parts.update({(name, dump.ord): data for name, data in dump.parts.items()})
    return dump.root


def read(root_data: bytes, parts: Parts, limits: Limits | None = None) -> State:
    """A new state from the root and the parts, of which only those are given that it says it needs."""
    root = snapshot.read_root(root_data, limits or Limits())
    assert root is not None
    given = set(root.parts())

    def part(name: str, ord_: int) -> bytes:
        assert (name, ord_) in given, "a part that was not said to be needed"
        return parts[name, ord_]

    state, later = snapshot.restore(root, limits or Limits(), part)
    given |= set(later)
    return state


def whole(state: State) -> dict[str, Any]:
    """Everything that a state remembers, seen or not."""
    snapshot.forget(state)
    found = {name: packing.unpack(data, Any) for name, data in snapshot.dump(state).parts.items()}
    for name, part in found.items():
        if name[0] == "g":
            for _, calls, _ in part:
                calls[-1].sort()  # blocks, in whatever order they were written
    return found


def lives(seed: int, count: int) -> list[Any]:
    """A stream that makes sense: sessions and calls begin, hold memory, end, get lost and are found again."""
    rng = random.Random(seed)
    stream: list[Any] = []
    seconds = 0.0
    source = "kernel-0001"
    while len(stream) < count:
        seconds += rng.choice((0, 0.1, 0.1, 1, 3))
        name: dict[str, Any] = {"session": f"s{rng.randrange(5)}", "src": rng.choice((source, source, "kernel-0001"))}
        call = f"c{rng.randrange(6)}"
        match rng.randrange(16):
            case 0:
                stream.append(make.session_start(seconds, pid=rng.randrange(3), **name))
            case 1:
                stream.append(make.session_end(seconds, lost=rng.random() < 0.3, **name))
            case 2 | 3 | 4:
                stream.append(make.call_start(seconds, call, **name))
            case 5 | 6:
                kept_bytes = rng.choice((None, 0, 5000))
                stream.append(make.call_end(seconds, call, kept_bytes=kept_bytes, lost=rng.random() < 0.2, **name))
            case 7 | 8 | 9:
                stream.append(make.mem(seconds, rng.randrange(50), call=call, **name))
            case 10:
                stream.append(make.mem(seconds, rng.randrange(50), **name))
            case 11 | 12:
                fields = {"t": make.at(seconds), "call": call, "pid": rng.randrange(4), **name}
                stream.append(ProcExec(comm="x", **fields) if rng.random() < 0.5 else ProcExit(**fields))
            case 13:
                stream.append(make.sched(seconds, 10, 20, call=call, **name))
            case 14 if rng.random() < 0.3:
                source = f"kernel-{rng.randrange(4):04}"
            case 15 if rng.random() < 0.3:
                stream.append(Loss(t=make.at(seconds), src="backend-1", where="link", count=0, of=source))
    return stream


def inference(seed: int, count: int) -> list[Any]:
    """Records of the engine plane in no sensible order, in the times of each other."""
    rng = random.Random(seed)
    return [make.random_struct(rng.choice(make.ENGINE_TYPES), rng) for _ in range(count)]


@settings(max_examples=200, deadline=None)
@given(
    make.streams(max_size=60) | st.builds(lives, st.integers(0, 2**32), st.integers(1, 150)),
    st.lists(st.integers(0, 20), max_size=10),
    st.booleans(),
)
def test_folding_on_from_a_snapshot_gives_what_folding_from_the_start_gives(
    stream: list[Any], steps: list[int], small: bool
) -> None:
    limits = SMALL if small else Limits()
    numbered = make.numbered(*stream)
    parts: Parts = {}
    state = State(limits, track=False)
    done = 0
    for step in steps:
        # Snapshots after snapshots: of the state that goes on, and of one that was read.
        fold(state, numbered[done : done + step])
        done = min(len(numbered), done + step)
        root = keep(state, parts)
        state = read(root, parts, limits)
    state.follow()
    start = fold(State(limits, track=False), numbered[:done])
    start.follow()
    for ord_, record in numbered[done:]:
        apply(state, ord_, record)
        apply(start, ord_, record)
        frames = [make.plain(views.frame_view(each, each.changes(), now_us=each.last_t_us)) for each in (state, start)]
        assert frames[0] == frames[1]
    assert whole(state) == whole(start)
    assert everything(state) == everything(start)


@settings(max_examples=60, deadline=None)
@given(st.builds(lives, st.integers(0, 2**32), st.integers(1, 100)), st.data())
def test_a_snapshot_that_is_read_later_is_as_it_was_written(stream: list[Any], data: st.DataObject) -> None:
    numbered = make.numbered(*stream)
    parts: Parts = {}
    roots: dict[int, bytes] = {0: keep(State(), parts)}
    state = State(track=False)
    for start in range(0, len(numbered), 7):
        fold(state, numbered[start : start + 7])
        roots[state.ord] = keep(state, parts)
        if data.draw(st.booleans()):
            snapshot.forget(state)  # that one was not kept, say
    for ord_, root in roots.items():
        assert everything(read(root, parts)) == everything(fold(State(), numbered[:ord_]))


def test_a_story_from_a_snapshot_at_any_record() -> None:
    numbered = make.numbered(*stories.story(make.T0))
    whole_run = everything(fold(State(), numbered))
    parts: Parts = {}
    state = State(track=False)
    for start in range(0, len(numbered), 50):
        fold(state, numbered[start : start + 50])
        again = read(keep(state, parts), parts)
        assert everything(fold(again, numbered[start + 50 :])) == whole_run


def test_only_what_changed_is_written_again() -> None:
    stream: list[Any] = []
    for number in range(8):
        stream.append(make.session_start(number, f"s{number}"))
        stream += [make.call_start(number, "c", f"s{number}"), make.call_end(number, "c", f"s{number}")]
    state = fold(State(), make.numbered(*stream))
    first = snapshot.dump(state)
    assert {name for name in first.parts if name[0] == "g"} == {"g0", "g1", "g2", "g3", "g4"}
    assert len([name for name in first.parts if name[0] == "c"]) == 8
    apply(state, 100, make.mem(100, 5, session="s3"))
    assert set(snapshot.dump(state).parts) == {"head", "g2"}
    assert set(snapshot.dump(state).parts) == {"head"}
    snapshot.forget(state)
    assert set(snapshot.dump(state).parts) == set(first.parts)


def test_calls_at_rest_are_not_decoded_before_they_are_named() -> None:
    stream: list[Any] = [make.session_start(0)]
    for number in range(10):
        stream += [make.call_start(number, f"c{number}"), make.call_end(number + 0.5, f"c{number}")]
    stream.append(make.call_start(11, "c11"))
    parts: Parts = {}
    root = keep(fold(State(), make.numbered(*stream)), parts)
    asked: list[str] = []

    def part(name: str, ord_: int) -> bytes:
        asked.append(name)
        return parts[name, ord_]

    known = snapshot.read_root(root, Limits())
    assert known is not None
    state, _ = snapshot.restore(known, Limits(), part)
    session = state.sessions["s"]
    assert views.session_view(session).calls_running == 1
    apply(state, 100, make.mem(12, 5, call="c11"))
    assert asked == ["head", "g0"]
    assert session.calls["c3"].ended_us == make.at(3.5)
    assert [call.id for call in session.calls.values()] == [f"c{number}" for number in [*range(10), 11]]


def test_numbers_that_no_machine_measures_are_kept_as_they_are() -> None:
    big = 2**70
    stream = [make.call_start(0), MemSample(t=make.at(1), session="s", call="c1", subject="call", anon_bytes=big)]
    parts: Parts = {}
    state = fold(State(), make.numbered(*stream, make.call_end(2, peak_bytes=big)))
    again = read(keep(state, parts), parts)
    assert again.sessions["s"].calls["c1"].peak_bytes == big
    assert everything(again) == everything(state)


def test_another_version_or_other_limits_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    root = snapshot.dump(fold(State(), make.numbered(make.session_start(0)))).root
    assert snapshot.read_root(root, Limits()) is not None
    assert snapshot.read_root(root, SMALL) is None
    assert snapshot.read_root(b"\xff\x00junk", Limits()) is None
    monkeypatch.setattr(snapshot, "VERSION", snapshot.VERSION + 1)
    assert snapshot.read_root(root, Limits()) is None


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 6), st.booleans()), max_size=60),
    st.tuples(st.integers(0, 90), st.integers(0, 90)),
    st.sampled_from([6, 1000]),
)
def test_spans_in_blocks_are_the_same_spans(
    steps: list[tuple[int, int, bool]], more: tuple[int, int], limit: int
) -> None:
    plain, blocks = Coverage(limit), Coverage(limit)
    parts: Parts = {}
    for ord_, (start, length, save) in enumerate(steps, 1):
        plain.add(start, start + length)
        blocks.add(start, start + length)
        if save:
            parts.update({(name, ord_): data for name, data in blocks.write("v", ord_).items()})
            written = packing.unpack(packing.pack(blocks.written()), WrittenSpans)
            blocks = Coverage()
            blocks.attach(written, "v", lambda *key: parts[key])
        assert blocks.total_us() == plain.total_us()
        assert blocks.total_with_us(*more) == plain.total_with_us(*more)
    assert blocks.spans() == plain.spans()
    assert blocks.total_us() == plain.total_us()


KNOWN: dict[int, str] = {1: "297166661ab93256", 2: "9ff2e816deb6233e"}
"""What the fold of this version makes of some streams, and what it remembers, as a checksum."""


def test_the_version_is_raised_when_the_fold_changes() -> None:
    streams = [list(stories.story(make.T0)), lives(1, 2000), inference(1, 2000)]
    made = [everything(fold(State(), make.numbered(*stream))) for stream in streams]
    structs = (
        Call, Host, Lanes, LostCount, Process, Processes, Run, Session, Source, Spark, Tick, Totals, WrittenSpans,
        engine.Decisions, engine.Engine, engine.Inference, engine.Kv, engine.LastDecision, engine.LastOutcome,
        engine.Outcomes, engine.Tool, engine.Transfers, engine.TurnTotals, Turn, Turns, EngineSample, KvCalibration,
    )  # fmt: skip
    form = [[struct.__name__, *struct.__struct_fields__] for struct in structs]
    checksum = hashlib.sha256(json.dumps([made, form], sort_keys=True).encode()).hexdigest()[:16]
    assert KNOWN.get(snapshot.VERSION) == checksum, (
        "The fold makes something else of the same records, or remembers it in another form, so it cannot go on from "
        f"snapshots that were written before: raise snapshot.VERSION, and put {checksum!r} here for it."
    )
