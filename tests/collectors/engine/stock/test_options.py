"""What may be asked for, and what is answered to the rest."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from tidegate.commands import main
from tidegate_collectors import collecting
from tidegate_collectors.engine.stock.options import Config, EngineOptionError, check

LINK = Path("/run/tidegate/link.sock")


def config(*arguments: str) -> Config:
    parser = argparse.ArgumentParser()
    collecting.add_arguments(parser)
    return check(parser.parse_args(["--engine", *arguments]), LINK)


def test_an_engine_on_this_machine_has_this_machines_name() -> None:
    found = config("http://127.0.0.1:8000/v1/", "--kv-events", "tcp://127.0.0.1:5557", "--kv-replay", "ipc:///tmp/rp")

    assert found == Config(
        url="http://127.0.0.1:8000", name=f"vllm-{socket.gethostname()}-8000", link=LINK,
        kv_events="tcp://127.0.0.1:5557", kv_replay="ipc:///tmp/rp",
    )  # fmt: skip
    assert config("https://gpu1/vllm/metrics").url == "https://gpu1/vllm"
    assert config("https://gpu1/vllm").name == "vllm-gpu1-443"


@pytest.mark.parametrize(
    "url", ["", "gpu1", "ftp://gpu1", "http://", "http://gpu1:0", "http://gpu1:99999", "http://gpu1/?a=1", "http://a b"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(EngineOptionError, match=r"http://127\.0\.0\.1:8000"):
        config(url)


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(EngineOptionError) as refused:
        config("http://user:hunter2@gpu1:8000")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["5557", "tcp://gpu1", "tcp://gpu1:0", "http://gpu1:5557", "inproc://x", "tcp://:1"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(EngineOptionError, match="--kv-events"):
        config("http://gpu1", "--kv-events", address)


def test_the_address_that_vllm_binds_is_not_one_to_connect_to() -> None:
    with pytest.raises(EngineOptionError, match=r"tcp://127\.0\.0\.1:5557"):
        config("http://gpu1", "--kv-events", "tcp://*:5557")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--interval", "0"), "--interval"),
        (("--interval", "nan"), "--interval"),
        (("--engine-name", ""), "--engine-name"),
        (("--engine-name", "x" * 65), "--engine-name"),
        (("--engine-name", "a\nb"), "--engine-name"),
        (("--kv-replay", "tcp://127.0.0.1:1"), "need --kv-events"),
        (("--kv-capture", "x"), "need --kv-events"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(EngineOptionError, match=said):
        config("http://gpu1", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kv-events", "tcp://127.0.0.1:1"], "--kv-events needs --engine"),
        (["--engine-name", "x"], "--engine-name needs --engine"),
        (["--engine", "http://gpu1", "--loader", "bcc"], "--loader is of the kernel's observation"),
        (["--engine", "http://gpu1", "--record-args"], "--record-args is of the kernel's observation"),
        (["--engine", "nonsense"], "--engine: 'nonsense'"),
    ],
)
def test_options_of_the_two_planes_are_not_mixed(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", *arguments]) == 2
    assert said in capsys.readouterr().err
