"""Shells of our own in PATH: what they run is a call, and finds everything as it would be without them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon_rig import TIDEGATE, environment_for, running_daemon
from tidegate_collectors.agent import shim
from tidegate_collectors.records import CallEnd, CallStart, SessionEnd

BASH = shutil.which("bash") or "/bin/bash"


@pytest.fixture
def directory() -> Iterator[str]:
    """Shims for the PATH of the test, as the launcher makes them."""
    made = f"{tempfile.gettempdir()}/{shim.PREFIX}{os.urandom(4).hex()}"
    shim.write_shims(made, os.environ["PATH"])
    yield made
    shim.remove_shims(made)


@pytest.fixture
def env(tmp_path: Path, directory: str) -> dict[str, str]:
    plain = environment_for(tmp_path)
    return {**plain, "PATH": f"{directory}:{plain['PATH']}"}


PROBE = """
import json, os, signal, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
with open("/proc/self/environ", errors="surrogateescape") as file:  # this Python may have changed os.environ
    environment = dict(entry.split("=", 1) for entry in file.read().split("\\0") if entry)
descriptors = sorted(os.listdir("/proc/self/fd"))[:4]
signals = [status["SigIgn"], status["SigBlk"]]
print(json.dumps([sys.argv[1:], environment, signals, descriptors, os.getcwd(), sys.stdin.read()]))
"""


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LC_CTYPE": "C.UTF-8"}], ids=["none", "C", "UTF-8"])
def test_what_runs_finds_everything_as_without_it(
    env: dict[str, str], directory: str, tmp_path: Path, locale: dict[str, str]
) -> None:
    """The environment (but for the PATH that had the shims), arguments, $0, input, descriptors and signals."""
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    script = f'exec {sys.executable} -I {probe} "$0" "$@" "$AB"'
    arguments = ["-c", script, "my name", "a b", "$x", "", "*"]
    base = {name: value for name, value in env.items() if not name.startswith(("LC_", "LANG"))}
    base = {**base, **locale, "AB": "é\n'"}
    outputs = []
    for path, search in ((f"{directory}/bash", env["PATH"]), (BASH, env["PATH"].partition(":")[2])):
        command = [path, *arguments]
        done = subprocess.run(
            command, env={**base, "PATH": search}, input="in", capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        outputs.append(json.loads(done.stdout))
    with_shim, without = outputs
    for seen in outputs:
        seen[1].pop("_", None)
    assert with_shim == without
    assert with_shim[0] == ["my name", "a b", "$x", "", "*", "é\n'"]
    assert with_shim[-1] == "in"


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["-c", "exit 7"], 7, ""),
        (["-c", "kill -TERM $$"], -signal.SIGTERM, ""),
        (["-c", "no-such-program-x"], 127, ""),
        (["-c", "echo $0"], 0, "bash\n"),
        (["-c", "command -v bash; bash -c 'command -v bash'"], 0, f"{BASH}\n{BASH}\n"),
        (["-ec", "false; echo on"], 1, ""),
        (["--", "/dev/stdin"], 5, "from a script\n"),
        ([], 5, "from a script\n"),
    ],
)
def test_exit_codes_and_ways_to_start_a_shell(
    env: dict[str, str], arguments: list[str], code: int, output: str
) -> None:
    done = subprocess.run(
        ["bash", *arguments], env=env, input="echo from a script; exit 5", capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (code, output)


def test_a_signal_reaches_the_command(env: dict[str, str]) -> None:
    script = "sleep 60 >/dev/null & trap 'kill $!; exit 42' TERM; echo ready; wait"
    with subprocess.Popen(["bash", "-c", script], env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 42


def test_a_closed_pipe_ends_the_command(env: dict[str, str]) -> None:
    """Python ignores SIGPIPE; what we become must not."""
    done = subprocess.run(
        [BASH, "-c", "set -o pipefail; bash -c 'while :; do echo y; done' | head -1"],
        env=env, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (128 + signal.SIGPIPE, "y\n")


def test_a_missing_or_hanging_collector_costs_a_moment(env: dict[str, str], tmp_path: Path) -> None:
    import socket

    path = tmp_path / "agent.sock"
    inside = {**env, "TIDEGATE_SESSION": "s1", "TIDEGATE_AGENT_SOCKET": str(path)}
    assert subprocess.run(["bash", "-c", "exit 3"], env=inside, timeout=30).returncode == 3
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        began = time.monotonic()
        assert subprocess.run(["bash", "-c", "exit 3"], env=inside, timeout=30).returncode == 3
        assert time.monotonic() - began < 3 + shim.TIMEOUT_S


def test_two_sets_of_shims_end_at_the_real_shell(env: dict[str, str], tmp_path: Path) -> None:
    other = str(tmp_path / f"{shim.PREFIX}other")
    shim.write_shims(other, os.environ["PATH"])
    both = {**env, "PATH": f"{other}:{env['PATH']}"}
    done = subprocess.run(["bash", "-c", "echo $PATH"], env=both, capture_output=True, text=True, timeout=30)
    assert shim.PREFIX not in done.stdout
    assert done.returncode == 0


def test_only_shells_that_are_there_get_a_shim(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to(BASH)
    made = str(tmp_path / "shims")
    assert shim.write_shims(made, str(tmp_path / "bin")) == f"{made}:{tmp_path}/bin"
    assert [path.name for path in Path(made).iterdir()] == ["bash"]
    assert Path(made).stat().st_mode & 0o777 == 0o700
    (tmp_path / "shims" / "mine").write_text("")
    shim.remove_shims(made)
    assert [path.name for path in Path(made).iterdir()] == ["mine"]


AGENT = """
import subprocess, sys, time
for command in (["bash", "-c", sys.argv[1]], ["sh", "-c", "sleep 0.3; exit 4"], ["/bin/sh", "-c", "sleep 0.3; true"]):
    print(subprocess.run(command).returncode, flush=True)
