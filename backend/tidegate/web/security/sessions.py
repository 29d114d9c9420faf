"""Login sessions, kept on the server; the cookie holds only a random key.

The keys' SHA-256 digests and expiry times are kept in a file, so that open pages survive a restart of the backend and
two backends with one state directory (a live one and a replay) do not log each other's browser tab out. Reading that
file gives no key.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

LIFETIME_S: Final = 12 * 3600
MOST: Final = 256
"""Sessions kept; the one that expires first makes room."""

_SAVE_EVERY_S: Final = 300
"""How far a sliding expiry may run ahead of the file."""

_decoder: Final = msgspec.json.Decoder(dict[str, float])


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class SessionStore:
    """Sessions with a sliding expiry of :data:`LIFETIME_S` seconds.

    A session is looked up by the digest of its key, so the time of a look-up says nothing about any key.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._expiry: dict[str, float] = {}
        self._saved: dict[str, float] = {}
        self._mtime_ns = -1
        self._load()

    def create(self) -> str:
        """A new session; returns the key for the cookie."""
        key = secrets.token_urlsafe(32)
        self._expiry[_digest(key)] = self._clock() + LIFETIME_S
        self._save()
        return key

    def check(self, key: str) -> bool:
        """Whether the key names a session that has not expired; extends it."""
        digest = _digest(key)
        now = self._clock()
        if self._expiry.get(digest, 0.0) <= now:
            self._load()
            if self._expiry.get(digest, 0.0) <= now:
                self._expiry.pop(digest, None)
                return False
        self._expiry[digest] = now + LIFETIME_S
        if self._expiry[digest] - self._saved.get(digest, 0.0) > _SAVE_EVERY_S:
            self._save()
        return True

    def __len__(self) -> int:
        return len(self._expiry)

    def _load(self) -> None:
        if self._path is None:
            return
        with suppress(OSError, msgspec.DecodeError):
            mtime_ns = self._path.stat().st_mtime_ns
            if mtime_ns == self._mtime_ns:
                return
            self._mtime_ns = mtime_ns
            self._merge(_decoder.decode(self._path.read_bytes()))

    def _merge(self, stored: dict[str, float]) -> None:
        self._saved = stored
        for digest, expiry in stored.items():
            self._expiry[digest] = max(expiry, self._expiry.get(digest, 0.0))
        now = self._clock()
        alive = sorted(((expiry, digest) for digest, expiry in self._expiry.items() if expiry > now), reverse=True)
        self._expiry = {digest: expiry for expiry, digest in alive[:MOST]}

    def _save(self) -> None:
        if self._path is None:
            self._merge({})
            return
        # Losing the file costs a login, so a full disk must not cost a page.
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                with suppress(msgspec.DecodeError):
                    self._merge(_decoder.decode(file.read()))
                file.seek(0)
                file.truncate()
                file.write(msgspec.json.encode(self._expiry))
                file.flush()
                self._mtime_ns = os.fstat(file.fileno()).st_mtime_ns
                self._saved = dict(self._expiry)
