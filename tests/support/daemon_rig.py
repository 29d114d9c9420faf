"""A real collector in a thread, its records in a sink, and the real command line against it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.own_cgroups import new_root_name, remove_root
from tests.support.record_sink import RecordSink
from tidegate_collectors.kernel.daemon import Daemon
from tidegate_collectors.kernel.options import Config

TIDEGATE = str(Path(sys.executable).with_name("tidegate"))


@dataclass
class DaemonRig:
    """``run`` starts a command line inside the environment of this collector."""

    daemon: Daemon
    sink: RecordSink
    runtime_dir: Path
    cgroup_root: str
    env: dict[str, str] = field(default_factory=dict)

    def popen(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """``tidegate`` with these arguments."""
        environment = {**self.env, **options.pop("env", {})}
        return subprocess.Popen([TIDEGATE, *command], env=environment, text=True, **options)

    def run(self, *command: str, timeout_s: float = 30, **options: Any) -> subprocess.CompletedProcess[str]:
        """``tidegate`` with these arguments, until it ends."""
        environment = {**self.env, **options.pop("env", {})}
        return subprocess.run(
            [TIDEGATE, *command], env=environment, text=True, capture_output=True, timeout=timeout_s, **options
        )


def environment_for(runtime_dir: Path) -> dict[str, str]:
    """The test's own environment with this runtime directory, and no session around it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "AGENT_RESOURCE"))}
    return {**kept, "TIDEGATE_RUNTIME_DIR": str(runtime_dir)}


@contextmanager
def running_daemon(runtime_dir: Path, loader: Any = "procfs", **settings: Any) -> Iterator[DaemonRig]:
    """A collector that observes until the block ends; then nothing of it is left."""
    root = new_root_name()
    config = Config(
        runtime_dir=runtime_dir,
        link=runtime_dir / "link.sock",
        loader=loader,
        cgroup_root=root,
        probe=settings.pop("probe", False),
        **settings,
    )
    try:
        with RecordSink(config.link) as sink, Daemon(config) as daemon:
            thread = threading.Thread(target=daemon.run)
            thread.start()
            try:
                yield DaemonRig(daemon, sink, runtime_dir, root, environment_for(runtime_dir))
            finally:
                daemon.stop()
                thread.join(10)
            daemon.close()
            assert sink.seqs == list(range(len(sink.seqs))), "no record was lost on the way"
    finally:
        remove_root(root)
