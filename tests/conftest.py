"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest

collect_ignore = ["engine"]
"""Run by the Python of a vLLM environment (``run_tests.sh``)."""


def pytest_configure(config: pytest.Config) -> None:
    """Signals as in a terminal, also where the tests were started by nohup or in the background of a script.

    What is ignored there would be ignored by every program that a test starts, and bash cannot trap it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
