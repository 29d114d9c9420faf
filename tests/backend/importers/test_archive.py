"""Unpacking archives that somebody made to do harm, and those that nobody did."""

from __future__ import annotations

import contextlib
import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.errors import BadInputError, NotFoundError, TidegateError
from tidegate.importers import Skipped
from tidegate.importers.archive import ArchiveLimits, is_archive, only_folder, unpack

FILES = {"run/a.json": b"[1, 2]", "run/deep/b.jsonl": b"{}\n" * 1000}


def _zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def _tar_bytes(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _tar(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(_tar_bytes(files))
    return path


def _tar_gz(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(gzip.compress(_tar_bytes(files)))
    return path


def _tar_zst(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(zstandard.compress(_tar_bytes(files)))
    return path


Maker = Callable[[Path, dict[str, bytes]], Path]
makers = pytest.mark.parametrize("make", [_zip, _tar, _tar_gz, _tar_zst])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


@makers
def test_all_kinds_unpack_to_the_same_files(make: Maker, tmp_path: Path, target: Path) -> None:
    source = make(tmp_path / "upload", FILES)

    root = unpack(source, target)

    assert is_archive(source)
    assert root == target / "run"
    assert (root / "a.json").read_bytes() == FILES["run/a.json"]
    assert (root / "deep" / "b.jsonl").read_bytes() == FILES["run/deep/b.jsonl"]


@makers
@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside", "run/../../outside", "C:/x", "..\\outside", "a\\..\\..\\b"]
)
def test_names_that_lead_out_are_refused(make: Maker, name: str, tmp_path: Path, target: Path) -> None:
    source = make(tmp_path / "upload", {name: b"x"})

    with pytest.raises(BadInputError, match="leads out"):
        unpack(source, target)

    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != source]


@makers
@pytest.mark.parametrize("name", ["a\x07b", "x" * 300, "/".join("d" * 30)])
def test_names_that_are_none_are_refused(make: Maker, name: str, tmp_path: Path, target: Path) -> None:
    with pytest.raises(BadInputError, match="no file name"):
        unpack(make(tmp_path / "upload", {name: b"x"}), target)


def test_links_and_devices_are_left_out_and_told(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "upload.tar"
    with tarfile.open(source, "w") as archive:
        for name, kind in [
            ("s", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("d", tarfile.CHRTYPE),
            ("p", tarfile.FIFOTYPE),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        member = tarfile.TarInfo("s/inside")  # through the link, had it been made
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    skipped = Skipped()

    unpack(source, target, skipped)

    assert [skip.place for skip in skipped.kept] == ["s", "h", "d", "p"]
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*")) == ["s", "s/inside"]
    assert (target / "s").is_dir()
    assert not (target / "s").is_symlink()


def test_a_link_in_a_zip_is_left_out(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "upload.zip"
    with zipfile.ZipFile(source, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    skipped = Skipped()

    unpack(source, target, skipped)

    assert skipped.total == 1
    assert not list(target.iterdir())


@makers
def test_a_bomb_is_stopped_by_its_ratio(make: Maker, tmp_path: Path, target: Path) -> None:
    source = make(tmp_path / "upload", {"zeros": bytes(8 << 20)})
    if make is _tar:
        return  # nothing is packed in it
    limits = ArchiveLimits(free_bytes=1 << 20)

    with pytest.raises(BadInputError, match="200 times its size"):
        unpack(source, target, limits=limits)

    assert sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) <= 3 << 20


@makers
def test_total_bytes_and_members_are_bounded(make: Maker, tmp_path: Path, target: Path) -> None:
    source = make(tmp_path / "upload", {f"f{i}": b"x" * 100 for i in range(50)})

    with pytest.raises(BadInputError, match="more than 49 members"):
        unpack(source, target, limits=ArchiveLimits(members=49))
    for path in target.iterdir():
        path.unlink()
    with pytest.raises(BadInputError, match="more than 1000 bytes"):
        unpack(source, target, limits=ArchiveLimits(total_bytes=1000))


def test_a_tar_header_that_wants_all_memory_is_refused(tmp_path: Path, target: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 3 << 30
    source = tmp_path / "upload.tar"
    source.write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))

    with pytest.raises(BadInputError, match="header of"):
        unpack(source, target)


@makers
def test_the_same_name_twice_is_refused(make: Maker, tmp_path: Path, target: Path) -> None:
    source = make(tmp_path / "upload", {"a": b"1", "./a": b"2"})

    with pytest.raises(BadInputError, match="same name"):
        unpack(source, target)


@makers
def test_a_file_that_is_also_a_folder_is_refused(make: Maker, tmp_path: Path, target: Path) -> None:
    with pytest.raises(BadInputError, match="same name"):
        unpack(make(tmp_path / "upload", {"a": b"1", "a/b": b"2"}), target)


def test_what_is_no_archive_is_said(tmp_path: Path, target: Path) -> None:
    plain = tmp_path / "recording.jsonl.gz"
    plain.write_bytes(gzip.compress(b'{"v": 1}\n' * 100))

    assert not is_archive(plain)
    assert not is_archive(tmp_path / "missing")
    with pytest.raises(BadInputError, match="no archive"):
        unpack(plain, target)
    with pytest.raises(NotFoundError):
        unpack(tmp_path / "missing", target)


def test_litter_of_file_managers_does_not_hide_the_only_folder(tmp_path: Path) -> None:
    for name in ("__MACOSX", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / ".DS_Store").write_bytes(b"")

    assert only_folder(tmp_path) == tmp_path / "run"


@pytest.mark.parametrize("make", [_zip, _tar, _tar_gz, _tar_zst])
@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_archives_raise_only_our_errors(
    make: Maker, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    source = make(folder / "upload", FILES)
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    source.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    (folder / "target").mkdir()

    with contextlib.suppress(TidegateError):
        unpack(source, folder / "target")
    assert {path.name for path in folder.iterdir()} == {"upload", "target"}
