"""The second loader: finding the real BCC, compiling for this kernel, and refusing what would give wrong figures."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf import needs_bcc, needs_root
from tidegate_collectors import paths
from tidegate_collectors.kernel import bcc_compile, build, selfcheck
from tidegate_collectors.kernel.bcc_compile import BTF, Compiled, compiled
from tidegate_collectors.kernel.bcc_find import BccMissingError, find_bcc
from tidegate_collectors.kernel.bcc_headers import kernel_layout
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.bpf_probes import probe_loaders
from tidegate_collectors.kernel.bpf_syscall import BpfCalls
from tidegate_collectors.kernel.btf import Btf, Field
from tidegate_collectors.kernel.libbpf import BpfError

pytestmark = pytest.mark.kernel


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory."""
    (tmp_path / "state").mkdir()
    monkeypatch.setenv(paths.STATE_ENV, str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def lattice(tmp_path: Path) -> Path:
    """A directory of packages in which somebody did ``pip install bcc``. Importing it leaves a trace."""
    package = tmp_path / "site-packages" / "bcc"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f'"""Top-level package for bcc."""\n\nopen({str(tmp_path / "imported")!r}, "w").close()\n'
        "__version__ = '0.1.10'\n\nfrom .bcc import *\n"
    )
    (package / "bcc.py").write_text("class BCC: 'N-dim invertible BCC lattice'\n")
    return package.parent


# --- which BCC -----------------------------------------------------------------------------------------------------


def test_the_package_of_that_name_on_pypi_is_told_apart(lattice: Path, tmp_path: Path) -> None:
    with pytest.raises(BccMissingError) as caught:
        find_bcc([lattice])
    words = str(caught.value)
    assert "apt-get install python3-bpfcc" in words
    assert "never with pip" in words
    assert f"{lattice / 'bcc'} is another package of that name (0.1.10; PyPI's bcc is about crystals)" in words
    with pytest.raises(build.BuildError, match="another package of that name"):
        compiled(directories=[lattice])
    assert not (tmp_path / "imported").exists(), "it is never imported"


@needs_bcc
def test_the_real_one_is_found_behind_it(lattice: Path, tmp_path: Path) -> None:
    found = find_bcc([lattice, "/usr/lib/python3/dist-packages"])
    assert found.path == Path("/usr/lib/python3/dist-packages/bcc")
    assert found.version[0].isdigit()
    assert len(found.ignored) == 1
    assert "another package of that name" in found.ignored[0]


@needs_bcc
@needs_root
def test_an_environment_with_the_wrong_one_still_loads(lattice: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(lattice)!r})\n"
        "from tidegate_collectors.kernel.bpf_observer import BpfObserver\n"
        "from tidegate_collectors.kernel.capabilities import _bcc\n"
        "BpfObserver(loader='bcc').close()\n"
        "print(_bcc().available, _bcc().reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True ")
    assert "PyPI's bcc is about crystals" in done.stdout
    assert not (tmp_path / "imported").exists()


def test_none_at_all_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(
        BccMissingError, match=r"^BCC is not installed: apt-get install python3-bpfcc .*never with pip$"
    ):
        find_bcc([tmp_path])


@needs_bcc
@needs_root
def test_one_that_others_can_change_is_not_used(tmp_path: Path) -> None:
    shutil.copytree("/usr/lib/python3/dist-packages/bcc", tmp_path / "bcc")
    (tmp_path / "bcc" / "libbcc.py").chmod(0o666)
    with pytest.raises(BccMissingError, match=r"libbcc\.py can be changed by others than root"):
        find_bcc([tmp_path])
    (tmp_path / "bcc" / "libbcc.py").chmod(0o644)
    os.chown(tmp_path / "bcc", 65534, 65534)
    with pytest.raises(BccMissingError, match="can be changed by others"):
        find_bcc([tmp_path])


