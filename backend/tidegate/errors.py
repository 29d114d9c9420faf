"""Errors that a person is meant to read.

::

    TidegateError              exit code 1
    ├── UsageError             2   the command line or a setting is wrong
    ├── NotFoundError          3   a run, session or file that does not exist
    ├── BadInputError          4   a file or line that cannot be read, with its place
    ├── UnavailableError       5   this host cannot do it, with the reason
    └── StoreError             6   the database cannot be opened or written

A message says what was wrong, where, and what to do next; the handler in :mod:`tidegate.commands` prints it and uses
the exit code. Anything else that is raised is a defect of ours and keeps its traceback.
"""

from __future__ import annotations


class TidegateError(Exception):
    """Base of all errors that are shown without a traceback."""

    exit_code = 1


class UsageError(TidegateError):
    """The command line or a setting is wrong."""

    exit_code = 2


class NotFoundError(TidegateError):
    """A run, session, call or file that does not exist."""

    exit_code = 3


class BadInputError(TidegateError):
    """Input that cannot be read.

    Args:
        message: what was expected.
        source: file name or peer.
        line: line number, from 1.
        column: column in bytes, from 1.
    """

    exit_code = 4

    def __init__(
        self, message: str, *, source: str | None = None, line: int | None = None, column: int | None = None
    ) -> None:
        place = ":".join(str(part) for part in (source, line, column) if part is not None)
        super().__init__(f"{place}: {message}" if place else message)
        self.source = source
        self.line = line
        self.column = column


class UnavailableError(TidegateError):
    """This host, engine or mode cannot do it."""

    exit_code = 5


class StoreError(TidegateError):
    """The database cannot be opened, read or written."""

    exit_code = 6
