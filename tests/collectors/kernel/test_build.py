"""Compiling the BPF programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidegate_collectors.kernel import build

needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the sources, without objects."""
    copy = tmp_path / "bpf"
    copy.mkdir()
    for path in build.SOURCE_DIR.iterdir():
        if path.suffix in (".c", ".h"):
            shutil.copy(path, copy)
    return copy


@needs_clang
def test_builds_once_and_again_when_a_header_changes(sources: Path) -> None:
    first = build.ensure(source_dir=sources)
    assert first == sources / "collector.bpf.o"
    stamp = first.stat().st_mtime_ns
    assert build.ensure(source_dir=sources).stat().st_mtime_ns == stamp

    header = sources / "sched.h"
    header.write_text(header.read_text() + "\n/* changed */\n")
    wanted = build.source_hash("collector", sources)
    assert not build.is_current(first, wanted)
    assert build.ensure(source_dir=sources) == first
    assert build.is_current(first, wanted)


@needs_clang
def test_time_stamps_do_not_matter(sources: Path) -> None:
    built = build.ensure(source_dir=sources)
    os.utime(built, ns=(0, 0))
    build.ensure(source_dir=sources)
    assert built.stat().st_mtime_ns == 0


@needs_clang
def test_no_temporary_files_stay(sources: Path) -> None:
    build.ensure(source_dir=sources)
    assert not list(sources.glob(".*"))


def test_without_clang_it_says_what_to_install(sources: Path) -> None:
    with pytest.raises(build.BuildError, match="apt-get install clang libbpf-dev"):
        build.ensure(source_dir=sources, environ={"PATH": "/nowhere"})


@needs_clang
def test_without_the_headers_it_says_what_to_install(sources: Path) -> None:
    source = sources / "loader.h"
    # What clang says when the package is missing, brought about by a header path that leads nowhere.
    source.write_text(source.read_text().replace("<bpf/bpf_helpers.h>", "<nowhere/bpf/bpf_helpers.h>"))
    with pytest.raises(build.BuildError, match="apt-get install libbpf-dev"):
        build.ensure(source_dir=sources)


@needs_clang
def test_a_broken_program_shows_the_compilers_words_and_leaves_nothing(sources: Path) -> None:
    source = sources / "collector.bpf.c"
    source.write_text(source.read_text() + "\nint broken(void) { return nonsense; }\n")
    with pytest.raises(build.BuildError, match="nonsense"):
        build.ensure(source_dir=sources)
    assert not (sources / "collector.bpf.o").exists()


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"collector\.bpf\.c"):
        build.ensure(source_dir=tmp_path)


@needs_clang
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_read_only_package_is_built_in_the_state_directory(sources: Path) -> None:
    # Not below tmp_path: pytest closes its base directory to other users, whenever any pytest starts.
    with tempfile.TemporaryDirectory(prefix="tgtest-") as name:
        base = Path(name)
        base.chmod(0o755)
        package = base / "bpf"
        shutil.copytree(sources, package)
        package.chmod(0o755)
        state = base / "state"
        state.mkdir()
        os.chown(state, 65534, 65534)
        code = (
            "import os, pathlib, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
            "from tidegate_collectors.kernel import build; print(build.ensure(source_dir=pathlib.Path(sys.argv[1])))"
        )
        environ = {**os.environ, "TIDEGATE_STATE_DIR": str(state)}
        done = subprocess.run([sys.executable, "-c", code, str(package)], capture_output=True, text=True, env=environ)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(state / "bpf" / "collector.bpf.o")
        assert build.is_current(state / "bpf" / "collector.bpf.o", build.source_hash("collector", package))


def test_root_loads_nothing_from_a_directory_of_others(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a directory away")
    state = tmp_path / "state"
    (state / "bpf").mkdir(parents=True)
    os.chown(state / "bpf", 65534, 65534)
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(state))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere; here the package is read-only
    with pytest.raises(build.BuildError, match="belongs to uid 65534"):
        build.ensure(source_dir=sources)


@needs_clang
def test_the_command_says_where_the_objects_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate_collectors.kernel.build"], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == len(build.PROGRAMS)


def test_the_command_ends_with_words_for_people() -> None:
    code = (
        "import tidegate_collectors.kernel.build as b, pathlib, sys;"
        "b.ensure.__kwdefaults__['source_dir'] = pathlib.Path('/nowhere'); sys.exit(b.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("BPF programs were not built: the source")
