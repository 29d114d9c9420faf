"""Finding, starting and refusing an engine, as far as that goes without a vLLM. The rest: tests/engine_live."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.demo import engine
from tidegate.errors import UnavailableError, UsageError

PYTHON = Path(sys.executable)
"""Has neither vLLM nor torch: Tidegate's own environment."""


def options(log: Path) -> engine.EngineOptions:
    return engine.EngineOptions(python=PYTHON, log=log)


def test_the_named_python_is_taken_and_the_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine.PYTHON_ENV, "/bin/sh")

    assert engine.find_python() == Path("/bin/sh")
    assert engine.find_python(PYTHON) == PYTHON


@pytest.mark.parametrize("name", ["none/python", "."])
def test_a_named_python_that_is_no_program_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"--vllm-python: .* is no program"):
        engine.find_python(tmp_path / name)


def test_a_half_finished_installation_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no environment beside the project, and one here whose installation broke off
    monkeypatch.delenv(engine.PYTHON_ENV, raising=False)
    monkeypatch.setattr(engine, "__file__", str(tmp_path / "site/tidegate/demo/engine.py"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv-vllm" / "bin").mkdir(parents=True)

    with pytest.raises(UnavailableError, match=r"run scripts/install_vllm\.sh"):
        engine.find_python()

    (tmp_path / ".venv-vllm" / ".tidegate-install").touch()
    assert engine.find_python() == tmp_path / ".venv-vllm" / "bin" / "python"


def test_a_python_without_torch_makes_no_model_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"cannot make the tiny model: .*No module named 'torch'"):
        engine.make_model(PYTHON, tmp_path)

    assert not list(tmp_path.iterdir())


def test_a_model_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        engine.make_model(PYTHON, tmp_path)
    name = f"tiny-model-128x2-{engine.model_version()}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").touch()

    assert engine.make_model(PYTHON, tmp_path) == tmp_path / name


def test_an_engine_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(UnavailableError, match=r"the engine ended with 1; .*\n.*No module named .?vllm"),
        engine.running_engine(options(tmp_path / "log"), tmp_path),
    ):
        pytest.fail("it cannot run")


def test_the_log_cannot_steer_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\n" * 100 + b"\x1b[2Jcleared \xff\n" + b"w" * 5000)

    tail = engine.log_tail(log).splitlines()

    assert len(tail) == 25
    assert tail[-2].endswith("?[2Jcleared ?") or "\x1b" not in tail[-2]
    assert max(map(len, tail)) == 304
    assert engine.log_tail(tmp_path / "none").strip().startswith("(")


def test_one_that_does_not_end_when_asked_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_STOP_TIMEOUT_S", 0.5)
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"

        engine.stop(engine.Engine(process, 1))

        assert process.returncode == -signal.SIGKILL
