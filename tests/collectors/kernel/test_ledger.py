"""Numbers of calls over restarts: some may be skipped, none comes twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.kernel.ledger import BLOCK, CallLedger


def test_a_session_that_ended_goes_on_exactly(tmp_path: Path) -> None:
    ledger = CallLedger(tmp_path / "l")
    assert ledger.begin("s1") == 1
    ledger.finish("s1", 8)
    assert ledger.begin("s1") == 8
    assert ledger.begin("s2") == 1
    assert CallLedger(tmp_path / "l").begin("s1") > 8, "it is open in the other one"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=6))
def test_a_killed_collector_never_repeats_a_number(tmp_path_factory: pytest.TempPathFactory, uses: list[int]) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    used: list[int] = []
    for count in uses:
        ledger = CallLedger(directory)  # the one before was killed: it finished nothing
        number = ledger.begin("s")
        for _ in range(count):
            used.append(number)
            number += 1
            ledger.ensure("s", number)
    assert len(used) == len(set(used))


def test_an_unreadable_entry_and_a_bad_name(tmp_path: Path) -> None:
    ledger = CallLedger(tmp_path)
    (tmp_path / "s").write_text("nonsense")
    assert ledger.begin("s") == 1
    with pytest.raises(ValueError, match="is refused"):
        ledger.begin("../s")


def test_what_cannot_be_written_does_not_keep_a_session_out(tmp_path: Path) -> None:
    """A full disk must not end the collector; here a directory is in the way of the file."""
    ledger = CallLedger(tmp_path)
    (tmp_path / "s").mkdir()
    assert ledger.begin("s") == 1
    ledger.ensure("s", 5 * BLOCK)
    ledger.finish("s", 6 * BLOCK)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """The directory above may belong to the backend's user, who must not have root write elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "l").symlink_to(elsewhere)
    with pytest.raises(OSError, match="l'"):
        CallLedger(tmp_path / "l")
    ledger = CallLedger(tmp_path / "ledger")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "ledger" / f"+{os.getpid()}").symlink_to(victim)
    ledger.begin("s")
    assert victim.read_text() == "kept"
    # The directory that was opened is the one that is written, whatever has its name by now.
    (tmp_path / "ledger").rename(tmp_path / "moved")
    (tmp_path / "ledger").symlink_to(elsewhere)
    (tmp_path / "moved" / f"+{os.getpid()}").unlink()
    ledger.begin("s2")
    assert (tmp_path / "moved" / "s2").exists()
    assert list(elsewhere.iterdir()) == []
    ledger.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l").mkdir()
    os.chown(tmp_path / "l", 65534, 65534)
    with pytest.raises(PermissionError, match="another user"):
        CallLedger(tmp_path / "l")


def test_ids_made_up_by_the_thousand_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_collectors.kernel.ledger.MAX_FILES", 10)
    ledger = CallLedger(tmp_path)
    for number in range(100):
        ledger.begin(f"s{number}")
        ledger.finish(f"s{number}", 2)
    assert len(list(tmp_path.iterdir())) <= 20
