"""The plugin in the engine's process: the real busy loop of the vLLM that is installed, without a model."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import DPEngineCoreProc, EngineCoreProc, EngineShutdownState

from tests.engine.conftest import BLOCKS, Engine
from tidegate_collectors.engine.plugin import idle

Make = Callable[..., Engine]
A = list(range(1000, 1100))
WATCHDOG_S = 20.0
TOUCHED = ("_handle_client_request", "run_busy_loop", "shutdown")


@pytest.fixture
def installed() -> Iterator[None]:
    """The engine's process knows our wake-up, and forgets it again."""
    before = {kind: dict(vars(kind)) for kind in (EngineCoreProc, DPEngineCoreProc)}
    idle.install()
    yield
    for kind, own in before.items():
        for name in TOUCHED:
            if name in own:
                setattr(kind, name, own[name])
            elif name in vars(kind):
                delattr(kind, name)
    del EngineCoreProc._tidegate_installed


def process_of(engine: Engine, kind: Any = EngineCoreProc) -> Any:
    """The engine's process around a scheduler, with what its busy loop looks at and no executor."""
    process = kind.__new__(kind)
    process.scheduler = engine.scheduler
    process.input_queue, process.aborts_queue = queue.Queue(), queue.Queue()
    process.shutdown_state = EngineShutdownState.RUNNING
    process.engines_running, process.batch_queue, process._idle_state_callbacks = False, None, []
    process.process_input_queue_block, process.publish_dp_lb_stats = True, False
    process.eep_scaling_state = None
    process.step_fn = lambda: (None, False)
    process.post_step = lambda model_executed: None
    return process


@pytest.mark.parametrize("kind", [EngineCoreProc, DPEngineCoreProc])
def test_a_pin_runs_out_while_the_busy_loop_waits(make_engine: Make, installed: None, kind: Any) -> None:
    # GIVEN an engine that holds a pin and has nothing to do
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=0.3)
    engine.step()  # the workers hear of the end in the next step; before it there is something to do
    assert engine.free() == BLOCKS - 6
    process = process_of(engine, kind)
    assert not process.has_work()
    ended: list[BaseException] = []

    def serve() -> None:
        try:
            process.run_busy_loop()
        except BaseException as error:
            ended.append(error)

    # WHEN its loop waits for requests
    loop = threading.Thread(target=serve, daemon=True)
    loop.start()
    deadline_s = time.monotonic() + WATCHDOG_S
    while engine.free() != BLOCKS and time.monotonic() < deadline_s:
        time.sleep(0.01)
    free, idle_still = engine.free(), loop.is_alive()
    process.shutdown_state = EngineShutdownState.SHUTTING_DOWN
    process.input_queue.put((EngineCoreRequestType.WAKEUP, None))
    loop.join(WATCHDOG_S)

    # THEN the pin is given back, and the loop ends as vLLM ends it
    assert (free, idle_still) == (BLOCKS, True)
    assert [type(error) for error in ended] == [SystemExit]


def test_a_plain_wake_up_is_vllms_own(make_engine: Make, installed: None) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=0.01)
    time.sleep(0.02)
    process = process_of(engine)

    process._handle_client_request(EngineCoreRequestType.WAKEUP, None)
    assert engine.free() == BLOCKS - 6
    process._handle_client_request(EngineCoreRequestType.WAKEUP, idle._Tick())
    assert engine.free() == BLOCKS


def test_without_a_plane_the_loop_is_vllms_own(make_engine: Make, installed: None) -> None:
    engine = make_engine()
    process = process_of(engine)
    process.scheduler = object()
    process._handle_client_request(EngineCoreRequestType.WAKEUP, idle._Tick())

    process.scheduler = engine.scheduler
    engine.plane.close()
    process.shutdown_state = EngineShutdownState.SHUTTING_DOWN
    with pytest.raises(SystemExit):
        process.run_busy_loop()


def test_installing_twice_is_installing_once(installed: None) -> None:
    once = [getattr(EngineCoreProc, name) for name in TOUCHED]
    idle.install()
    assert [getattr(EngineCoreProc, name) for name in TOUCHED] == once


_UNKNOWN = """
import json, logging, sys
import vllm
vllm.__version__ = sys.argv[1]
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("vllm.tidegate").addHandler(handler)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCoreProc
names = ("_handle_client_request", "run_busy_loop", "shutdown")
before = [getattr(EngineCoreProc, name) for name in names]
from tidegate_collectors.engine import plugin
plugin.register()
print(json.dumps({
    "scheduler": plugin.TidegateScheduler is Scheduler, "async": plugin.TidegateAsyncScheduler is AsyncScheduler,
    "process": before == [getattr(EngineCoreProc, name) for name in names], "said": said,
}))
"""


@pytest.mark.timeout(300)  # it imports vLLM anew
def test_a_vllm_that_is_not_known_is_left_as_it_was() -> None:
    version = "99.0.0"
    done = subprocess.run([sys.executable, "-c", _UNKNOWN, version], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["scheduler"] and found["async"] and found["process"]
    assert any(version in text and "known are" in text for text in found["said"])


def test_the_version_that_is_installed_is_known() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    from tidegate_collectors.engine import plugin

    assert issubclass(plugin.TidegateScheduler, Scheduler) and plugin.TidegateScheduler is not Scheduler
