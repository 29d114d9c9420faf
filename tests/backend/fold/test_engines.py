"""Engines, decisions and where sessions' KV blocks are."""

from __future__ import annotations

from typing import Any

from tests.support import records as make
from tests.support.records import at
from tidegate.fold import State, fold, snapshot, views
from tidegate_collectors.records import (
    EngineEnd,
    EngineMode,
    EngineSample,
    EngineStart,
    KvDecision,
    KvOutcome,
    KvTransfer,
    KvTransition,
    Loss,
)

SRC: dict[str, Any] = {"v": 1, "src": "engine-1", "host": "h"}


def start(seconds: float, **fields: Any) -> EngineStart:
    """The engine is there."""
    given = {"engine": "e", "version": "0.32", "plugin": True, "pid": 7, "pool_blocks": 64, "mode": "enforce"}
    return EngineStart(**{**SRC, "t": at(seconds), **given, **fields})


def moved(seconds: float, from_: str, to: str, blocks: int, session: str = "s", **fields: Any) -> KvTransition:
    """All blocks of the session go from one state into another."""
    residency = {} if to == "gone" else {to: blocks}
    given = {"engine": "e", "session": session, "from_": from_, "to": to, "blocks": blocks, "residency": residency}
    return KvTransition(**{**SRC, "t": at(seconds), "cause": "decision", **given, **fields})


def decided(seconds: float, seq: int, **fields: Any) -> KvDecision:
    """A pin for the tool grep."""
    given = {
        "engine": "e", "session": "s", "seq": seq, "boundary": "call", "action": "PIN", "enforced": True,
        "rule": "four-state", "tool": "grep", "predicted": {"p50_s": 1.0, "p90_s": 3.0, "n": 4, "source": "tool"},
    }  # fmt: skip
    return KvDecision(**{**SRC, "t": at(seconds), **given, **fields})


def came(seconds: float, seq: int, gap_s: float, **fields: Any) -> KvOutcome:
    """The session came back and found all on the device."""
    given = {
        "engine": "e", "session": "s", "decision_seq": seq, "action": "PIN", "gap_us": round(gap_s * 1e6),
        "evicted": False, "served_from": "device",
    }  # fmt: skip
    return KvOutcome(**{**SRC, "t": at(seconds), **given, **fields})


