"""The API of the engine plane, against a real backend: what records say is what is answered, at every instant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tests.support.backend import T0_US, Backend, a_session, backend
from tidegate_collectors.engine.decision import Inputs, PinOption, decide
from tidegate_collectors.records import (
    EngineSample,
    EngineStart,
    KvDecision,
    KvOutcome,
    KvTransition,
    Record,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
    TurnTool,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = "../e/</script>\u202e?#"
S = 1_000_000
INPUTS = Inputs(
    rule="four-state", boundary="call", reusable_tokens=320, unsaved_tokens=320, p_return=0.9, p_evict=0.5,
    rebuild_s=0.4, pins=[PinOption(1.0, 0.2, 0.01), PinOption(2.0, 0.05, 0.03)], tool="git", tool_samples=3,
)  # fmt: skip


def t(seconds: float) -> int:
    """Microseconds UTC, after the session's start."""
    return T0_US + round(seconds * S)


def moved(seconds: float, from_: str, to: str, blocks: int, **more: Any) -> KvTransition:
    """All blocks of the session."""
    fields: dict[str, Any] = {"from_": from_, "to": to, "cause": "decision", "residency": {to: blocks}, **more}
    return KvTransition(t=t(seconds), session="s1", engine="e", blocks=blocks, **fields)


async def record(web: Backend) -> dict[str, KvDecision]:
    """A session of both planes: turn, decision, tool, and back again."""
    decision = decide(INPUTS)
    costs = {name: value for name, value in msgspec.structs.asdict(decision.costs).items() if value is not None}
    first = KvDecision(
        t=t(0.5), session="s1", turn="t1", engine="e", boundary="call", action=decision.action, enforced=True,
        blocks=10, tool="git", inputs=msgspec.to_builtins(INPUTS), costs=costs, margin_s=decision.margin_s,
        ttl_s=decision.ttl_s, rule="four-state", predicted={"p50_s": 1.0, "p90_s": 2.0, "n": 3, "source": "tool"},
    )  # fmt: skip
    second = KvDecision(
        t=t(1.8), session="s1", turn="t2", engine="e", boundary="turn_end", action="KEEP", enforced=False, rule="lru",
        inputs={"rule": "of another version"}, overridden_by="request",
    )  # fmt: skip
    start = EngineStart(t=t(0), engine="e", version="0.32", plugin=True, block_tokens=32, pool_blocks=64, pid=1)
    samples = [
        EngineSample(
            t=t(0.25 * i), engine="e", running=1, blocks_total=64, blocks_active=i, blocks_cached=0, blocks_pinned=2,
            blocks_free=62 - i, prefix_queries_tokens=100 * i, prefix_hits_tokens=60 * i, external_hits_tokens=10 * i,
        )
        for i in range(9)
    ]  # fmt: skip
    given: list[Record] = [
        start,
        TurnStart(t=t(0.1), session="s1", turn="t1", prompt_tokens=320),
        TurnFirstToken(t=t(0.3), session="s1", turn="t1", ttft_us=200_000),
        moved(0.2, "gone", "device_active", 10, cause="computed"),
        TurnEnd(t=t(0.5), session="s1", turn="t1", prompt_tokens=320, output_tokens=9, tools=["git"]),
        TurnTool(t=t(0.5), session="s1", turn="t1", agent_call_id="x1", agent_tool="Bash", began_us=t(0.9)),
        first,
        moved(0.5, "device_active", "device_pinned", 10, until_us=t(3)),
        TurnStart(t=t(1.5), session="s1", turn="t2", prompt_tokens=400),
        TurnTool(
            t=t(1.5), session="s1", turn="t1", agent_call_id="x1", agent_tool="Bash", began_us=t(0.9), ended_us=t(1.5)
        ),
        moved(1.5, "device_pinned", "device_active", 10, cause="admitted"),
    ]
    await web.record(*a_session("s1"), *given, *samples)
    outcome = KvOutcome(
        t=t(1.6), session="s1", turn="t2", engine="e", decision_seq=first.seq, action="PIN", gap_us=1_000_000,
        evicted=False, served_from="device", regret_s=0.0, hindsight_best="PIN",
    )  # fmt: skip
    await web.record(outcome, second, moved(1.8, "device_active", "device_cached", 10, cause="finished"))
    return {"first": first, "second": second}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with backend(tmp_path_factory.mktemp("kv")) as found:
        await record(found)
        yield found


async def test_a_session_on_one_axis(web: Backend) -> None:
    body = await web.json("/api/sessions/s1/kv")
    assert body["engine"]["engine"] == "e"
    assert body["block_tokens"] == 32
    assert body["truncated"] is False
    steps = dict(zip(body["blocks"]["t_us"], body["blocks"]["states"]["device_pinned"], strict=True))
    assert steps[t(0.5)] == 10
    assert steps[t(1.5)] == 0
    assert [turn["turn"] for turn in body["turns"]] == ["t1", "t2"]
    first, second = body["turns"]
    assert (first["prompt_tokens"], first["ttft_us"], first["state"], first["lane"]) == (320, 200_000, "ended", 0)
    assert second["state"] == "running"
    (tool,) = first["tool_calls"]
    assert (tool["agent_call_id"], tool["calls"], tool["confidence"]) == ("x1", ["c2"], "likely")
    assert [(row["action"], row["enforced"]) for row in body["decisions"]] == [("PIN", True), ("KEEP", False)]
    assert body["decisions"][0]["outcome"]["served_from"] == "device"
    assert [each["to"] for each in body["transitions"]] == [
        "device_active", "device_pinned", "device_active", "device_cached",
    ]  # fmt: skip


