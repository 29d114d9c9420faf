"""The agents' socket against peers that are not what they seem, and against defects of our own."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidegate_collectors.kernel.agent_protocol import Request
from tidegate_collectors.kernel.agent_server import AgentServer
from tidegate_collectors.link.peer import Peer

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
REGISTER = b'{"verb":"register_session","session":"s"}\n'


class Rig:
    """A server whose handler notes who spoke; ``turn`` lets it do what is to do."""

    def __init__(self, path: Path, *, broken: bool = False) -> None:
        self.selector = selectors.DefaultSelector()
        self.peers: list[Peer] = []
        self.broken = broken
        self.path = path
        self.server = AgentServer(path, self._handle, self.selector)

    def _handle(self, peer: Peer, request: Request) -> dict[str, Any]:
        self.peers.append(peer)
        if self.broken:
            raise KeyError(request)
        return {}

    def turn(self) -> None:
        for _ in range(4):
            for key, _ in self.selector.select(0.05):
                key.data()

    def ask(self, sock: socket.socket) -> dict[str, Any]:
        sock.sendall(REGISTER)
        self.turn()
        answer: dict[str, Any] = json.loads(sock.recv(65536))
        return answer

    def close(self) -> None:
        self.server.close()
        self.selector.close()


def test_a_defect_is_answered_and_the_next_one_is_served(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "s", broken=True)
    try:
        for expected in (False, True):
            rig.broken = not expected
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(rig.path))
                assert rig.ask(sock)["ok"] is expected
    finally:
        rig.close()


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0 or not LAST_PID.exists(), reason="choosing process numbers needs root")
def test_nobody_speaks_for_a_process_that_took_the_number_of_a_dead_one(tmp_path: Path) -> None:
    """GIVEN a connection whose process left it to another and ended WHEN its number belongs to a stranger by now
    THEN a request does not capture the stranger."""
    rig = Rig(tmp_path / "s")
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    stranger = None
    hear, tell = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            try:
                sock.connect(str(rig.path))
                os.read(hear, 1)
            finally:
                os._exit(0)
        rig.turn()
        os.write(tell, b".")
        os.waitpid(child, 0)
        for _ in range(50):
            LAST_PID.write_text(str(child - 1))
            stranger = subprocess.Popen(["sleep", "20"])
            if stranger.pid == child:
                break
            stranger.kill()
            stranger.wait()
            stranger = None
        if stranger is None:
            pytest.skip("others took the process number")
        answer = rig.ask(sock)
        assert answer["ok"] is False
        assert "is gone" in answer["error"]
        assert rig.peers == []
    finally:
        if stranger is not None:
            stranger.kill()
            stranger.wait()
        sock.close()
        os.close(hear)
        os.close(tell)
        rig.close()
