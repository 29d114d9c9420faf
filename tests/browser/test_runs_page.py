"""The Runs page: upload, import, open, rename, export, delete; errors, cancelling, hostile names."""

from __future__ import annotations

import base64
import gzip
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Locator, Page

from tests.support import foreign_traces
from tests.support.browsing import LOW_CONTRAST, OVERFLOWING, UNDEFINED_NUMBERS, Watched
from tests.support.scenes import scene_lines
from tests.support.server import Server, running_server

pytestmark = pytest.mark.browser

Opened = Callable[..., Watched]
HOSTILE_FILE = "<img src=x onerror=alert(1)>.jsonl"


@pytest.fixture(scope="module")
def home() -> Iterator[Server]:
    """A live backend of this module's own: what is imported here is seen nowhere else."""
    with tempfile.TemporaryDirectory(prefix="tg-") as directory, running_server(Path(directory)) as running:
        yield running


@pytest.fixture(scope="module")
def keys(home: Server) -> list[str]:
    """Keys of all definitions."""
    with home.client() as client:
        return [entry["key"] for entry in client.get("/api/definitions").json()["definitions"]]


def _recording(title: str = "a scene", run: str = "20261130-2306-ab12", sessions: int = 2, ticks: int = 20) -> bytes:
    lines = scene_lines(sessions, ticks)
    lines[0] = lines[0].replace(b"a scene", title.encode()).replace(b"20261130-2306-ab12", run.encode())
    return b"\n".join(lines) + b"\n"


def _long_recording(lines: int = 150_000) -> bytes:
    """One that takes some seconds to import and none to make: the same sample over and over, with its number."""
    first, *others = _recording("long one", run="long").splitlines()
    sample = next(line for line in others if b'"mem.sample"' in line)
    head, tail = re.split(rb'(?<="seq":)\d+', sample)
    return b"\n".join([first, *(b"%s%d%s" % (head, number, tail) for number in range(1, lines))]) + b"\n"


def _upload(page: Page, *files: tuple[str, bytes]) -> None:
    payloads: list[FilePayload] = [
        {"name": name, "mimeType": "application/octet-stream", "buffer": body} for name, body in files
    ]
    page.set_input_files("#files", payloads)


def _job(page: Page, name: str) -> Locator:
    return page.locator("#jobs > li").filter(has=page.get_by_text(name, exact=True))


def _state(page: Page, name: str, words: str) -> Locator:
    job = _job(page, name).filter(has=page.locator(".job-state").get_by_text(words, exact=True))
    job.wait_for()
    return job


def _row(page: Page, title: str) -> Locator:
    return page.locator("#runs tbody tr").filter(has=page.get_by_text(title, exact=True))


def test_an_empty_place_says_what_to_do(opened: Opened, home: Server, screenshots: Path) -> None:
    page = opened(to=home).open("/runs")
    page.wait_for_selector("#runs tbody tr")

    assert "There is no recording yet. Import one above" in page.inner_text("#none")
    assert "● being written" in page.inner_text("#runs")
    assert "Tidegate recording" in page.inner_text("#formats")
    assert page.is_disabled("#runs button:has-text('Delete')")
    page.screenshot(path=screenshots / "runs-empty.png")


