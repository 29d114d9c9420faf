"""What is shipped and who may import whom, looked at from outside."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel that was built from the checkout."""
    target = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def files_below(folder: str, *suffixes: str) -> list[str]:
    root = REPOSITORY / folder
    found = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [str(path.relative_to(root)) for path in found if not suffixes or path.suffix in suffixes]


def test_every_module_is_shipped(wheel: set[str]) -> None:
    expected = {f"tidegate/{name}" for name in files_below("backend/tidegate", ".py", ".ini", ".mako", ".toml")}
    expected |= {
        f"tidegate_collectors/{name}"
        for name in files_below("collectors/tidegate_collectors", ".py", ".toml", ".c", ".h")
    }

    assert expected - wheel == set()
    assert "tidegate/py.typed" in wheel
    assert "tidegate_collectors/py.typed" in wheel


def test_the_pages_are_shipped_inside_the_package(wheel: set[str]) -> None:
    expected = {f"tidegate/frontend/{name}" for name in files_below("frontend")}

    assert any(name.endswith("/live.html") for name in expected)
    assert expected - wheel == set()


def test_the_migrations_the_rules_and_the_kernel_sources_are_shipped(wheel: set[str]) -> None:
    assert any(name.startswith("tidegate/store/migrations/versions/") for name in wheel)
    assert any(name.endswith("categories.toml") for name in wheel)
    assert "tidegate_collectors/kernel/bpf/collector.bpf.c" in wheel
    assert any(name.startswith("tidegate_collectors/kernel/bpf/") and name.endswith(".h") for name in wheel)
    assert any(name.endswith("/licenses/LICENSE") for name in wheel)


@pytest.mark.skipif(shutil.which("clang") is None, reason="without clang a wheel has the kernel programs' source only")
def test_the_compiled_kernel_programs_are_shipped(wheel: set[str]) -> None:

    assert "tidegate_collectors/kernel/bpf/collector.bpf.o" in wheel


def test_nothing_else_is_shipped(wheel: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"tidegate", "tidegate_collectors"}
    assert not any("__pycache__" in name or name.endswith((".pyc", ".db")) for name in wheel)


@pytest.mark.parametrize("module", ["tidegate_collectors.agent.run", "tidegate_collectors.kernel.daemon"])
def test_what_runs_beside_an_agent_loads_nothing_heavy(module: str) -> None:
    heavy = ["fastapi", "sqlalchemy", "uvicorn", "jinja2", "plotly", "numpy", "tidegate.store", "tidegate.web"]
    script = f"import {module}, sys; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)

    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("command", ["run", "exec", "collect", "version"])
def test_commands_beside_an_agent_load_nothing_heavy(command: str) -> None:
    script = (
        "import sys, tidegate.commands as c\n"
        f"try: c.main([{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in ('fastapi', 'sqlalchemy', 'numpy', 'uvicorn') if n in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)

    assert done.stderr.strip() == "[]"
    assert f"tidegate {command}" in done.stdout