def view(*stream: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The engine and the sessions as the browser gets them."""
    state = make.plain(views.state_view(fold(State(), make.numbered(*stream)), now_us=at(99)))
    return state["engines"][0], {session["id"]: session for session in state["sessions"]}


def test_where_blocks_are_is_what_the_last_transition_says() -> None:
    until = at(9)
    _, sessions = view(
        start(0),
        moved(1, "gone", "device_active", 3),
        moved(2, "device_active", "device_cached", 3),
        moved(3, "device_cached", "device_pinned", 3, until_us=until, shared_blocks=1),
    )
    kv = sessions["s"]["kv"]
    assert kv["blocks"] == {
        "device_active": 0, "device_cached": 0, "device_pinned": 3, "device_and_host": 0, "host": 0, "gone": 0,
    }  # fmt: skip
    assert (kv["state"], kv["since_us"], kv["pinned_until_us"], kv["shared_blocks"]) == (
        "device_pinned", at(3), until, 1,
    )  # fmt: skip
    assert sessions["s"]["started_us"] == at(1)


def test_a_restart_empties_what_the_engine_held_and_a_repetition_does_not() -> None:
    held = moved(1, "gone", "device_cached", 3)
    _, again = view(start(0), held, start(2))
    assert again["s"]["kv"]["total_blocks"] == 3
    engine, anew = view(start(0), held, start(2, pid=8))
    assert anew["s"]["kv"]["total_blocks"] == 0
    assert anew["s"]["kv"]["since_us"] == at(2)
    assert engine["started_us"] == at(2)


def test_a_snapshot_after_a_restart_holds_no_block_of_before() -> None:
    # GIVEN a snapshot in which a session holds blocks
    state = fold(State(track=False), make.numbered(start(0), moved(1, "gone", "device_cached", 3)))
    parts = {(name, state.ord): data for name, data in snapshot.dump(state).parts.items()}
    # WHEN the engine restarts, and says nothing of that session
    fold(state, make.numbered(start(2, pid=8), first=3))
    dump = snapshot.dump(state)
    parts.update({(name, state.ord): data for name, data in dump.parts.items()})
    # THEN the next snapshot knows
    root = snapshot.read_root(dump.root, state.limits)
    assert root is not None
    read, _ = snapshot.restore(root, state.limits, lambda name, ord_: parts[name, ord_])
    kv = read.sessions["s"].inference.kv
    assert kv is not None
    assert kv.blocks == {}


def test_the_end_of_an_engine_ends_sessions_that_only_it_knew() -> None:
    engine, sessions = view(
        start(0),
        make.session_start(0.5, "k"),
        moved(1, "gone", "device_cached", 3),
        moved(1, "gone", "device_cached", 2, session="k"),
        EngineEnd(t=at(5), engine="e", **SRC),
    )
    assert (sessions["s"]["state"], sessions["s"]["ended_us"]) == ("ended", at(5))
    assert sessions["k"]["state"] == "running"
    assert sessions["s"]["kv"]["total_blocks"] == sessions["k"]["kv"]["total_blocks"] == 0
    assert engine["ended_us"] == at(5)


def test_an_engine_whose_sender_is_gone_is_lost_until_it_speaks_again() -> None:
    gone = Loss(v=1, t=at(3), src="backend-1", where="link", count=0, of="engine-1")
    stream = [start(0), moved(1, "gone", "device_cached", 3), gone]
    engine, sessions = view(*stream)
    assert engine["lost"] is True
    assert sessions["s"]["state"] == "lost"
    engine, sessions = view(*stream, moved(4, "device_cached", "gone", 3))
    assert engine["lost"] is False
    assert sessions["s"]["state"] == "running"


def test_decisions_and_what_came_of_them() -> None:
    engine, sessions = view(
        start(0),
        decided(1, 5),
        came(3, 5, 2.0),
        decided(4, 6, enforced=False, overridden_by="cap", action="KEEP"),
        came(14, 6, 10.0, served_from="recompute", evicted=True, regret_s=0.5),
    )
    assert engine["decisions"] == {
        "total": 2, "enforced": 1, "overridden": 1, "by_action": {"KEEP": 1, "PIN": 1, "OFFLOAD": 0, "DROP": 0},
    }  # fmt: skip
    assert engine["outcomes"] == {
        "n": 2, "returned": 2, "evicted": 1, "regret_s": 0.5, "by_served": {"device": 1, "recompute": 1},
    }  # fmt: skip
    (tool,) = engine["tools"]
    assert tool == {
        "tool": "grep", "n": 2, "predicted_p50_s": 1.0, "predicted_p90_s": 3.0, "source": "tool",
        "actual_p50_s": 10.0, "actual_p90_s": 10.0, "within_p90": 0.5,
    }  # fmt: skip
    kv = sessions["s"]["kv"]
    assert (kv["last"]["action"], kv["last"]["overridden_by"], kv["last"]["seq"]) == ("KEEP", "cap", 6)
    assert (kv["outcome"]["served_from"], kv["outcome"]["regret_s"]) == ("recompute", 0.5)


def test_a_session_that_will_not_come_back_has_ended() -> None:
    _, sessions = view(start(0), moved(1, "gone", "device_cached", 3), decided(2, 5, boundary="terminal"))
    assert (sessions["s"]["state"], sessions["s"]["end_reason"]) == ("ended", "terminal")
    _, sessions = view(start(0), decided(2, 5, boundary="terminal"), moved(3, "gone", "device_active", 3))
    assert (sessions["s"]["state"], sessions["s"]["ended_us"]) == ("running", None)


def test_the_matrix_of_transitions_and_the_copies_are_summed() -> None:
    engine, _ = view(
        start(0),
        moved(1, "gone", "device_active", 3, cause="computed"),
        moved(2, "gone", "device_active", 4, cause="computed"),
        moved(3, "device_active", "host", 7),
        KvTransfer(t=at(3), engine="e", session="s", direction="out", bytes=10, **SRC),
        KvTransfer(t=at(3), engine="e", session="s", direction="in", bytes=10, ok=False, error="no", **SRC),
    )
    assert engine["matrix"] == [
        {"from": "device_active", "to": "host", "cause": "decision", "n": 1, "blocks": 7},
        {"from": "gone", "to": "device_active", "cause": "computed", "n": 2, "blocks": 7},
    ]
    assert engine["transfers"] == {"out_n": 1, "out_bytes": 10, "in_n": 0, "in_bytes": 0, "failed": 1}


def test_an_engine_is_what_its_sender_says_it_is() -> None:
    stream = (
        start(0),
        EngineSample(t=at(1), engine="", running=2, blocks_total=64, **SRC),
        EngineMode(t=at(2), engine="e", mode="observe", reason="a fault", **SRC),
        start(3),
    )
    engine, _ = view(*stream)
    assert engine["engine"] == "e"
    assert engine["sample"]["running"] == 2
    assert engine["sample"]["blocks_pinned"] is None
    assert (engine["mode"], engine["mode_reason"]) == ("observe", "a fault")
    assert engine["calibration"] is None


def test_a_frame_has_the_engines_that_changed() -> None:
    state = fold(State(), make.numbered(start(0), start(0, engine="e2")))
    state.changes()
    fold(state, make.numbered(EngineSample(t=at(1), engine="e2", running=1, **SRC), first=3))
    frame = make.plain(views.frame_view(state, state.changes(), now_us=at(1)))
    assert [engine["engine"] for engine in frame["engines"]] == ["e2"]
    assert frame["sessions"] == []


def test_engines_beyond_the_bound_are_passed_over() -> None:
    state = fold(State(), make.numbered(*(start(0, engine=f"e{number}") for number in range(1000))))
    assert len(state.engines) == state.limits.names