def test_a_recording_from_upload_to_deletion(opened: Opened, home: Server, screenshots: Path) -> None:
    page = opened(to=home).open("/runs")
    recording = _recording("first import")

    # Also of what is done within a tenth of a second it is told that it is being imported, and soon that it was.
    page.evaluate(
        """() => {
          window.told = [];
          const list = document.getElementById("jobs");
          new MutationObserver(() => {
            const words = list.querySelector(".job-state")?.textContent;
            if (words && words !== window.told.at(-1)?.[0]) window.told.push([words, performance.now()]);
          }).observe(list, { subtree: true, childList: true, characterData: true });
        }"""
    )
    _upload(page, ("first.jsonl.gz", gzip.compress(recording)))
    job = _state(page, "first.jsonl.gz", "imported")
    records = recording.count(b"\n")
    assert f"{records} records" in job.inner_text()
    told: list[tuple[str, float]] = page.evaluate("window.told")
    assert [words for words, _ in told][-2:] == ["importing", "imported"]
    row = _row(page, "first import")
    row.wait_for()
    for words in (str(records), "recorded", "box", "○ ended"):
        assert words in row.inner_text(), words
    page.screenshot(path=screenshots / "runs.png")

    # Open: the whole row is a way in.
    row.locator("td").nth(1).click()
    page.wait_for_function("() => document.getElementById('badge-mode')?.textContent.includes('first import')")
    assert "run=" in page.url
    page.wait_for_selector("#sessions tbody tr")
    assert page.locator("#sessions tbody tr").count() == 2
    page.click("nav a:has-text('Runs')")

    row.locator("button:has-text('Rename')").click()
    page.fill("#runs form.rename input", "second <b>name</b>")
    page.keyboard.press("Enter")
    row = _row(page, "second <b>name</b>")
    row.wait_for()

    row.locator("button:has-text('Export')").click()
    page.wait_for_selector("dialog[open]")
    with page.expect_download() as download:
        page.click("dialog a:has-text('.jsonl.gz')")
    assert download.value.suggested_filename.endswith(".jsonl.gz")
    exported = gzip.decompress(Path(download.value.path()).read_bytes())
    assert exported.count(b"\n") >= records
    page.wait_for_function("() => !document.querySelector('dialog').open")

    row.locator("button:has-text('Delete')").click()
    words = page.inner_text("dialog")
    assert "second <b>name</b>" in words and f"{records} records, 2 sessions" in words
    page.click("dialog button:has-text('Keep it')")
    assert row.count() == 1
    row.locator("button:has-text('Delete')").click()
    page.click("dialog button:has-text('Delete this run')")
    row.wait_for(state="detached")
    # What was done with the file is still told, also after a reload.
    page.reload()
    _state(page, "first.jsonl.gz", "imported").locator("button:has-text('Dismiss')").click()
    _job(page, "first.jsonl.gz").wait_for(state="detached")


def test_a_bad_file_says_what_was_wrong(opened: Opened, home: Server) -> None:
    page = opened(to=home).open("/runs")

    _upload(page, ("letter.txt", b"Dear operator,\nthis is no recording.\n"), ("empty.jsonl", b""))

    job = _state(page, "letter.txt", "failed")
    assert re.search(r"letter\.txt.*line 1|letter\.txt:1", job.inner_text().replace("\n", " ")), job.inner_text()
    empty = _state(page, "empty.jsonl", "failed")
    assert "the file is empty" in empty.inner_text()
    assert page.locator("#runs tbody tr").count() == 1
    for one in (job, empty):
        one.locator("button:has-text('Dismiss')").click()
        one.wait_for(state="detached")


def test_what_was_skipped_is_told_by_line(opened: Opened, home: Server, keys: list[str], screenshots: Path) -> None:
    watched = opened(to=home)
    page = watched.open("/runs")
    lines = _recording("with holes", run="holes").splitlines()
    lines[4] = b'{"broken": '
    lines[9] = b"<b>not json</b>"

    _upload(page, ("holes.jsonl", b"\n".join(lines) + b"\n"))

    job = _state(page, "holes.jsonl", "imported")
    job.locator("summary").click()
    text = job.inner_text()
    assert "2 skipped" in text
    assert re.search(r":5\b", text) and re.search(r":10\b", text), text
    assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
    assert page.evaluate(LOW_CONTRAST) == []
    page.screenshot(path=screenshots / "runs-skipped.png")


def test_an_upload_can_be_cancelled_and_tried_again(opened: Opened, home: Server, keys: list[str]) -> None:
    page = opened(to=home).open("/runs")
    page.wait_for_selector("#runs tbody tr")
    before = page.locator("#runs tbody tr").count()
    network = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 200_000}
    network.send("Network.enable")
    network.send("Network.emulateNetworkConditions", slow)
    body = _recording("slow one", run="slow", sessions=8, ticks=900)
    assert len(body) > 3_000_000

    _upload(page, ("slow.jsonl", body))
    job = _state(page, "slow.jsonl", "sending")
    page.wait_for_function("() => (document.querySelector('#jobs progress')?.value ?? 0) > 0.03")
    assert re.search(r"\d+ %", job.inner_text())
    assert page.locator("#jobs > li").filter(has_text="slow.jsonl").count() == 1
    assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
    job.locator("button:has-text('Cancel')").click()

    _state(page, "slow.jsonl", "cancelled")
    page.wait_for_timeout(800)
    with home.client() as client:
        states = [one["state"] for one in client.get("/api/jobs").json()["jobs"] if one["name"] == "slow.jsonl"]
    assert set(states) <= {"cancelled"}
    assert page.locator("#jobs > li").filter(has_text="slow.jsonl").count() == 1
    assert page.locator("#runs tbody tr").count() == before

    network.send("Network.emulateNetworkConditions", slow | {"uploadThroughput": -1})
    _state(page, "slow.jsonl", "cancelled").locator("button:has-text('Try again')").click()
    _state(page, "slow.jsonl", "imported")
    _row(page, "slow one").wait_for()