@needs_bcc
def test_a_library_that_is_missing_is_named(tmp_path: Path, state: Path) -> None:
    shutil.copytree("/usr/lib/python3/dist-packages/bcc", tmp_path / "bcc")
    library = tmp_path / "bcc" / "libbcc.py"
    library.write_text(library.read_text().replace("libbcc.so.0", "libbcc.so.99"))
    with pytest.raises(build.BuildError, match=r"cannot be imported: libbcc\.so\.99"):
        compiled(directories=[tmp_path])


# --- compiling -----------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The sources with one small program in the place of ours: quick to compile."""
    copy = tmp_path / "bpf"
    copy.mkdir()
    for name in ("kernel_types.h", "loader.h", "collector.h", "maps.h"):
        shutil.copy(build.SOURCE_DIR / name, copy)
    (copy / "collector.bpf.c").write_text(
        '#include "kernel_types.h"\n#include "loader.h"\n#include "collector.h"\n#include "maps.h"\n'
        "TG_PROGRAM(on_exit, sched_process_exit, struct task_struct *task)\n{\n\tcount_loss(task->pid & 1);\n"
        "\treturn 0;\n}\nTG_SYSCALL(learn_cpus, void *context)\n{\n\treturn 0;\n}\n"
    )
    return copy


@needs_bcc
def test_what_was_compiled_is_kept_until_something_changes(sources: Path, state: Path) -> None:
    first = compiled(sources=sources)
    (kept,) = (state / "bpf").iterdir()
    stamp = kept.stat().st_mtime_ns
    assert kept.stat().st_mode & 0o777 == 0o600
    assert compiled(sources=sources) == first
    assert kept.stat().st_mtime_ns == stamp
    assert {program.tracepoint for program in first.programs.values()} == {"sched_process_exit", None}
    assert first.maps["events"].entries == 1 << 20

    for spoil in (lambda: kept.write_text("{"), lambda: kept.write_text(json.dumps({"programs": 1})),
                  lambda: kept.chmod(0o666)):  # fmt: skip
        content, mode = kept.read_bytes(), kept.stat().st_mode
        spoil()
        assert bcc_compile._read(kept) is None
        kept.write_bytes(content)
        kept.chmod(mode)
    kept.chmod(0o666)
    assert compiled(sources=sources) == first
    assert kept.stat().st_mode & 0o777 == 0o600, "it was made anew"

    header = sources / "collector.h"
    header.write_text(header.read_text() + "\n/* changed */\n")
    compiled(sources=sources)
    assert len(list((state / "bpf").iterdir())) == 2


@needs_bcc
def test_a_broken_program_shows_the_compilers_words(sources: Path, state: Path) -> None:
    source = sources / "collector.bpf.c"
    source.write_text(source.read_text() + "\nstatic int broken(void) { return nonsense; }\n")
    with pytest.raises(build.BuildError, match=r"do not compile with BCC:\n(.*\n)*.*undeclared identifier 'nonsense'"):
        compiled(sources=sources)
    assert list((state / "bpf").iterdir()) == [], "nothing is left, of the headers neither"


@needs_bcc
def test_a_kernel_without_btf_or_with_another_says_so(tmp_path: Path, state: Path) -> None:
    with pytest.raises(build.BuildError, match=r"No such file or directory; the kernel needs CONFIG_DEBUG_INFO_BTF"):
        compiled(btf_path=tmp_path / "none")
    (tmp_path / "nonsense").write_bytes(b"nonsense" * 100)
    with pytest.raises(build.BuildError, match="does not begin as BTF does"):
        compiled(btf_path=tmp_path / "nonsense")


@needs_bcc
def test_headers_are_not_written_where_everybody_may_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "open"))
    monkeypatch.setenv(paths.STATE_ENV, str(tmp_path / "none"))
    with pytest.raises(build.BuildError, match=r"others may exchange what lies in .*open; .*set TMPDIR"):
        compiled()
    assert not (tmp_path / "none").exists()


