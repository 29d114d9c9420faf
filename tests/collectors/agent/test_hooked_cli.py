"""A scripted CLI with hooks and real tools, under a real collector: its tool calls are found among the kernel's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.bpf import needs_root
from tests.support.daemon_rig import DaemonRig, running_daemon
from tidegate_collectors.agent import hook_settings
from tidegate_collectors.records import CallEnd, CallMatch, CallStart, Note, ProcExec, SessionEnd

CLI = str(Path(__file__).parents[2] / "support" / "hooked_cli.py")
LOADERS = [  # the other loader loads the same programs: tests/collectors/kernel/test_daemon.py
    "procfs",
    pytest.param("libbpf", marks=[pytest.mark.kernel, needs_root]),
]
ALLOCATE = "import time; x = bytearray(40 << 20); time.sleep(0.4)"


def bash(id_: str, command: str, **fields: Any) -> dict[str, Any]:
    return {"tool": "Bash", "id": id_, "input": {"command": command, "description": "x"}, **fields}


class Run:
    """What a plan came to: the last match of each call, its start and its end."""

    def __init__(self, rig: DaemonRig, tmp_path: Path, steps: list[list[dict[str, Any]]], **options: Any) -> None:
        settings_path = tmp_path / "settings.json"
        events = (*hook_settings.EVENTS, hook_settings.FAILURE_EVENT)
        hooks = hook_settings.with_hooks({}, hook_settings.hook_command(), events)
        settings_path.write_text(hook_settings.render(hooks))
        (tmp_path / "note.txt").write_text("hello " * 20)
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"steps": steps, "options": options}))
        done = rig.run("run", "--session", "s1", "--", sys.executable, CLI, str(settings_path), str(plan))
        assert (done.returncode, done.stderr) == (0, "")
        self.hooks = json.loads(done.stdout)
        rig.sink.wait_for(lambda records: any(isinstance(record, SessionEnd) for record in records))
        records = list(rig.sink.records)
        self.records = records
        self.matches = {record.call or "": record for record in records if isinstance(record, CallMatch)}
        self.starts = {record.call or "": record for record in records if isinstance(record, CallStart)}
        self.ends = {record.call or "": record for record in records if isinstance(record, CallEnd)}

    def of(self, agent_call_id: str) -> tuple[CallMatch, CallStart, CallEnd]:
        """The one call that a tool call became."""
        (match,) = [item for item in self.matches.values() if item.agent_call_id == agent_call_id]
        return match, self.starts[match.call or ""], self.ends[match.call or ""]


@pytest.mark.parametrize("loader", LOADERS)
def test_tool_calls_are_found_among_the_kernels_and_hooks_are_none(tmp_path: Path, loader: str) -> None:
    """Its own shell script around each command, parallel tools, a search, a tool in the agent, a failure."""
    steps = [
        [
            bash("toolu_1", f"echo 'it''s' \"on\"; {sys.executable} -c '{ALLOCATE}'"),
            {"tool": "Read", "id": "toolu_2", "input": {"file_path": str(tmp_path / "note.txt")}},
        ],
        [
            bash("toolu_3", "sleep 0.3 && git --version"),
            bash("toolu_4", "sleep 0.4"),
            bash("toolu_5", "sleep 0.3; exit 3"),
        ],
    ]
    with running_daemon(tmp_path, loader) as rig:
        run = Run(rig, tmp_path, steps, linger_s=0.4)

    assert {(hook["code"], hook["output"]) for hook in run.hooks} == {(0, "")}
    assert len(run.hooks) == 2 + 2 * 5
    found = {
        match.agent_call_id: (match.agent_tool, match.confidence, match.how, match.position)
        for match in run.matches.values()
    }
    exact = ("Bash", "exact", "command text", 1)
    assert found == {
        "toolu_1": exact,
        "toolu_2": ("Read", "none", "it runs within the agent", 0),
        **dict.fromkeys(["toolu_3", "toolu_4", "toolu_5"], exact),
    }
    # The hooks themselves are no calls, and no other records tell of them.
    assert set(run.starts) == set(run.ends) == set(run.matches)
    runtimes = [record.comm for record in run.records if isinstance(record, ProcExec) and record.call is None]
    assert [comm for comm in runtimes if comm == "sh"] == []

    match, _, end = run.of("toolu_1")
    assert (end.peak_bytes or 0) > 40 << 20
    assert (end.duration_us or 0) > 400_000
    assert match.result_chars == len("its on\n")
    assert match.began_us is not None
    assert match.ended_us is not None
    assert match.began_us - 20_000 <= run.starts[match.call or ""].t <= match.ended_us
    match, start, end = run.of("toolu_2")
    assert (start.boundary, start.category, start.command, start.pid) == ("hook", "read", "Read", None)
    assert (end.peak_bytes, end.lost, (end.result_chars or 0) > 120) == (None, False, True)
    assert run.starts[run.of("toolu_3")[0].call or ""].category == "git"
    match, _, end = run.of("toolu_5")
    assert (end.exit_code in (3, None), match.failed) == (True, True)
    notes = [record.text for record in run.records if isinstance(record, Note) and record.by == "hook"]
    assert notes == ["the agent asks its user for permission"]


@pytest.mark.kernel
@needs_root
def test_an_old_version_without_ids_and_one_without_shells(tmp_path: Path) -> None:
    """No ids, no word of failures, and two of the same command at once."""
    steps = [
        [bash("x", "sleep 0.2; true")],
        [bash("x", "sleep 0.8"), bash("x", "sleep 0.8")],
        [bash("x", "exit 1")],
        [bash("x", "exit 1")],
        [{"tool": "Grep", "id": "x", "input": {"pattern": "hello"}}],
    ]
    with running_daemon(tmp_path, "libbpf") as rig:
        run = Run(rig, tmp_path, steps, ids=False, failures=False, shell="plain", stagger_s=0.15)
    found = [
        (match.agent_tool, match.agent_call_id, match.confidence)
        for match in sorted(run.matches.values(), key=lambda match: match.began_us or 0)
    ]
    # Whether the second hook had spoken when the first of the two began is a matter of the machine.
    second = found[1][2]
    assert second in ("exact", "likely")
    assert found == [
        ("Bash", "hook-1", "exact"),
        ("Bash", "hook-2", second),
        ("Bash", "hook-3", "likely"),
        ("Bash", "hook-4", "exact"),
        ("Bash", "hook-5", "exact"),
        ("Grep", "hook-6", "likely"),
    ]
    assert set(run.starts) == set(run.matches)


@pytest.mark.kernel
@needs_root
def test_what_the_agent_runs_for_itself_and_refused_tools(tmp_path: Path) -> None:
    steps = [
        [bash("toolu_1", "sleep 0.3")],
        [bash("toolu_2", "rm -rf /nonexistent", refused=True)],
        [bash("toolu_3", "sleep 0.2; rm -rf /nonexistent")],
    ]
    with running_daemon(tmp_path, "libbpf") as rig:
        run = Run(rig, tmp_path, steps, statusline=["git", "--version"])
    own = [call for call, start in run.starts.items() if start.command == "git"]
    assert len(own) == 3
    assert not set(own) & set(run.matches)
    assert [match.agent_call_id for match in run.matches.values()] == ["toolu_1", "toolu_3"]


def test_arguments_are_recorded_only_when_asked_for(tmp_path: Path) -> None:
    steps = [
        [
            {"tool": "Read", "id": "t1", "input": {"file_path": str(tmp_path / "note.txt")}},
            {"tool": "mcp__x__y", "id": "t2", "input": {"query": "secret words"}},
        ]
    ]
    commands = {}
    for record_args in (False, True):
        directory = tmp_path / str(record_args)
        directory.mkdir()
        with running_daemon(directory, record_args=record_args) as rig:
            run = Run(rig, tmp_path, steps)
            commands[record_args] = [run.of(id_)[1].command for id_ in ("t1", "t2")]
            said = b"".join(repr(record).encode() for record in run.records)
            assert (b"secret words" in said, b"note.txt" in said) == (record_args, record_args)
    assert commands == {False: ["Read", "mcp__x__y"], True: [f"Read {tmp_path}/note.txt", "mcp__x__y 'secret words'"]}
