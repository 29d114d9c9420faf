from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from tests.support.ingesting import OpenedRecording, opened_recording
from tests.support.scenes import T0, scene_lines, stamped
from tidegate.errors import BadInputError, NotFoundError
from tidegate.ingest.lines import Bounds
from tidegate_collectors.records import MAX_LINE_BYTES, Loss, MemSample


def text(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def samples(count: int, src: str = "k-1") -> list[bytes]:
    return stamped([MemSample(t=T0 + i, session="s", subject="runtime", anon_bytes=i) for i in range(count)], src=src)


async def losses(recording: OpenedRecording) -> list[tuple[str, str, int]]:
    reads = recording.store.reads
    batches = [batch async for batch in reads.records(recording.run.id)]
    found = [record for batch in batches for _, record in batch if isinstance(record, Loss)]
    return [(loss.where, loss.of, loss.count) for loss in found]


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd", "zstd in two frames"])
async def test_a_recording_opens_whatever_it_is_packed_with(tmp_path: Path, packing: str) -> None:
    lines = scene_lines()
    data = text(lines)
    pack = zstandard.ZstdCompressor().compress
    packed = {
        "plain": data,
        "gzip": gzip.compress(data),
        "zstd": pack(data),
        "zstd in two frames": pack(data[:100]) + pack(data[100:]),
    }[packing]
    async with opened_recording(tmp_path / "any name.txt", packed) as recording:
        assert (recording.run.id, recording.run.title) == ("20261130-2306-ab12", "a scene")
        assert (recording.run.source, recording.run.clean, recording.run.started_us) == ("recorded", True, T0)
        assert [line async for line in recording.store.reads.raw_lines(recording.run.id)] == lines
        report = recording.report.to_dict()
        assert (report["records"], report["lines"], report["errors_total"]) == (len(lines), len(lines), 0)
        assert report["ended_clean"] is True
        assert not any(report[key] for key in ("cut_last_line", "gaps", "lost", "duplicates", "clock_back", "errors"))


async def test_broken_lines_are_named_with_line_and_column_and_the_rest_is_read(tmp_path: Path) -> None:
    lines = scene_lines()
    lines[4] = lines[4][:25] + b"}" + lines[4][25:]
    lines[7] = b'{"type":"mem.sample","v":1,"seq":7,"src":"kernel-1","t":1,"subject":"moon","anon_bytes":1}'
    lines[9] = b"\xff\xfe"
    async with opened_recording(tmp_path / "r.jsonl", text(lines)) as recording:
        report = recording.report
        assert report.errors_total == 3
        places = [(error.line, error.column is not None) for error in report.errors]
        assert places == [(5, True), (8, False), (10, True)]
        assert str(report.errors[0]).startswith(f"{tmp_path / 'r.jsonl'}:5:26: not JSON")
        assert "moon" in str(report.errors[1])
        assert report.records == len(lines) - 3
        # each is one loss, and its hole in seq not another one
        assert await losses(recording) == [("import", "lines", 1)] * 3
        assert (report.lost, report.gaps) == (3, 0)


async def test_a_broken_line_has_the_time_of_the_last_good_record(tmp_path: Path) -> None:
    lines = samples(6)
    bad_time = b'{"type":"note","v":1,"seq":0,"src":"k-0","t":-1,"text":"x"}'
    async with opened_recording(tmp_path / "r.jsonl", text([bad_time, *lines[:3], b"broken", *lines[3:]])[:-20]) as one:
        batches = [batch async for batch in one.store.reads.records(one.run.id)]
        found = [record for batch in batches for _, record in batch if isinstance(record, Loss)]
        assert [(loss.t, loss.since_us) for loss in found] == [(T0, None), (T0 + 2, T0 + 2), (T0 + 4, T0 + 4)]
        assert one.run.ended_us == T0 + 4
    # also when the broken line is the first of what is read at once
    async with opened_recording(tmp_path / "r.jsonl", text(samples(4096))[:-1] + b"\nbroken") as two:
        (loss,) = [r async for b in two.store.reads.records(two.run.id) for _, r in b if isinstance(r, Loss)]
        assert loss.t == T0 + 4095


async def test_many_broken_lines_are_all_counted_and_the_first_named(tmp_path: Path) -> None:
    async with opened_recording(tmp_path / "r.jsonl", text(scene_lines()) + b"nonsense\n" * 250) as recording:
        assert (recording.report.errors_total, len(recording.report.errors)) == (250, 100)


async def test_a_cut_last_line_is_tolerated_and_reported(tmp_path: Path) -> None:
    data = text(scene_lines())
    async with opened_recording(tmp_path / "cut.jsonl", data[:-20]) as cut:
        assert cut.report.cut_last_line
        assert cut.report.records == len(scene_lines()) - 1
        assert not cut.run.clean
    async with opened_recording(tmp_path / "no newline.jsonl", data[:-1]) as whole:
        assert not whole.report.cut_last_line
        assert whole.report.records == len(scene_lines())
    half = gzip.compress(text(scene_lines(sessions=20, ticks=100)))[:-3000]
    async with opened_recording(tmp_path / "cut.jsonl.gz", half) as packed:
        assert packed.report.cut_last_line
        assert packed.report.records > 100
        assert any("damaged or cut" in str(error) for error in packed.report.errors)


async def test_gaps_clock_and_doubles_are_found(tmp_path: Path) -> None:
    lines = samples(10)
    back = stamped([MemSample(t=T0 + d, subject="host", anon_bytes=1) for d in (9_000_000, 0)], src="other")
    async with opened_recording(tmp_path / "r.jsonl", text(lines[2:5] + lines[8:] + lines[9:] + back)) as recording:
        report = recording.report
        # a recording may begin in the middle; what was before is not missing
        assert (report.gaps, report.lost, report.duplicates, report.clock_back) == (1, 3, 1, 1)
        assert await losses(recording) == [("import", "k-1", 3)]


async def test_a_loss_that_the_recording_tells_already_is_not_told_twice(tmp_path: Path) -> None:
    lines = samples(10)
    told = stamped([Loss(t=T0, where="link", count=3, of="k-1")], src="backend-1")
    async with opened_recording(tmp_path / "r.jsonl", text(lines[:5] + told + lines[8:])) as recording:
        assert recording.report.gaps == 0
        assert await losses(recording) == [("link", "k-1", 3)]


async def test_unknown_types_and_fields_are_kept_and_counted(tmp_path: Path) -> None:
    new = b'{"type":"of.tomorrow","v":1,"seq":0,"src":"x","t":5,"a":{"b":1}}'
    old = b'{"type":"note","v":1,"seq":1,"src":"x","t":6,"text":"t","colour":"red"}'
    async with opened_recording(tmp_path / "r.jsonl", text([*scene_lines(), new, old])) as recording:
        assert recording.report.unknown_types == {"of.tomorrow": 1}
        assert recording.report.unknown_fields == {"note.colour": 1}
        assert [line async for line in recording.store.reads.raw_lines(recording.run.id)][-2:] == [new, old]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n  \n", "the file is empty"),
        (b"SQLite format 3\0" + b"\0" * 100, "an SQLite database"),
        (b'[{"type":"note"}]', "a JSON array"),
        (b'{"traceEvents": []}', "a Chrome trace"),
        (b'{"level":"info","msg":"x"}\n', "JSON lines of another program"),
        (b"time,cpu,mem\n1,2,3\n", "CSV"),
        (b"<html></html>", "HTML or XML"),
        (b"hello", "seems to be text"),
        (b"\x7fELF\x02\x01", "a program"),
        (b'{\n  "a": 1\n}', "over several lines"),
        (b'{"type":"note","v":2,"seq":0,"src":"x","t":1,"text":"x"}\n', "r.jsonl:1: record version 2; this Tidegate"),
        (b"\x1f\x8b\x08\x00garbage that is no gzip", "damaged or cut"),
    ],
)
async def test_what_is_no_recording_is_refused_with_what_it_seems_to_be(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(BadInputError, match=r"r\.jsonl") as caught:
        async with opened_recording(tmp_path / "r.jsonl", data):
            pass
    assert message in str(caught.value)


async def test_a_file_that_is_not_there_or_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        async with opened_recording(tmp_path / "no.jsonl"):
            pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInputError, match="directory"):
        async with opened_recording(tmp_path / "folder"):
            pass