@needs_bcc
@needs_root
def test_root_keeps_nothing_and_compiles_nothing_in_a_state_directory_of_others(sources: Path, state: Path) -> None:
    """GIVEN the state directory of a web process THEN it cannot exchange what root's programs are made of."""
    os.chown(state, 65534, 65534)
    (state / "bpf").mkdir(mode=0o700)  # root's; but they may put another in its place, and back
    before = state.stat().st_mtime_ns, (state / "bpf").stat().st_mtime_ns
    assert compiled(sources=sources).programs
    assert (state.stat().st_mtime_ns, (state / "bpf").stat().st_mtime_ns) == before


# --- what is refused -----------------------------------------------------------------------------------------------


class Shifted(Btf):
    """The kernel's types, with one field elsewhere."""

    def shift(self, struct: str, field: str, by: int) -> Shifted:
        self._shifted = struct, field, by
        return self

    def field(self, struct_name: str, field: str) -> Field:
        found = super().field(struct_name, field)
        struct, name, by = self._shifted
        return dataclasses.replace(found, offset=found.offset + by) if (struct, name) == (struct_name, field) else found


@pytest.fixture(scope="module")
def true_types() -> Iterator[Shifted]:
    yield Shifted(BTF.read_bytes())


def programs_in_use() -> set[str]:
    """Descriptors of BPF programs that this process holds."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the directory itself
            if "bpf-prog" in str(path.readlink()):
                found.add(path.name)
    return found


@needs_bcc
@needs_root
@pytest.mark.parametrize(
    ("field", "by", "words"),
    [
        # The verifier knows pointers and the ends of structs, so it finds a part of this itself.
        (("task_struct", "cgroups"), 8, "loading the BPF programs: Permission denied"),
        (("signal_struct", "group_exit_code"), 4, "self-check: exit code 37 was seen as"),
        (("mm_struct", "hiwater_rss"), 8, "self-check: a process that had"),
        # A thread taken for a process: pid read where tgid lies.
        (("task_struct", "pid"), 4, "self-check: the ids of a call"),
        # An array whose elements have another size: no fault, no error, the wrong counter.
        (("mm_struct", "rss_stat"), 40, "self-check: a process that grew by 16777216 bytes was seen to grow by 0"),
    ],
)
def test_wrong_layouts_are_refused(
    true_types: Shifted, monkeypatch: pytest.MonkeyPatch, field: tuple[str, str], by: int, words: str
) -> None:
    monkeypatch.setattr(selfcheck, "_TIMEOUT_S", 2.0)
    types = (build.SOURCE_DIR / "kernel_types.h").read_text()
    layout = kernel_layout(types, true_types.shift(*field, by))
    before = programs_in_use()
    with pytest.raises(BpfError) as caught:
        BpfObserver(loader="bcc", programs=compiled(layout=layout), memory_source="rss_stat")
    assert words in str(caught.value)
    assert programs_in_use() == before, "nothing stays loaded"


def test_the_first_refusal_counts() -> None:
    """Kernels before 6.4 refuse a program that is loaded again for its messages with ENOSPC when those are too long."""

    class Older(BpfCalls):
        def _call(self, command: int, attributes: bytes) -> int:
            return -errno.ENOSPC if struct.unpack_from("=I", attributes, 28)[0] else -errno.EACCES  # the log's size

    with pytest.raises(BpfError) as caught:
        Older().load_program("x", 1, bytes(8), b"GPL")
    assert caught.value.code == errno.EACCES


def without(programs: Compiled, name: str) -> Compiled:
    """The same on a kernel without the tracepoint of one program."""
    changed = {**programs.programs, name: dataclasses.replace(programs.programs[name], btf_id=None)}
    return dataclasses.replace(programs, programs=changed)


@needs_bcc
@needs_root
def test_a_tracepoint_that_this_kernel_lacks_is_named() -> None:
    programs = compiled()
    with pytest.raises(BpfError, match=r"this kernel has no sched_switch \(program on_switch\)"):
        BpfObserver(loader="bcc", programs=without(programs, "on_switch"), check=False)
    observer = BpfObserver(loader="bcc", programs=without(programs, "on_victim"), check=False)
    notes = {item.name: item for item in observer.capabilities}
    assert notes["tp_btf.mark_victim"].reason == "this kernel has no mark_victim (program on_victim)"
    assert notes["tp_btf.sched_switch"].available
    observer.close()
    other = BpfObserver(loader="bcc", programs=without(programs, "on_rss_stat"), check=False)
    assert other.memory_source == "memcg", "the other source is taken"
    other.close()


@needs_bcc
@needs_root
def test_a_kernel_function_that_is_missing_is_named() -> None:
    programs = compiled()
    function = dataclasses.replace(programs.kfuncs["bpf_task_from_pid"], btf_id=None)
    lacking = dataclasses.replace(programs, kfuncs={**programs.kfuncs, "bpf_task_from_pid": function})
    with pytest.raises(BpfError, match="this kernel has no bpf_task_from_pid, which tag_process calls"):
        BpfObserver(loader="bcc", programs=lacking, check=False)


# --- which loader --------------------------------------------------------------------------------------------------

_CHOOSE = """
import sys
from pathlib import Path
from tidegate_collectors.kernel import build
from tidegate_collectors.kernel.options import Config
from tidegate_collectors.kernel.setup import open_observer
observer = open_observer(Config(Path("."), Path("x"), loader=sys.argv[1]))
print(Path(build.__file__).parent)
print(getattr(observer, "loader", observer.name))
for item in observer.capabilities:
    if item.name.startswith(("loader.", "observer.")):
        print(item.name, item.available, item.reason)
