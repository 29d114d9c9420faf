"""The plugin's end of the link. Sending never waits; without a backend the newest records are kept, within bounds."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tidegate_collectors import paths
from tidegate_collectors.link import Hello, LinkClient, new_src
from tidegate_collectors.records import Record


class Sender(Protocol):
    """What the plane needs of the link: ``send`` stamps ``record.seq`` and returns at once."""

    def send(self, record: Record) -> None:
        """Send a record."""

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is left, and end."""


def connect(version: str, on_run: Callable[[str], None]) -> LinkClient:
    """The link to the backend of this machine, to be started by whoever keeps it.

    ``on_run`` is called in its thread when a run begins to be written.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    hello = Hello(
        role="engine",
        version=version,
        src=new_src("engine"),
        host=socket.gethostname(),
        boot_id=boot_id,
        pid=os.getpid(),
    )
    return LinkClient(paths.link_socket(), hello, on_run=on_run)