def test_an_import_can_be_cancelled(opened: Opened, home: Server) -> None:
    page = opened(to=home).open("/runs")
    body = gzip.compress(_long_recording(), 1)

    _upload(page, ("long.jsonl.gz", body), ("after.jsonl", _recording("after it", run="after")))
    # Pressed by a script the moment it is there: a click by hand would have to be quicker than the import.
    page.wait_for_function(
        """() => {
          const job = [...document.querySelectorAll("#jobs > li")]
            .find((one) => one.innerText.includes("long.jsonl.gz") && one.innerText.includes("importing"));
          [...job?.querySelectorAll("button") ?? []].find((one) => one.innerText === "Cancel")?.click();
          return Boolean(job);
        }"""
    )

    _state(page, "long.jsonl.gz", "cancelled")
    _state(page, "after.jsonl", "imported")
    _row(page, "after it").wait_for()
    assert _row(page, "long one").count() == 0


def test_files_can_be_dropped(opened: Opened, home: Server) -> None:
    page = opened(to=home).open("/runs")
    page.wait_for_selector("#runs tbody tr")
    body = base64.b64encode(_recording("dropped", run="dropped")).decode()

    page.evaluate(
        """(body) => {
          const bytes = Uint8Array.from(atob(body), (character) => character.charCodeAt(0));
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([bytes], "dropped.jsonl"));
          for (const kind of ["dragenter", "dragover", "drop"]) {
            document.body.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
            if (kind === "dragover") window.seen = !document.getElementById("drop-here").hidden;
          }
        }""",
        body,
    )

    assert page.evaluate("window.seen") is True
    assert page.is_hidden("#drop-here")
    _state(page, "dropped.jsonl", "imported")
    _row(page, "dropped").wait_for()


def test_hostile_names_are_text(opened: Opened, home: Server, keys: list[str], screenshots: Path) -> None:
    for scheme in ("dark", "light"):
        watched = opened(scheme, to=home)
        page = watched.open("/runs")
        if scheme == "dark":
            _upload(page, (HOSTILE_FILE, _recording("</td><script>alert(2)</script>", run="hostile")))
        row = _row(page, "</td><script>alert(2)</script>")
        row.wait_for()
        page.locator("#jobs .job-state:has-text('imported')").first.wait_for()

        assert page.locator("main img, main script").count() == 0
        assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
        assert page.evaluate(LOW_CONTRAST) == []
        row.locator("button:has-text('Delete')").click()
        assert "<script>alert(2)</script>" in page.inner_text("dialog")
        assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
        assert page.evaluate(LOW_CONTRAST) == []
        page.screenshot(path=screenshots / f"runs-delete-{scheme}.png")
        page.keyboard.press("Escape")
        watched.page.set_viewport_size({"width": 800, "height": 900})
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(OVERFLOWING) == []
        assert row.locator("button:has-text('Delete')").is_visible() and row.locator(".state").is_visible()
        page.screenshot(path=screenshots / f"runs-800-{scheme}.png")
        assert watched.complaints == []


def test_rows_are_found_and_reached_by_keys(opened: Opened, home: Server) -> None:
    page = opened(to=home).open("/runs")
    _row(page, "dropped").wait_for()

    page.fill("#filter", "dropped")
    assert page.locator("#runs tbody tr").count() == 1
    assert re.fullmatch(r"1 of \d+ runs", page.inner_text("#shown"))
    page.focus("#runs tbody tr")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('badge-mode')?.textContent.includes('dropped')")


