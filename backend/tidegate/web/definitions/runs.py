"""The Runs page: past runs, imports, retention."""

from __future__ import annotations

from typing import Final

from ._definition import define

RUNS: Final = (
    define("run.kind", "kind", "How the run came here: live, recorded, imported or modelled.", "as recorded", "",
      "run.meta source", "An imported run was measured by somebody else; a modelled one by nobody."),
    define("run.host", "host", "The machine that was observed.", "of its first records", "", "host of records",
      "Not the machine that shows it."),
    define("run.length_us", "length", "From the first to the last record.", "last t less first t", "microseconds",
      "t of records", "Not the time that agents ran in it."),
    define("run.last_t_us", "last record", "When the last record was made.", "greatest t", "microseconds UTC",
      "t of records", "Not when it was imported."),
    define("run.records", "records", "Records that are stored.", "counted at commit", "records", "store",
      "Lost and skipped ones are not in it."),
    define("run.bytes", "size", "What the run takes on the disk.", "file size, or its share of the database", "bytes",
      "store", "Not the size of the file that was uploaded, nor of an export."),
    define("run.sessions", "sessions", "Agent runs in it.", "sessions with a record", "sessions", "store",
      "Not calls."),
    define("run.count", "runs", "Runs that fit what is searched for, and all.", "counted", "runs", "this page",
      "Not sessions."),
    define("job.bytes_done", "read", "How much of the file has been sent or read.", "counted", "bytes", "import",
      "Not what it takes on the disk."),
    define("job.percent", "done", "Share of the file that has been sent or read.", "bytes done / bytes of the file",
      "percent", "import", "Not a forecast of time."),
    define("job.records", "records", "Records that were taken so far.", "counted", "records", "import",
      "Not lines: one line of a foreign trace can make several."),
    define("job.skipped", "skipped", "Lines or entries that were not taken, or only with an estimate, all together.",
      "counted", "lines", "import", "Each reason is listed; the first of them with their line."),
    define("job.line", "line", "Line of the file that was skipped.", "counted from 1", "", "import",
      "In an archive it is a line of the file named beside it."),
    define("retention.max_age_days", "older than", "Runs that ended, or were imported, longer ago go.", "as given",
      "days", "this page", "Not the age of single records: a run goes or stays as a whole."),
    define("retention.max_size", "at most", "The oldest runs would go until the others take no more.", "as given",
      "bytes", "this page", "Not the size of the disk."),
    define("retention.runs", "would go", "Runs that these limits would delete.", "counted by the preview", "runs",
      "store", "Nothing is deleted by looking."),
    define("retention.freed", "frees", "What they take on the disk.", "sum of their sizes", "bytes", "store",
      "Not at once free where the database keeps the pages for later."),
)  # fmt: skip
"""Definitions of the Runs page."""
