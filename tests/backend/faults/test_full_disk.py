"""A disk that fills during an import: really full, a small one of memory in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

PROGRAM = """
import json, subprocess, sys, time
from pathlib import Path

import zstandard

from tests.support.scenes import scene_lines, T0
from tests.support.server import running_server
from tidegate_collectors.link import Hello, LinkClient
from tidegate_collectors.records import Note

place = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tgtest", str(place)], check=True)
data = b"".join(line + b"\\n" for line in scene_lines(sessions=20, ticks=1500))
packed = zstandard.ZstdCompressor(level=3).compress(data)
said = {"plain": len(data), "packed": len(packed)}


def wait(what, condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


with running_server(place) as server, server.client() as client:
    link = LinkClient(server.link_socket, Hello(role="test", src="test-1", host="box"))
    link.start()
    link.send(Note(t=T0, text="before"))
    wait("before", lambda: link.stats.acked_seq == 0)
    answer = client.post("/api/runs?name=big.jsonl.zst", content=packed,
                         headers={"content-type": "application/octet-stream"}, timeout=60)
    job = answer.json()["job"]
    wait("the job", lambda: client.get("/api/jobs/" + job["id"]).json()["job"]["ended_us"] is not None)
    job = client.get("/api/jobs/" + job["id"]).json()["job"]
    said |= {"state": job["state"], "error": job["error"], "records": job["records"]}
    said["left"] = sorted(path.name for path in (place / "state" / "recordings").iterdir())
    link.send(Note(t=T0 + 1, text="after"))
    wait("after", lambda: link.stats.acked_seq == 1)
    status = client.get("/api/status").json()
    said |= {"ingest": status["ingest"]["state"], "lost": status["lost"]}
    said["runs"] = [row["kind"] for row in client.get("/api/runs").json()["runs"]]
    # and an upload for which there is no room
    answer = client.post("/api/runs?name=big.jsonl", content=data, timeout=60,
                         headers={"content-type": "application/octet-stream"})
    said |= {"upload": answer.json()["job"]["state"], "upload_error": answer.json()["job"]["error"]}
    said["left_then"] = sorted(path.name for path in (place / "state" / "recordings").iterdir())
    link.close(2.0)
    said["code"] = server.stop()
print(json.dumps(said))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_a_disk_that_fills_during_an_import_fails_the_job_and_nothing_else(tmp_path: Path) -> None:
    """GIVEN a backend on a small disk WHEN a recording is uploaded whose database does not fit THEN the job fails with
    the reason, nothing of it is left, and the live run goes on."""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["plain"] > 6 << 20 > said["packed"] * 4
    assert (said["state"], said["left"]) == ("failed", [])
    assert said["error"] == "the disk is full; big.jsonl.zst was not imported, and nothing of it is left"
    assert said["records"] > 0
    assert (said["ingest"], said["runs"], said["code"]) == ("running", ["live"], 0)
    assert (said["upload"], said["left_then"]) == ("failed", [])
    assert "there is no room for it" in said["upload_error"]
