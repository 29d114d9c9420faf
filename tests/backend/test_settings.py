from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tidegate import settings as module
from tidegate.errors import UsageError
from tidegate.settings import ENVIRONMENT, Settings


def test_the_table_the_variables_and_the_fields_are_the_same() -> None:
    assert module.__doc__ is not None
    documented = {line.split("``")[1] for line in module.__doc__.splitlines() if line.startswith("``TIDEGATE_")}
    assert documented == set(ENVIRONMENT)
    fields = {field.name for field in dataclasses.fields(Settings)}
    assert fields - set(ENVIRONMENT.values()) == {"replay", "login_url_file"}


def test_the_command_line_wins_over_the_environment() -> None:
    env = {
        "TIDEGATE_PORT": "7000",
        "TIDEGATE_STATE_DIR": "/s",
        "TIDEGATE_RUNTIME_DIR": "/r",
        "TIDEGATE_ALLOWED_HOSTS": "a.example, b.example",
        "TIDEGATE_LINK_UIDS": "1000,1001",
        "TIDEGATE_USER": "",
    }
    got = Settings.from_env(env, host="::1", port=None)
    assert (got.port, got.host, got.user) == (7000, "::1", None)
    assert (got.database, got.link_socket) == (Path("/s/tidegate.db"), Path("/r/link.sock"))
    assert (got.allowed_hosts, got.link_uids) == (("a.example", "b.example"), (1000, 1001))
    assert Settings.from_env(env, port=0).port == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TIDEGATE_PORT", "http"), ("TIDEGATE_PORT", "70000"), ("TIDEGATE_TICK_MS", "1"), ("TIDEGATE_LINK_UIDS", "me")],
)
def test_a_value_that_makes_no_sense_is_refused(variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{value}"):
        Settings.from_env({variable: value})
