"""The whole way: a real collector, a real allocation of 500 MB, seen in the browser while it happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browsing import Watched
from tests.support.own_cgroups import cgroup_root
from tests.support.server import Server

pytestmark = [
    pytest.mark.browser,
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="loading BPF programs and making cgroups needs root"),
]

BURST_BYTES = 500_000_000
AGENT = f"""
sleep 1
{sys.executable} -c 'import time; x = bytearray({BURST_BYTES}); x[::4096] = bytes(len(x[::4096])); time.sleep(4)'
sleep 1
"""


@pytest.fixture(scope="module")
def environment(server: Server) -> Iterator[dict[str, str]]:
    """A kernel collector with a cgroup tree of its own; the environment in which ``tidegate run`` finds it."""
    env = {**os.environ, "TIDEGATE_RUNTIME_DIR": str(server.runtime_dir), "TIDEGATE_STATE_DIR": str(server.state_dir)}
    with cgroup_root() as root:
        # A busy machine gives fresh pages at half a GB/s: a threshold that this reaches surely.
        options = ["--cgroup-root", root, "--record-args", "--burst-bytes", "20000000"]
        command = [sys.executable, "-m", "tidegate", "collect", *options]
        log = server.runtime_dir / "collect.log"
        with log.open("w") as output:
            collector = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_for(server.runtime_dir / "agent.sock", collector, log)
            yield env
        finally:
            collector.terminate()
            try:
                collector.wait(20)
            except subprocess.TimeoutExpired:
                collector.kill()
                collector.wait()
                raise


def _wait_for(socket: Path, collector: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 30
    while not socket.exists():
        assert collector.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def test_a_real_burst_is_seen_while_it_happens(
    opened: Callable[..., Watched], environment: dict[str, str], screenshots: Path
) -> None:
    page = opened().open("/")
    page.wait_for_function("() => document.getElementById('badge-conn').textContent === 'connected'")
    used_before = page.inner_text("#n-memory")
    command = [sys.executable, "-m", "tidegate", "run", "--session", "real", "--title", "a real burst", "--"]
    agent = subprocess.Popen([*command, "bash", "-c", AGENT], env=environment, stdout=subprocess.DEVNULL)
    try:
        # While the allocation is held: the call, its category, and more than 480 MB of calls in the row.
        page.wait_for_function(
            """() => {
              const row = document.querySelector('#sessions tr[data-id="real"]');
              const memory = row?.querySelector('[data-def="session.used_bytes"]')?.innerText;
              const [, calls] = memory?.match(/ ([\\d,]+) MB$/) ?? [];
              return calls && Number(calls.replace(',', '')) > 480;
            }"""
        )
        assert agent.poll() is None
        assert "running" in page.inner_text('#sessions tr[data-id="real"]')
        page.wait_for_function("() => document.getElementById('feed').innerText.includes('burst')")
        assert page.inner_text("#n-memory") != used_before
        page.screenshot(path=screenshots / "live-real-burst.png")
        assert agent.wait(60) == 0
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
    page.wait_for_selector('#sessions tr[data-id="real"] .state:has-text("ended")')

    page.click('#sessions tr[data-id="real"] a')
    page.wait_for_selector("#memory .main-svg")
    page.wait_for_selector("#lanes rect.bar")
    page.click('[data-twin="lanes"]')
    page.wait_for_selector("#panels table.figures")
    peaks = page.evaluate(
        """() => [...document.querySelectorAll('#panels table.figures tbody tr')]
             .map((row) => Number(row.cells[5].dataset.value))"""
    )
    assert max(peaks) == pytest.approx(BURST_BYTES, rel=0.05)
    page.click('[data-twin="lanes"]')
    page.wait_for_timeout(500)
    page.screenshot(path=screenshots / "session-real-burst.png")
