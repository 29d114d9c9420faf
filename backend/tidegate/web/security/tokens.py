"""The one-time login token, and a limit on wrong ones."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

TOKEN_BYTES: Final = 32

logger: Final = logging.getLogger(__name__)


class LoginToken:
    """One token at a time, good for one login; using it makes the next one.

    The current login URL is kept in a file of mode 0600: ``path``, or ``login-url-PORT`` in ``directory``. Whoever may
    read it (the user that the server runs as, and root) may log in, so a used-up URL on the terminal locks nobody out.
    """

    def __init__(self, directory: Path | None = None, path: Path | None = None) -> None:
        self._directory = directory
        self._path = path
        self._base_url = ""
        self._token = secrets.token_urlsafe(TOKEN_BYTES)

    @property
    def url(self) -> str:
        """The login URL that works now."""
        return f"{self._base_url}/login?token={self._token}"

    @property
    def file(self) -> str:
        """Path of the file that holds the login URL; empty when there is none."""
        return str(self._path or "")

    def publish(self, host: str, port: int) -> str:
        """Say where the server listens; writes the file and returns the login URL."""
        self._base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        if self._path is None and self._directory is not None:
            self._path = self._directory / f"login-url-{port}"
        self._write()
        return self.url

    def use(self, candidate: str) -> bool:
        """True once for the right token; a new one takes its place."""
        if not hmac.compare_digest(candidate.encode("utf-8", "replace"), self._token.encode()):
            return False
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._write()
        return True

    def withdraw(self) -> None:
        """Remove the file: the server is gone."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._path is None:
            return
        # A new file takes the place of the old one, so that its mode and owner are ours whatever lay there before.
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(self.url + "\n")
            temporary.replace(self._path)
        except OSError as error:
            # The URL on the terminal still works.
            logger.warning("the login URL cannot be written to %s: %s", self._path, error.strerror)
            with suppress(OSError):
                temporary.unlink()


class FailureLimit:
    """Counts wrong tokens in a sliding window.

    Only wrong tokens are turned away when the limit is reached: the right one still works, or any program on this
    machine (an observed agent, say) could keep the operator out by guessing without end.
    """

    def __init__(self, most: int = 10, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=most)

    def record(self) -> bool:
        """Count a failure; true when more than ``most`` came within the window."""
        now = self._clock()
        exceeded = len(self._failures) == self._failures.maxlen and now - self._failures[0] < self._window_s
        self._failures.append(now)
        return exceeded
