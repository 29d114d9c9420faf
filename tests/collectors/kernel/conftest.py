"""Fixtures of all tests of the kernel collector."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bpf import loader as loader
from tidegate_collectors import paths


@pytest.fixture(scope="package", autouse=True)
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A state directory of our own, where what BCC compiled is kept from one test to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(paths.STATE_ENV, str(tmp_path_factory.mktemp("state")))
        yield