async def test_a_line_longer_than_a_record_is_passed_over(tmp_path: Path) -> None:
    lines = scene_lines()
    long = b'{"text":"' + b"x" * (3 * MAX_LINE_BYTES) + b'"}'
    async with opened_recording(tmp_path / "r.jsonl", text([lines[0], long, *lines[1:]])) as recording:
        assert recording.report.records == len(lines)
        assert [error.line for error in recording.report.errors] == [2]


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
async def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, packing: str) -> None:
    """GIVEN a bomb that begins like a recording WHEN it is read THEN it is refused long before it is unpacked."""
    data = text(scene_lines()[:1]) + b'{"x":"' + b" " * (80 << 20)
    packed = gzip.compress(data, 9) if packing == "gzip" else zstandard.ZstdCompressor().compress(data)
    assert len(packed) * 500 < len(data)
    with pytest.raises(BadInputError, match="more than 200 times its size"):
        async with opened_recording(tmp_path / "bomb.gz", packed):
            pass
    with pytest.raises(BadInputError, match=r"bomb\.gz: it unpacks to more than 0 GB"):
        async with opened_recording(tmp_path / "bomb.gz", bounds=Bounds(plain_bytes=1 << 20)):
            pass


async def test_a_file_of_junk_behind_a_good_line_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"most of its lines are no records; the first: .*:2:1: not JSON"):
        async with opened_recording(tmp_path / "r.jsonl", text(scene_lines()[:1]) + b"junk junk\n" * 300_000):
            pass


async def test_a_first_record_with_hostile_values_does_no_harm(tmp_path: Path) -> None:
    line = (
        b'{"type":"run.meta","v":1,"seq":0,"src":"x","t":%d,"run":"../../etc/passwd","title":"%s","host":"\\u0000"}'
    ) % (2**62, b"y" * 10_000)
    async with opened_recording(tmp_path / "r.jsonl", text([line, *samples(3)])) as recording:
        assert recording.run.id == "../../etc/passwd"  # whoever makes a file of it makes it safe: runs.folder
        assert len(recording.run.title) == 500
        assert recording.report.errors_total == 1  # the time
        assert recording.report.records == 3


async def test_the_name_of_the_run_may_be_chosen(tmp_path: Path) -> None:
    async with opened_recording(
        tmp_path / "r.jsonl", text(scene_lines()), name="theirs.jsonl", choose_id=lambda wanted: f"{wanted}-x"
    ) as recording:  # fmt: skip
        assert (recording.run.id, recording.run.title) == ("20261130-2306-ab12-x", "a scene")
        assert recording.report.path == "theirs.jsonl"
