"""Which requests are turns, and where a launcher put its session id. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tidegate_collectors.names import check_id

Api = Literal["openai.chat", "openai.completions", "openai.responses", "anthropic.messages"]

SESSION_PREFIX: Final = "/session/"
OWN_PREFIX: Final = "/tidegate/"
HEALTH: Final = "/tidegate/health"

_APIS: Final[dict[str, Api]] = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/v1/responses": "openai.responses",
    "/v1/messages": "anthropic.messages",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A request's target. ``path``: with its query, as the upstream shall see it; ``session``: the launcher's."""

    path: str
    session: str | None = None

    @property
    def bare(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]


def target_of(raw: str) -> Target:
    """Take the launcher's session id off a request target.

    Args:
        raw: the target as it stands in the request line.

    Raises:
        ValueError: it is no path, or the session id in it is none.
    """
    if not raw.startswith("/"):
        raise ValueError("the request target is no path; send requests to the gateway as to the engine itself")
    if not raw.startswith(SESSION_PREFIX):
        return Target(raw)
    session, slash, rest = raw[len(SESSION_PREFIX) :].partition("/")
    if not slash:
        session, _, query = session.partition("?")
        rest = f"?{query}" if query else ""
    return Target(f"/{rest}", check_id("session", session))


def api_of(method: str, path: str) -> Api | None:
    """The API that a request is a turn of; None for everything else. ``path`` is without its query."""
    return _APIS.get(path) if method == "POST" else None
