"""How ``tidegate run`` sends an agent's requests through the gateway of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_rig import gateway_rig
from tidegate_collectors.agent.gateway import portfile
from tidegate_collectors.agent.gateway.exporting import gateway_urls
from tidegate_collectors.agent.gateway.main import add_arguments
from tidegate_collectors.agent.gateway.options import Config, GatewayError, check

NAMES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of its own, which the gateway of the test announces itself in."""
    with tempfile.TemporaryDirectory(prefix="tgx") as name:
        monkeypatch.setenv("TIDEGATE_RUNTIME_DIR", name)
        for variable in NAMES:
            monkeypatch.delenv(variable, raising=False)
        yield Path(name)


async def test_without_a_gateway_nothing_is_set(runtime_dir: Path) -> None:
    assert gateway_urls(None, "s", {}) == ({}, "")
    assert gateway_urls("none", "s", {}) == ({}, "")


async def test_with_a_gateway_its_addresses_are_set_and_others_stay(runtime_dir: Path) -> None:
    async with gateway_rig(runtime_dir=runtime_dir) as rig:
        urls, said = gateway_urls(None, "s1", {})
        assert urls == {
            "OPENAI_BASE_URL": f"{rig.gateway.url}/session/s1/v1",
            "OPENAI_API_BASE": f"{rig.gateway.url}/session/s1/v1",
            "ANTHROPIC_BASE_URL": f"{rig.gateway.url}/session/s1",
        }
        assert rig.gateway.url in said
        # The engine's own address is replaced: its requests would pass the gateway by.
        upstream = f"http://localhost:{rig.upstream.port}/v1"
        elsewhere = {"OPENAI_BASE_URL": upstream, "ANTHROPIC_BASE_URL": "https://api.example.com"}
        urls, said = gateway_urls(None, "s1", elsewhere)
        assert set(urls) == {"OPENAI_BASE_URL", "OPENAI_API_BASE"}
        assert "ANTHROPIC_BASE_URL is set to another address and stays" in said
        urls, _ = gateway_urls(rig.gateway.url, "s1", elsewhere)
        assert set(urls) == set(NAMES)
    # Its file went with it.
    assert gateway_urls(None, "s1", {}) == ({}, "")


async def test_an_agent_under_tidegate_run_is_sent_there(runtime_dir: Path) -> None:
    script = "import os; print(os.environ.get('OPENAI_BASE_URL'), os.environ.get('TIDEGATE_SESSION'))"
    command = [sys.executable, "-m", "tidegate_collectors", "run", "--session", "mine"]
    async with gateway_rig(runtime_dir=runtime_dir) as rig:
        for options, said in (([], f"{rig.gateway.url}/session/mine/v1 mine"), (["--gateway", "none"], "None")):
            done = subprocess.run(  # noqa: ASYNC221
                [*command, *options, "--", sys.executable, "-c", script],
                env=dict(os.environ), capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith(said)


def test_a_gateway_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="--gateway"):
        gateway_urls("ftp://x", "s", {})


def test_a_file_of_somebody_elses_is_not_believed(runtime_dir: Path) -> None:
    path = runtime_dir / portfile.NAME
    portfile.write(path, "http://127.0.0.1:1", 1, "http://127.0.0.1:2")  # nobody listens there
    assert portfile.running(path) is None
    path.write_text("{not json")
    assert portfile.running(path) is None
    path.write_text("x" * 10_000_000)
    assert portfile.running(path) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--upstream", "ftp://x"], "--upstream"),
        (["--upstream", "http://user:secret@x"], "user or password"),
        (["--upstream", "http://x", "--host", "0.0.0.0"], "--allow-remote"),
        (["--upstream", "http://127.0.0.1:6457"], "own address"),
        (["--upstream", "http://x", "--port", "70000"], "--port"),
        (["--upstream", "http://x", "--max-body", "0"], "--max-body"),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], says: str, runtime_dir: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(GatewayError, match=says) as caught:
        check(parser.parse_args(options), runtime_dir)
    assert "secret" not in str(caught.value)


async def test_a_port_that_is_taken_is_said() -> None:
    async with gateway_rig() as rig:
        with pytest.raises(GatewayError, match="choose another --port"):
            async with gateway_rig(port=rig.port):
                pass


def test_what_is_not_set_has_safe_defaults() -> None:
    config = Config("http://x")
    assert (config.host, config.allow_remote) == ("127.0.0.1", False)
