"""Which vLLM this plugin knows from the inside."""

from __future__ import annotations

import re
from typing import Final

KNOWN: Final = ((0, 28), (0, 33))
"""First and last minor version in whose scheduler the plugin was tried."""


def refusal(version: str) -> str:
    """Why the plugin does not load into that version of vLLM; empty when it does."""
    found = re.match(r"(\d+)\.(\d+)", version)
    low, high = (f"{major}.{minor}" for major, minor in KNOWN)
    if found is None:
        return f"vLLM's version {version!a} cannot be read; known are {low} to {high}"
    if not KNOWN[0] <= (int(found[1]), int(found[2])) <= KNOWN[1]:
        return f"vLLM {version[:32]} is not known from the inside; known are {low} to {high}"
    return ""