async def test_decisions_are_filtered_and_paged(web: Backend) -> None:
    newest = await web.json("/api/kv/decisions", limit=1)
    assert [row["boundary"] for row in newest["rows"]] == ["turn_end"]
    older = await web.json("/api/kv/decisions", limit=1, before_ord=newest["next_before_ord"])
    assert [row["boundary"] for row in older["rows"]] == ["call"]
    assert older["next_before_ord"] is None
    for filters, found in (
        ({"action": "PIN"}, ["call"]),
        ({"tool": "git"}, ["call"]),
        ({"enforced": "false"}, ["turn_end"]),
        ({"overridden": "true"}, ["turn_end"]),
        ({"boundary": "turn_end", "session": "s1", "engine": "e"}, ["turn_end"]),
        ({"session": HOSTILE}, []),
        ({"regret_min_s": "0.5"}, []),
        ({"regret_min_s": "0"}, ["call"]),
    ):
        rows = (await web.json("/api/kv/decisions", **filters))["rows"]
        assert [row["boundary"] for row in rows] == found, filters
    assert newest["tools"] == ["git"]


async def test_a_decision_in_words_and_taken_again(web: Backend) -> None:
    rows = (await web.json("/api/kv/decisions"))["rows"]
    body = await web.json(f"/api/kv/decisions/{rows[1]['ord']}")
    assert body["action"] == body["rule_action"] == "PIN"
    assert body["parity"] is True
    assert "git was seen 3 times" in body["words"]
    assert body["costs"]["pin_s"] < body["costs"]["keep_s"]
    assert body["inputs"]["rebuild_s"] == 0.4
    assert body["outcome"]["hindsight_best"] == "PIN"


async def test_a_decision_of_another_version_is_shown_without_words(web: Backend) -> None:
    rows = (await web.json("/api/kv/decisions"))["rows"]
    body = await web.json(f"/api/kv/decisions/{rows[0]['ord']}")
    assert (body["words"], body["rule_action"], body["parity"]) == (None, None, None)
    assert body["overridden_by"] == "request"


@pytest.mark.parametrize("ord_", [0, -1, 1, 10**30])
async def test_what_is_no_decision(web: Backend, ord_: int) -> None:
    answer = await web.client.get(f"/api/kv/decisions/{ord_}")
    assert answer.status_code == 404
    assert answer.json()["ok"] is False


async def test_the_pool_over_time(web: Backend) -> None:
    body = await web.json("/api/kv/series", engine="e", from_us=t(0), to_us=t(3))
    assert body["blocks"]["active"][-1] == 8
    assert body["blocks"]["used"][-1] == 10
    assert body["hit_tokens_per_s"]["device"][-1] == pytest.approx(240)
    assert body["hit_tokens_per_s"]["host"][-1] == pytest.approx(40)


async def test_the_summary_of_now_and_of_before(web: Backend) -> None:
    body = await web.json("/api/kv/summary")
    assert body["engines"] == ["e"]
    assert body["hits"] == {
        "queries_tokens": 800, "device_tokens": 480, "host_tokens": 80, "missed_tokens": 240,
        "recomputed_tokens": None,
    }  # fmt: skip
    (holder,) = body["holders"]
    assert (holder["session"], holder["state"], holder["total_blocks"]) == ("s1", "device_cached", 10)
    assert body["pins"] == []
    # The records of the engine came after those of the session, so an instant of before has not seen it.
    before = await web.json("/api/kv/summary", at=t(-1))
    assert (before["engine"], before["holders"], before["engines"]) == (None, [], [])


async def test_an_engine_that_there_is_not(web: Backend) -> None:
    for path in ("/api/kv/summary", "/api/kv/series"):
        answer = await web.client.get(path, params={"engine": HOSTILE})
        assert answer.status_code == 404
        assert "“e”" in str(answer.json())
        assert "\u202e" not in answer.text


async def test_a_run_without_an_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with backend(tmp_path_factory.mktemp("none")) as found:
        await found.record(*a_session("s1"))
        assert (await found.json("/api/kv/summary"))["engine"] is None
        assert (await found.json("/api/kv/series"))["engine"] is None
        assert (await found.json("/api/kv/decisions"))["rows"] == []
        body = await found.json("/api/sessions/s1/kv")
        assert (body["engine"], body["turns"], body["decisions"], body["blocks"]["t_us"]) == (None, [], [], [])
        session = (await found.json("/api/state"))["sessions"][0]
        assert (session["kv"], session["planes"], session["current_turn"]) == (None, ["kernel"], None)