def test_a_folder_of_somebody_elses_trace(
    opened: Opened, home: Server, keys: list[str], screenshots: Path, tmp_path: Path
) -> None:
    page = opened(to=home).open("/runs")
    folder = foreign_traces.agentcgroup_folder(tmp_path / "trace")
    archive = Path(shutil.make_archive(str(tmp_path / "their-trace"), "zip", folder.parent, folder.name))

    _upload(page, ("their-trace.zip", archive.read_bytes()))
    job = _state(page, "their-trace.zip", "imported")
    job.locator("summary").click()
    assert "left out or estimated" in job.inner_text()
    assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
    assert "imported, agentcgroup" in page.inner_text("#runs")
    job.locator("a:has-text('Open')").click()

    page.click("#sessions tbody tr a")
    page.wait_for_selector("#memory .main-svg")
    # The trace knows the memory of the whole session only, and the page says so where it is drawn.
    page.wait_for_selector("#memory-note:visible")
    page.wait_for_timeout(400)
    assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
    page.screenshot(path=screenshots / "session-imported.png")


def test_what_a_transcript_cannot_know_is_a_dash(
    opened: Opened, home: Server, keys: list[str], screenshots: Path, tmp_path: Path
) -> None:
    """A transcript has no memory: no count of bursts, no memory of a call, and no axis over nothing."""
    page = opened(to=home).open("/runs")
    _upload(page, ("talk.jsonl", foreign_traces.claude_transcript(tmp_path / "talk.jsonl").read_bytes()))
    _state(page, "talk.jsonl", "imported").locator("a:has-text('Open')").click()
    page.wait_for_selector("#sessions tbody tr")
    assert page.inner_text('#sessions tbody td[data-def="session.bursts"]') == "–"
    assert page.inner_text('#sessions tbody td[data-def="session.ooms"]') == "–"

    page.click("#sessions tbody tr a")
    page.wait_for_selector("#lanes rect.bar")
    page.focus("#lanes")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_selector("#call .facts")
    for key in ("call.bytes", "call.bursts", "call.processes"):
        assert page.inner_text(f'#call dd[data-def="{key}"]') == "–", key
    assert page.inner_text('#strip [data-def="session.bursts_in_calls"] b') == "–"
    for panel in ("memory", "wait", "pressure"):
        page.wait_for_selector(f"#{panel} .no-data:visible")
        assert page.inner_text(f"#{panel} .no-data") == "not in this trace"
    page.hover("#memory .drag")
    assert "0 B" not in page.inner_text("#readout")
    assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
    page.screenshot(path=screenshots / "session-transcript.png")

    page.click("nav a:has-text('Health')")
    page.wait_for_selector("#capabilities tbody tr")
    assert page.inner_text("h2.part >> nth=0").startswith("The run shown: ")
    assert page.inner_text("h2.part >> nth=1").startswith("This backend now")
    page.screenshot(path=screenshots / "status-imported.png", full_page=True)


def test_retention_shows_first_and_then_deletes(
    opened: Opened, home: Server, keys: list[str], screenshots: Path
) -> None:
    page = opened(to=home).open("/runs")
    _row(page, "dropped").wait_for()
    before = page.locator("#runs tbody tr").count()

    page.click("#retention button")
    assert "Give an age in days" in page.inner_text("#retention-error")
    page.fill("#max-size", "0")
    page.click("#retention button")
    page.wait_for_selector("#retention-preview table")
    assert f"{before - 1} runs would go" in page.inner_text("#retention-preview")
    assert "dropped" in page.inner_text("#retention-preview")
    assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
    assert page.evaluate(LOW_CONTRAST) == []
    page.screenshot(path=screenshots / "runs-retention.png", full_page=True)
    # Other limits make the preview stale: nothing can be deleted by it.
    page.fill("#max-age", "36500")
    assert page.locator("#retention-preview button").count() == 0
    page.fill("#max-age", "")
    page.click("#retention button")

    page.click(f"#retention-preview button:has-text('Delete these {before - 1} runs')")

    page.wait_for_function("() => document.getElementById('retention-preview').innerText.includes('deleted')")
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 1")
    assert "being written" in page.inner_text("#runs")