observer.close()
"""


def choose(package: Path, loader: str) -> list[str]:
    """What a collector of that package chooses on a host without clang."""
    done = subprocess.run(
        [sys.executable, "-c", _CHOOSE, loader],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(package), "PATH": "/nowhere"},
    )
    assert done.returncode == 0, done.stderr
    where, *lines = done.stdout.splitlines()
    assert Path(where).is_relative_to(package)
    return lines


@needs_bcc
@needs_root
def test_without_compiled_programs_and_clang_bcc_is_taken(tmp_path: Path) -> None:
    """A host where only python3-bpfcc is there."""
    package = Path(bcc_compile.__file__).parents[1]
    copy = tmp_path / "collectors" / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("*.bpf.o", "__pycache__"))
    used, libbpf, bcc = choose(copy.parent, "auto")
    assert used == "bcc"
    assert libbpf.startswith("loader.libbpf False clang is missing, it compiles the BPF programs")
    assert bcc == "loader.bcc True in use"
    shutil.rmtree(copy / "kernel" / "bpf")  # not even the source: neither can be had
    used, observer, libbpf, bcc = choose(copy.parent, "auto")
    assert used == "procfs"
    assert observer.startswith("observer.bpf False libbpf: the source of the BPF programs is missing")
    assert "; bcc: the source of the BPF programs is missing" in observer
    assert libbpf.startswith("loader.libbpf False")
    assert bcc.startswith("loader.bcc False")


@needs_bcc
@needs_root
def test_the_doctor_says_what_a_collector_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(item.name, item.available) for item in probe_loaders()] == [("loader.libbpf", True), ("loader.bcc", True)]
    monkeypatch.setattr(selfcheck, "EXIT_CODE", 38)  # the helper ends with another
    for item in probe_loaders():
        assert (item.available, item.reason) == (False, "self-check: exit code 38 was seen as wait status 0x2500")
    assert programs_in_use() == set()


@needs_bcc
@needs_root
def test_where_both_work_libbpf_is_taken_and_the_other_is_told_of() -> None:
    package = Path(bcc_compile.__file__).parents[2]
    used, libbpf, bcc = choose(package, "auto")
    assert (used, libbpf) == ("libbpf", "loader.libbpf True in use")
    assert bcc.startswith("loader.bcc True not in use: libbpf works; BCC ")
    used, libbpf, bcc = choose(package, "bcc")
    assert (used, bcc) == ("bcc", "loader.bcc True in use")
    assert libbpf == "loader.libbpf False not asked for (--loader bcc)"
