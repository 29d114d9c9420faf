"""The playhead: where in the run a page stands."""

from __future__ import annotations

from typing import Final

from ._definition import define

PLAYHEAD: Final = (
    define("playhead.at_us", "position", "The instant that all tables, rows and badges show, since the run's start.",
      "position less the run's first record", "microseconds", "the URL's at; live: now",
      "Charts go beyond it: what is veiled had not happened yet."),
    define("playhead.clock", "time of day", "The position on the clock.", "position, in the browser's time zone", "",
      "the URL's at; live: now", "Not the clock of the browser: it is that of the observed host."),
    define("playhead.end_us", "end", "Length of the run: now, while it is being written.",
      "last record less the first, by the greatest t", "microseconds", "t of records", "Not the end of its sessions."),
    define("playhead.behind_us", "behind now", "How far the position lies before now.", "now less the position",
      "microseconds", "backend, the URL's at", "Not the delay of the records."),
    define("playhead.speed", "speed", "Seconds of the run that pass in one second.", "as chosen", "times",
      "this page", "Not the speed at which it was recorded."),
)  # fmt: skip
"""Definitions of the playhead."""
