"""The panel of a call shows what the agent's hooks call it, and how surely."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.browsing import Watched
from tests.support.stories import Collector, now_us
from tidegate_collectors.records import CallEnd, CallMatch, CallStart, SessionStart

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>\x1b"


def test_a_matched_call_and_one_without_a_process(opened: Callable[..., Watched], collector: Collector) -> None:
    start = now_us() - 5_000_000
    collector.send(
        SessionStart(t=start, session="hooked", agent="claude", pid=9),
        CallStart(t=start + 10, session="hooked", call="c1", tool="git", category="git", command="git diff"),
        CallMatch(
            t=start + 10, session="hooked", call="c1", agent_tool="Bash", agent_call_id="toolu_1", confidence="exact",
            how="command text", position=2, began_us=start,
        ),
        CallEnd(t=start + 900_000, session="hooked", call="c1", exit_code=0, duration_us=899_990),
        CallStart(t=start + 10, session="hooked", call="c2", tool="Read", category="read", boundary="hook"),
        CallMatch(
            t=start + 20, session="hooked", call="c2", agent_tool=HOSTILE, agent_call_id=HOSTILE, confidence="none",
            how="it runs within the agent", result_chars=1234, failed=True,
        ),
        CallEnd(t=start + 900_000, session="hooked", call="c2", duration_us=899_990),
    )  # fmt: skip
    collector.settle()

    page = opened().open("/sessions/hooked#call=c1")
    page.wait_for_selector("#call [data-def='call.agent_tool']")
    text = page.inner_text("#call .facts")
    assert "Bash (toolu_1)" in text
    assert "matched by command text, program 2: exact" in text

    other = opened().open("/sessions/hooked#call=c2")
    other.wait_for_selector("#call [data-def='call.agent_tool']")
    text = other.inner_text("#call .facts")
    assert "<img src=x" in text, "a name is text"
    assert "\x1b" not in text
    assert "it runs within the agent" in text
    assert "1,234 characters, failed" in text
    assert "the agent's hook" in text
    assert other.locator("#lanes rect.bar").count() == 2
