"""Two collectors for one host: both are taken, each with its own numbers, and sessions are not mixed up."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.backend import T0_US, a_session
from tests.support.server import running_server
from tidegate_collectors.link import Hello, LinkClient
from tidegate_collectors.records import CallStart, HostSample, SessionStart


def test_two_collectors_of_one_host_are_both_shown_and_what_they_see_is_kept_apart(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, server.client() as client:
        links = [
            LinkClient(server.link_socket, Hello(role="kernel", src=f"kernel-{number}", host="box"))
            for number in (1, 2)
        ]
        for number, link in enumerate(links, 1):
            link.start()
            for record in a_session(f"s{number}", calls=number, t_us=T0_US):
                link.send(record)
            link.send(HostSample(t=T0_US + number, mem_available_bytes=1 << 30, mem_total_bytes=4 << 30))
            # the same call id in sessions of their own, still running
            link.send(SessionStart(t=T0_US, session=f"open{number}", agent="bash"))
            link.send(CallStart(t=T0_US + 1, session=f"open{number}", call="c1", tool=f"tool{number}"))
        deadline = time.monotonic() + 20
        while any(link.stats.queued or link.stats.acked_seq < 0 for link in links):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        while len((state := client.get("/api/state").json())["sessions"]) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        sources = {source["src"]: source for source in state["sources"]}
        assert {src: source["connected"] for src, source in sources.items()} == {"kernel-1": True, "kernel-2": True}
        assert {source["host"] for source in sources.values()} == {"box"}
        assert [host["host"] for host in state["hosts"]].count("box") == 1
        calls = {
            session["id"]: [call["tool"] for call in client.get(f"/api/sessions/{session['id']}").json()["calls"]]
            for session in state["sessions"]
        }
        assert calls == {"s1": ["git"], "s2": ["git", "git"], "open1": ["tool1"], "open2": ["tool2"]}
        # WHEN one of them goes THEN only what it saw is lost, the other one's session goes on
        links[0].close(2.0)
        links[1].send(CallStart(t=T0_US + 2, session="open2", call="c2", tool="later"))
        while len(client.get("/api/sessions/open2").json()["calls"]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        while {s["src"]: s["connected"] for s in client.get("/api/state").json()["sources"]}["kernel-1"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        status = client.get("/api/status").json()
        assert (status["ingest"]["duplicates"], status["ingest"]["lost"], status["ingest"]["broken"]) == (0, 0, 0)
        links[1].close(2.0)
