"""``tidegate collect``: one process, one loop over the observer, the agents' socket and a timer.

The backend may be away: the link keeps records until it is back. Signals end the loop; then the collector says what it
will not see to its end, gives living processes back to the groups that they came from, removes its own groups and
detaches its programs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tidegate_collectors import __version__, paths
from tidegate_collectors.kernel.agent_server import AgentServer
from tidegate_collectors.kernel.capabilities import report
from tidegate_collectors.kernel.cgroups import CgroupTree
from tidegate_collectors.kernel.clock import now_us
from tidegate_collectors.kernel.collector import Collector
from tidegate_collectors.kernel.ledger import CallLedger
from tidegate_collectors.kernel.options import CollectError, Config, add_arguments, check
from tidegate_collectors.kernel.runtime_lock import RuntimeLock
from tidegate_collectors.kernel.sampler import PERIOD_S, Sampler, raise_file_limit
from tidegate_collectors.kernel.setup import call_naming, cgroup_capability, open_observer, open_tree
from tidegate_collectors.kernel.timers import Timer
from tidegate_collectors.kernel.tracker import Tracker
from tidegate_collectors.link.client import LinkClient
from tidegate_collectors.link.messages import Hello, new_src
from tidegate_collectors.link.peer import allowed_server_uids
from tidegate_collectors.records import Capability, Note

EXIT_UNAVAILABLE = 5
IDLE_PERIOD_S = 1.0

__all__ = ["CollectError", "Config", "Daemon", "add_arguments", "main"]

log = logging.getLogger("tidegate.collect")


def main(ns: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="tidegate collect: %(message)s")
    config = Config(
        runtime_dir=paths.runtime_dir(),
        link=ns.link or paths.link_socket(),
        loader=ns.loader,
        memory_source=ns.memory_source,
        cgroup_root=ns.cgroup_root,
        burst_bytes=ns.burst_bytes,
        window_us=ns.window_ms * 1000,
        record_args=ns.record_args,
        group=ns.group,
    )
    try:
        with Daemon(config) as daemon:
            daemon.run()
    except CollectError as error:
        print(f"tidegate collect: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    return 0


class Daemon:
    """Everything one collector holds, set up in the constructor and given back by :meth:`close`.

    Raises:
        CollectError: it cannot start.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._resources = contextlib.ExitStack()
        self._stopping = False
        try:
            self._set_up()
        except BaseException:
            self._resources.close()
            raise

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End cleanly: last records, empty groups, programs, sockets, the lock."""
        self._resources.close()

    def stop(self) -> None:
        """Make :meth:`run` return; safe from signal handlers and other threads."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Loop until :meth:`stop`, SIGINT or SIGTERM."""
        with self._signals():
            self._arm()
            while not self._stopping:
                for key, _ in self._selector.select(self.collector.next_move_s):
                    self._guarded(key.data)
                self._guarded(lambda: self.collector.move_due(time.monotonic()))
                self._arm()

    @staticmethod
    def _guarded(call: Callable[[], None]) -> None:
        """A defect that one session hits must not end the observation of all others. Each call consumes what woke it
        before it works on it, so this does not spin."""
        try:
            call()
        except Exception:
            log.exception("a defect; the observation goes on")

    # --- set-up ----------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        config, defer = self._config, self._resources.callback
        check(config)
        raise_file_limit()
        self._lock()
        tree, tree_note = open_tree(config.cgroup_root)
        if tree is not None:
            defer(tree.close)
        self.observer = open_observer(config)
        defer(self.observer.close)
        self._capabilities = [*self.observer.capabilities, cgroup_capability(tree, tree_note)]
        if config.probe:
            known = {item.name for item in self._capabilities}
            self._capabilities += [item for item in report(loaders=False) if item.name not in known]

        self._selector = selectors.DefaultSelector()
        defer(self._selector.close)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        defer(os.close, self._wake)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._timer = Timer()
        self._period_s = 0.0
        defer(self._timer.close)
        self._selector.register(self._timer.fileno(), selectors.EVENT_READ, self._tick)

        self._first_run = True
        self._new_run = False
        self.link = LinkClient(config.link, self._hello(), on_run=self._on_run)
        self.link.start()
        defer(self.link.close)

        reported = any("mark_victim" in item.name and item.available for item in self._capabilities)
        self.collector = Collector(
            observer=self.observer,
            tracker=Tracker(call_naming(config), window_us=config.window_us),
            sampler=Sampler(self.observer, kills_reported=reported),
            tree=tree,
            ledger=self._open_ledger(),
            send=self.link.send,
        )
        defer(self.collector.shutdown)
        try:
            server = AgentServer(config.runtime_dir / "agent.sock", self.collector.handle, self._selector, config.group)
        except KeyError:
            raise CollectError(f"there is no group {config.group!a}; create it or leave out --group") from None
        except OSError as error:
            raise CollectError(f"cannot listen on {config.runtime_dir / 'agent.sock'}: {error.strerror}") from error
        defer(server.close)
        self._server = server
        self._selector.register(self.observer.fileno(), selectors.EVENT_READ, self.collector.drain)

        self._send_capabilities()
        self._report_leftovers(tree)
        _tidy_memory()
        log.info(
            "observing with %s (memory: %s, cgroups: %s); agents register at %s; records go to %s",
            self.observer.name, self.observer.memory_source, tree.layout.name if tree else "none", server.path,
            config.link,
        )  # fmt: skip

    def _lock(self) -> None:
        directory = self._config.runtime_dir
        try:
            paths.make_private_dir(directory, owners=allowed_server_uids() if os.geteuid() == 0 else frozenset())
            lock = RuntimeLock(directory / "collect.lock")
        except BlockingIOError as error:
            raise CollectError(
                f"another collector (process {error.strerror}) serves {directory}; one is enough for a host"
            ) from None
        except OSError as error:
            raise CollectError(f"cannot use the runtime directory {directory}: {error.strerror or error}") from error
        self._resources.callback(lock.release)

    def _open_ledger(self) -> CallLedger:
        directory = self._config.runtime_dir / "sessions"
        try:
            ledger = CallLedger(directory)
        except OSError as error:
            raise CollectError(f"cannot use {directory}: {error.strerror or error}") from error
        self._resources.callback(ledger.close)
        return ledger

    def _hello(self) -> Hello:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return Hello(
            role="kernel",
            version=__version__,
            src=new_src("kernel"),
            host=socket.gethostname(),
            boot_id=boot_id,
            pid=os.getpid(),
            capabilities=[msgspec.to_builtins(item) for item in self._capabilities],
        )

    # --- the loop --------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Tick slowly while there is no session."""
        period_s = IDLE_PERIOD_S if self.collector.idle else PERIOD_S
        if period_s != self._period_s:
            self._period_s = period_s
            self._timer.every(period_s)

    def _tick(self) -> None:
        self._timer.read()
        self.collector.tick(now_us())
        self._server.close_idle()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self._new_run:
            self._new_run = False
            self._send_capabilities()
            self.collector.announce()

    def _on_run(self, run: str) -> None:
        """In the link's thread. The first run gets everything from the start; another one begins in the middle."""
        log.info("the backend writes run %s", run)
        if self._first_run:
            self._first_run = False
            return
        self._new_run = True
        os.eventfd_write(self._wake, 1)

    def _send_capabilities(self) -> None:
        t = now_us()
        for item in self._capabilities:
            # A copy each time: the link stamps what it is given.
            copy = Capability(t=t, plane=item.plane, name=item.name, available=item.available, reason=item.reason)
            self.link.send(copy)

    def _report_leftovers(self, tree: CgroupTree | None) -> None:
        for leftover in tree.leftovers if tree is not None else ():
            text = (
                f"processes of session {leftover.session} outlived an earlier collector and are not observed: "
                + ", ".join(str(pid) for pid in leftover.pids[:16])
            )
            log.warning("%s", text)
            self.link.send(Note(t=now_us(), text=text, by="collector"))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _tidy_memory() -> None:
    """Give back what only the start needed: trying the host's abilities takes more memory than observing it."""
    gc.collect()
    gc.freeze()  # what is here now stays; the collector need not look through it again
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
