"""Finds the distribution's BCC, and tells it from what else is called so.

The real one is a package of the distribution (python3-bpfcc on Debian, python3-bcc on Fedora): Python files around
``libbcc.so.0``, in the system's own directory, which a virtual environment does not look into. On PyPI there is a
package ``bcc`` of somebody else, about crystal lattices. Nothing is imported here to tell them apart.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SYSTEM_DIRECTORIES = (
    "/usr/lib/python3/dist-packages",
    "/usr/lib/python3*/site-packages",
    "/usr/lib64/python3*/site-packages",
)
INSTALL = "apt-get install python3-bpfcc (Fedora: dnf install python3-bcc)"
_VERSION = re.compile(r"""^__version__ = ['"]([\w.+~-]{1,40})['"]""", re.MULTILINE)


class BccMissingError(Exception):
    """There is no usable BCC; the message says what was found instead and what to install."""


@dataclass(frozen=True, slots=True)
class Bcc:
    """The package's directory, and its version as its files give it."""

    path: Path
    version: str
    ignored: tuple[str, ...] = ()
    """What else is called so, and why it is not used."""


def find_bcc(directories: Iterable[str | Path] | None = None) -> Bcc:
    """The first real BCC in these directories; by default this environment's own and the system's.

    Raises:
        BccMissingError: none is there.
    """
    problems = []
    for directory in _search_path() if directories is None else map(Path, directories):
        package = directory / "bcc"
        if not package.is_dir():
            if (directory / "bcc.py").is_file():
                problems.append(f"{directory / 'bcc.py'} is something else")
            continue
        problem = _problem(package)
        if problem is None:
            return Bcc(package, _version(package / "version.py"), tuple(problems))
        problems.append(problem)
    found = f"; {'; '.join(problems)}" if problems else ""
    raise BccMissingError(f"BCC is not installed: {INSTALL}; never with pip{found}")


def _search_path() -> list[Path]:
    system = [path for pattern in SYSTEM_DIRECTORIES for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    return [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))] + system


def _problem(package: Path) -> str | None:
    """Why this is not to be used, or ``None``."""
    try:
        main = (package / "__init__.py").read_text(errors="replace")
    except OSError as error:
        return f"{package} is no package ({error.strerror})"
    if not (package / "libbcc.py").is_file() or "\nclass BPF(" not in main:
        version = _version(package / "__init__.py")
        return f"{package} is another package of that name ({version}; PyPI's bcc is about crystals), and is not used"
    for path in (package, package / "__init__.py", package / "libbcc.py"):
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002:
            return f"{path} can be changed by others than root, and is not used"
    return None


def _version(path: Path) -> str:
    try:
        found = _VERSION.search(path.read_text(errors="replace"))
    except OSError:
        found = None
    return found[1] if found else "of unknown version"
