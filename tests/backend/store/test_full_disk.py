"""A file system that is really full: a small one of memory, in a mount namespace that ends with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

PROGRAM = """
import asyncio, subprocess, sys
from pathlib import Path

from tests.support.scenes import scene_lines
from tidegate.store import Batch, NewRun, StoreFullError, open_store
from tidegate_collectors.records import decode

place = Path(sys.argv[1])


def room(options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tgtest", str(place)], check=True)


async def main():
    room("size=16k")
    try:
        await open_store(place / "t.db")
    except StoreFullError as error:
        print("start:", error)
    room("remount,size=300k")
    store = await open_store(place / "t.db")
    run = await store.create_run(NewRun(id="r", started_us=1, title="", host="", boot_id=""))
    lines = scene_lines(sessions=8, ticks=400)
    batch = Batch([decode(line) for line in lines], lines)
    try:
        await store.commit(run, batch)
    except StoreFullError as error:
        print("commit:", error)
    print("kept", run.last_ord)
    room("remount,size=30m")
    await store.commit(run, batch)
    print("whole", [line async for line in store.reads.raw_lines("r")] == lines)
    await store.close()


asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_a_disk_without_room_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    start, commit, kept, whole = done.stdout.splitlines()
    assert start.startswith("start:")
    assert commit.startswith("commit:")
    assert all("t.db: the disk is full" in line for line in (start, commit))
    assert (kept, whole) == ("kept 0", "whole True")