"""
LOADERS = [
    "procfs",
    pytest.param("libbpf", marks=[pytest.mark.kernel, pytest.mark.skipif(os.geteuid() != 0, reason="BPF needs root")]),
]


@pytest.mark.parametrize("loader", LOADERS)
def test_what_an_agent_runs_by_a_shells_name_is_a_call_with_its_whole_command(tmp_path: Path, loader: str) -> None:
    """GIVEN a command longer than the kernel keeps, whose end decides WHEN it is run THEN the call is named by that."""
    long = ": " + "x " * 400 + "; sleep 0.3; bash -c 'sleep 0.1'; git --version"
    (tmp_path / "tmp").mkdir()
    with running_daemon(tmp_path, loader) as rig:
        done = rig.run(
            "run", "--session", "s1", "--shim", "--", sys.executable, "-c", AGENT, long,
            env={"TMPDIR": str(tmp_path / "tmp")},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-3:] == ["0", "4", "0"]
        rig.sink.wait_for(lambda records: any(isinstance(record, SessionEnd) for record in records))
        starts = [record for record in rig.sink.records if isinstance(record, CallStart)]
        ends = {record.call: record for record in rig.sink.records if isinstance(record, CallEnd)}
    assert [start.boundary for start in starts] == ["wrapper", "wrapper", "fork"]
    assert (starts[0].tool, starts[0].category) == ("git", "git")
    assert [start.tool for start in starts[1:]] == ["sleep", "sleep"]
    assert len(ends) == 3
    assert not list((tmp_path / "tmp").iterdir())


def test_without_a_collector_there_are_no_shims(tmp_path: Path) -> None:
    env = environment_for(tmp_path)
    done = subprocess.run(
        [TIDEGATE, "run", "--shim", "--", "sh", "-c", "echo $PATH"], env=env, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout.strip()) == (0, env["PATH"])
