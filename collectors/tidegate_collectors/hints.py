"""What an agent says beforehand about a call: ``AGENT_RESOURCE_HINT`` and the size texts of the command line.

The grammar is ``memory:low | memory:medium | memory:high | memory:<N>[k|m|g]``, any case, decimals allowed. Pure: it
neither reads nor warns. A hint that is not understood stays as text, with the reason.
"""

from __future__ import annotations

from typing import NamedTuple

HINT_ENV = "AGENT_RESOURCE_HINT"
MAX_HINT_CHARS = 200
LEVELS = ("low", "medium", "high")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MAX_BYTES = 1 << 50
_GRAMMAR = "memory:low, memory:medium, memory:high or memory:<N>m or <N>g, for example memory:1.5g"


class Hint(NamedTuple):
    """A parsed hint.

    ``text``: as the agent wrote it, at most 200 characters. ``level``: low, medium or high. ``bytes``: the number, in
    bytes. ``error``: why it was not understood; empty when it was.
    """

    text: str
    level: str | None = None
    bytes: int | None = None
    error: str = ""


def parse_size(text: str) -> int:
    """Bytes of a size such as ``512m``, ``1.5G``, ``2GiB`` or ``1048576``. Units are powers of 1024.

    Raises:
        ValueError: it is no size, not above zero, or over 1 PiB.
    """
    stripped = text.strip().lower()
    number = stripped.removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    digits = number[: len(number) - len(unit)].strip()
    whole, dot, fraction = digits.partition(".")
    plain = (whole + fraction).isascii() and (whole + fraction).isdigit() and len(digits) <= 20
    if not plain or (dot and not fraction):
        raise ValueError(f"{text[:40]!a} is no size; write a number with k, m or g, for example 512m or 1.5g")
    size = round(float(digits) * _UNITS[unit])
    if not 0 < size <= _MAX_BYTES:
        raise ValueError(f"{text[:40]!a} is out of range; a size lies above 0 and at most at 1024t")
    return size


def parse(text: str) -> Hint:
    """Read a hint; never raises."""
    kept = text.strip()[:MAX_HINT_CHARS]
    resource, colon, value = kept.partition(":")
    if not colon:
        return Hint(kept, error=f"a hint names a resource and an amount: {_GRAMMAR}")
    if resource.strip().lower() != "memory":
        return Hint(kept, error=f"the only resource understood is memory: {_GRAMMAR}")
    value = value.strip().lower()
    if value in LEVELS:
        return Hint(kept, level=value)
    try:
        return Hint(kept, bytes=parse_size(value))
    except ValueError as error:
        return Hint(kept, error=f"{error} ({_GRAMMAR})")
