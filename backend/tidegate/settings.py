"""Settings of the backend: one frozen dataclass, filled from the environment and the command line.

=========================== ======================= ==================================================================
variable                    default                 meaning
=========================== ======================= ==================================================================
``TIDEGATE_HOST``           127.0.0.1               address that the pages are served on
``TIDEGATE_PORT``           6456                    TCP port of the pages; 0 takes a free one
``TIDEGATE_STATE_DIR``      /var/lib/tidegate or    the database and what must survive a restart
                            ~/.local/share/tidegate
``TIDEGATE_RUNTIME_DIR``    /run/tidegate or        the sockets
                            $XDG_RUNTIME_DIR/tidegate
``TIDEGATE_USER``           tidegate, else nobody   user that the backend becomes when root starts it
``TIDEGATE_TICK_MS``        100                     time between two frames of the live stream, milliseconds
``TIDEGATE_ALLOWED_HOSTS``  the loopback names      further values of the Host header that are answered, by commas
``TIDEGATE_LINK_UIDS``      none                    further user ids whose collectors may connect, by commas
``TIDEGATE_UPLOAD_BYTES``   4000000000              largest file that the Runs page takes, bytes
``TIDEGATE_KEEP_DAYS``      no limit                runs that ended, or were imported, longer ago are removed, hourly
``TIDEGATE_KEEP_BYTES``     no limit                the oldest runs are removed while all take more, hourly
=========================== ======================= ==================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidegate.errors import UsageError
from tidegate_collectors import paths

ENVIRONMENT: Final = {
    "TIDEGATE_HOST": "host",
    "TIDEGATE_PORT": "port",
    "TIDEGATE_STATE_DIR": "state_dir",
    "TIDEGATE_RUNTIME_DIR": "runtime_dir",
    "TIDEGATE_USER": "user",
    "TIDEGATE_TICK_MS": "tick_ms",
    "TIDEGATE_ALLOWED_HOSTS": "allowed_hosts",
    "TIDEGATE_LINK_UIDS": "link_uids",
    "TIDEGATE_UPLOAD_BYTES": "upload_bytes",
    "TIDEGATE_KEEP_DAYS": "keep_days",
    "TIDEGATE_KEEP_BYTES": "keep_bytes",
}
"""Variable to field; a test keeps this, the table above and the dataclass equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the backend was told. See the table of the module for the variables.

    ``replay`` is the recording that is shown instead of the live run; then there is no link and no control.
    """

    state_dir: Path = field(default_factory=paths.state_dir)
    runtime_dir: Path = field(default_factory=paths.runtime_dir)
    host: str = "127.0.0.1"
    port: int = 6456
    replay: Path | None = None
    tick_ms: int = 100
    user: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    link_uids: tuple[int, ...] = ()
    upload_bytes: int = 4_000_000_000
    keep_days: int | None = None
    keep_bytes: int | None = None
    login_url_file: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port {self.port} is not between 0 and 65535")
        if not 20 <= self.tick_ms <= 10_000:
            raise UsageError(f"a tick of {self.tick_ms} ms is not between 20 and 10000")
        if self.upload_bytes < 0:
            raise UsageError(f"an upload of {self.upload_bytes} bytes is none")
        for name, value in (("TIDEGATE_KEEP_DAYS", self.keep_days), ("TIDEGATE_KEEP_BYTES", self.keep_bytes)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} would remove every run; leave it out to keep all")
        if not self.host:
            raise UsageError("the host to listen on is empty")

    @property
    def database(self) -> Path:
        """The SQLite file of the live store."""
        return self.state_dir / "tidegate.db"

    @property
    def recordings(self) -> Path:
        """The folder of recordings, one database file each."""
        return self.state_dir / "recordings"

    @property
    def link_socket(self) -> Path:
        """The unix socket that collectors connect to."""
        return self.runtime_dir / "link.sock"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Settings from the environment; ``overrides`` that are not None win.

        Raises:
            UsageError: a variable has a value that cannot be read; the message names it.
        """
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for variable, name in ENVIRONMENT.items():
            text = env.get(variable, "")
            if text:
                values[name] = _parse(variable, name, text)
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)


def _parse(variable: str, name: str, text: str) -> Any:
    try:
        if name in ("port", "tick_ms", "upload_bytes", "keep_days", "keep_bytes"):
            return int(text)
        if name in ("state_dir", "runtime_dir"):
            return Path(text)
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if name == "allowed_hosts":
            return parts
        if name == "link_uids":
            return tuple(int(part) for part in parts)
    except ValueError:
        raise UsageError(f"{variable}={text!r}: expected a whole number") from None
    return text
