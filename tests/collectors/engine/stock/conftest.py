"""A short place for sockets, and a backend's end of the link."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.record_sink import RecordSink


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tgs") as directory:  # short: paths of sockets are
        yield Path(directory)


@pytest.fixture
def sink(place: Path) -> Iterator[RecordSink]:
    with RecordSink(place / "link.sock") as found:
        yield found
