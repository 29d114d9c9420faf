"""What a stock vLLM shows to the outside, on real sockets: its metrics over HTTP, its KV events over ZMQ.

The metrics are those that a vLLM 0.32 gave after 18 requests of six sessions, on a pool of 64 blocks of 32 tokens.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import msgspec
import zmq

METRICS = (Path(__file__).parent / "data" / "vllm_0.32_metrics.txt").read_text()
POOL_BLOCKS = 64
BLOCK_TOKENS = 32
PROMPT_TOKENS = 5400

Form = Literal["map", "array"]


def stored(hashes: list[int | bytes], session: str | None = None, medium: str = "GPU", **more: Any) -> dict[str, Any]:
    """A BlockStored as vLLM 0.32 makes it, with token ids that nobody may keep."""
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
        "token_ids": [770_077] * BLOCK_TOKENS * len(hashes), "block_size": BLOCK_TOKENS, "lora_id": None,
        "medium": medium, "lora_name": None, "extra_keys": [None] * len(hashes), "group_idx": 0,
        "kv_cache_spec_kind": "full_attention", **({"session_id": session} if session else {}), **more,
    }  # fmt: skip


def removed(hashes: list[int | bytes], medium: str = "GPU") -> dict[str, Any]:
    """A BlockRemoved."""
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium, "group_idx": 0}


CLEARED: dict[str, Any] = {"type": "AllBlocksCleared"}

_ORDER = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip


def batch(events: list[dict[str, Any]], ts_s: float | None = None, form: Form = "map") -> bytes:
    """A batch on the wire: events as maps (0.24 and later) or as arrays that begin with their name (before)."""
    wire: list[Any] = events
    if form == "array":
        wire = [[event["type"], *(event[name] for name in _ORDER[event["type"]])] for event in events]
    return msgspec.msgpack.encode([time.time() if ts_s is None else ts_s, wire, 0])


class Publisher:
    """PUB and ROUTER as vLLM has them; its own thread answers replays. Use it as a context manager.

    Attributes:
        buffer: batches that a replay gives; tests may take some out.
        address, replay_address: where they are reached.
    """

    def __init__(self, directory: Path, form: Form = "map", replays: bool = True) -> None:
        self.form: Form = form
        self.address = f"ipc://{directory}/ev"
        self.replay_address = f"ipc://{directory}/rp"
        self.buffer: list[tuple[int, bytes]] = []
        self.seq = 0
        self.asked: list[int] = []
        self._replays = replays
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def __enter__(self) -> Publisher:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)  # as PUB, and tells who subscribes
        self._pub.bind(self.address)
        self._router = self._context.socket(zmq.ROUTER)
        if self._replays:
            self._router.bind(self.replay_address)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        for socket in (self._pub, self._router):
            socket.close(linger=0)
        self._context.term()

    def wait_for_subscriber(self, timeout_s: float = 5.0) -> None:
        """Wait until somebody listens: what was sent before is lost, as with vLLM."""
        assert self._pub.poll(int(timeout_s * 1000)), "nobody subscribes"
        self._pub.recv()

    def publish(self, *events: dict[str, Any], lose: bool = False, forget: bool = False, **more: Any) -> int:
        """Publish a batch; returns its number. ``lose``: it does not arrive; ``forget``: a replay has it neither."""
        payload = batch(list(events), form=self.form, **more)
        seq = self.seq
        self.seq += 1
        if not forget:
            with self._lock:
                self.buffer.append((seq, payload))
        if not lose:
            self.send(seq, payload)
        return seq

    def send(self, seq: int, payload: bytes) -> None:
        """Put a message on the wire, whatever it is."""
        self._pub.send_multipart([b"kv-events", seq.to_bytes(8, "big", signed=True), payload])

    def send_frames(self, *frames: bytes) -> None:
        """Put anything on the wire."""
        self._pub.send_multipart(list(frames))

    def restart(self) -> None:
        """The engine is another one: numbers begin again, nothing is kept."""
        with self._lock:
            self.buffer.clear()
        self.seq = 0

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            client, _, start = self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            with self._lock:
                kept = [item for item in self.buffer if item[0] >= first]
            for seq, payload in kept:
                self._router.send_multipart((client, b"", b"kv-events", seq.to_bytes(8, "big"), payload))
            self._router.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))


class Answers:
    """What the HTTP server says; tests change it while it runs."""

    def __init__(self) -> None:
        self.status = 200
        self.metrics = METRICS
        self.version: bytes = b'{"version":"0.32.0"}'
        self.models: bytes = json.dumps({"data": [{"id": "tiny"}]}).encode()
        self.body: bytes | None = None
        self.location = ""
        self.delay_s = 0.0
        self.asked: list[str] = []

    def set(self, name: str, value: float) -> None:
        """Change the value of a metric (all its series)."""
        self.metrics, count = re.subn(rf"(?m)^({re.escape(name)}(?:\{{.*\}})?) \S+$", rf"\1 {value}", self.metrics)
        assert count, name


@contextlib.contextmanager
def metrics_server(answers: Answers, port: int = 0) -> Iterator[str]:
    """vLLM's HTTP server, as far as we ask it; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append(self.path)
            time.sleep(answers.delay_s)
            pages = {"/metrics": answers.metrics.encode(), "/version": answers.version, "/v1/models": answers.models}
            body = answers.body if answers.body is not None else pages.get(self.path, b"")
            with contextlib.suppress(OSError):  # whoever asked may have left
                self.send_response(answers.status if self.path in pages else 404)
                if answers.location:
                    self.send_header("Location", answers.location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Quiet(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
