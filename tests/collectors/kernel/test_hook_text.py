"""How well a command line fits the command that a hook told."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.kernel.hook_text import KERNEL_ARGV_BYTES, Command, Fit

SNAPSHOT = "/home/u/.claude/shell-snapshots/snapshot-bash-1764558123456-abc123.sh"


def wrapped(command: str) -> str:
    """The script that Claude Code makes of a command."""
    return f"source {SNAPSHOT} 2>/dev/null || true && eval {shlex.quote(command)} \\< /dev/null && pwd -P >| /tmp/c-cwd"


def cut(*argv: str) -> tuple[str, ...]:
    """What the kernel keeps of a command line."""
    data = b"\0".join(word.encode() for word in argv)[:KERNEL_ARGV_BYTES]
    return tuple(word.decode(errors="replace") for word in data.split(b"\0"))


@pytest.mark.parametrize(
    ("text", "argv", "fit"),
    [
        ("pytest -q", ["bash", "-c", "pytest -q"], Fit.EQUAL),
        (" pytest -q\n", ["bash", "-lc", "pytest -q"], Fit.EQUAL),
        ("ls", ["/bin/bash", "-c", "-l", wrapped("ls")], Fit.EQUAL),
        ("echo 'it''s' \"$HOME\"", ["/bin/bash", "-c", wrapped("echo 'it''s' \"$HOME\"")], Fit.EQUAL),
        ("cd x &&\npytest", ["/bin/bash", "-c", wrapped("cd x &&\npytest")], Fit.EQUAL),
        ("git diff HEAD", ["/usr/bin/git", "diff", "HEAD"], Fit.EQUAL),
        ("git log --oneline", ["bash", "-c", "set -e; git log --oneline; echo done"], Fit.CONTAINED),
        ("ls", ["bash", "-c", "ls /tmp; false"], Fit.NONE),
        ("git diff | head -5", ["head", "-5"], Fit.PART),
        ("git diff | head -5", ["git", "diff"], Fit.PART),
        ("git diff | head -5", ["git", "status"], Fit.PROGRAM),
        ("A=1 pytest", ["pytest", "-q"], Fit.PROGRAM),
        ("pytest -q", ["bash", "-c", "pytest -x"], Fit.NONE),
        ("pytest -q", ["bash", "-c", wrapped("pytest -x")], Fit.NONE),
        ("pytest -q", [], Fit.NONE),
        ("pytest -q", ["node"], Fit.NONE),
    ],
)
def test_fits(text: str, argv: list[str], fit: Fit) -> None:
    assert Command("Bash", text).fit(argv) == fit


def test_a_command_line_that_the_kernel_cut_fits_by_its_beginning() -> None:
    long = "python -c '" + "print(1); " * 80 + "'"
    assert Command("Bash", long).fit(cut("bash", "-c", long)) == Fit.CUT
    assert Command("Bash", long).fit(cut("bash", "-c", wrapped(long))) == Fit.CUT
    other = long.replace("print(1)", "print(2)", 1)
    assert Command("Bash", other).fit(cut("bash", "-c", wrapped(long))) == Fit.NONE
    # What ends just where the kernel's memory does may be longer.
    exactly = "x" * (KERNEL_ARGV_BYTES - len("bash\0-c\0"))
    assert Command("Bash", exactly).fit(cut("bash", "-c", exactly + "y")) == Fit.CUT


def test_searchers_have_no_command_but_a_program() -> None:
    grep = Command("Grep", None)
    assert grep.starts_processes
    assert [grep.fit(argv) for argv in (["/opt/rg", "-n", "x"], ["git", "status"])] == [Fit.PROGRAM, Fit.NONE]
    assert not Command("Read", None).starts_processes


@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1, max_size=80).filter(lambda text: text.strip() and "\0" not in text))
def test_any_command_is_found_in_the_agents_script(text: str) -> None:
    assert Command("Bash", text).fit(["bash", "-c", text]) == Fit.EQUAL
    quoted = "'" + text.replace("'", "'\\''") + "'"
    assert Command("Bash", text).fit(["bash", "-c", f"true && eval {quoted} \\< /dev/null"]) >= Fit.CONTAINED


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200), st.lists(st.text(max_size=200), max_size=5))
def test_nothing_is_too_strange(text: str, argv: list[str]) -> None:
    assert Command("Bash", text).fit(argv) in Fit
