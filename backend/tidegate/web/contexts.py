"""What each page's template is given: one frozen dataclass a page.

A template may use these fields and nothing else; ``tests/backend/web/test_contexts.py`` parses the templates and
fails when one uses a name that is not here. The ``help`` of a field is its documentation for template authors.
Values such as session titles are hostile text: templates escape them (autoescape is on everywhere) and control and
bidirectional characters are made visible by :mod:`tidegate.web.templates`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidegate.fold.shapes import SessionView
    from tidegate.web.definitions import Definition


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, slots=True)
class NavItem:
    """One entry of the main navigation."""

    key: str = field(metadata=_help("the page's key: live, sessions, kv, runs, definitions, status"))
    label: str = field(metadata=_help("what people read"))
    href: str = field(metadata=_help("absolute path, with the run and the instant where they are not the usual ones"))
    current: bool = field(metadata=_help("whether this page, or a page below it, is shown"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseContext:
    """Fields that every page has."""

    page: str = field(
        metadata=_help("the page's key: live, sessions, session, kv, runs, definitions, status, login, error")
    )
    title: str = field(metadata=_help("title of the page, without the product's name"))
    nav: Sequence[NavItem] = field(metadata=_help("the main navigation; empty on the login page"))
    run_id: str = field(metadata=_help("id of the run that is shown; empty when not logged in"))
    run_title: str = field(metadata=_help("the run's name for people; falls back to its id"))
    run_kind: str = field(metadata=_help("live, recorded, imported or modelled; empty when not logged in"))
    replay: bool = field(metadata=_help("true when the run is not being written: nothing can be controlled"))
    following: bool = field(metadata=_help("true when the live run is shown as it goes on"))
    at_us: int | None = field(
        metadata=_help("the instant that was asked for, microseconds UTC; None when live and at the end of a run")
    )
    query: str = field(
        metadata=_help(
            "query string without ? that shows the same run and instant again, percent-encoded; empty for what is "
            "shown without one"
        )
    )
    version: str = field(metadata=_help("Tidegate's version"))
    plotly_url: str = field(metadata=_help("path of the Plotly bundle"))
    command: str = field(metadata=_help("absolute path of the tidegate command, for texts that people copy"))
    link_socket: str = field(metadata=_help("path of the link socket; empty in replay and when not logged in"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveContext(BaseContext):
    """``live.html``: everything else comes from /api/state and /api/stream."""

    has_sessions: bool = field(metadata=_help("whether the run has any session yet"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsContext(BaseContext):
    """``sessions.html``: the list, newest first."""

    sessions: Sequence[SessionView] = field(metadata=_help("SessionView of each session, newest first"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext(BaseContext):
    """``session.html``: one session; the charts come from /api/sessions/{id} and its series."""

    session: SessionView | None = field(
        metadata=_help("SessionView of the session at the instant that is shown; None before it began")
    )
    session_id: str = field(
        metadata=_help("the session's id; hostile text: in an attribute write {{ session_id|urlencode }}")
    )
    session_path: str = field(
        metadata=_help("the id as one URL path segment, percent-encoded, for links and API paths")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvContext(BaseContext):
    """``kv.html``: everything comes from /api/state, /api/stream and /api/kv."""

    collectors_dir: str = field(metadata=_help("what to install into vLLM's environment, for a text that people copy"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsContext(BaseContext):
    """``runs.html``: the list of runs comes from /api/runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsContext(BaseContext):
    """``definitions.html``."""

    definitions: Sequence[Definition] = field(
        metadata=_help("each number: key, label, meaning, formula, unit, source, is_not")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusContext(BaseContext):
    """``status.html``: figures come from /api/status and /api/capabilities."""

    state_dir: str = field(metadata=_help("directory of the database"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginContext(BaseContext):
    """``login.html``: shown with status 401 or 429; says how to get the login URL."""

    message: str = field(metadata=_help("why the login page is shown; empty for a first visit"))
    login_file: str = field(
        metadata=_help("file that holds a login URL which still works, readable by its owner and root")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext(BaseContext):
    """``error.html``."""

    status: int = field(metadata=_help("HTTP status code"))
    heading: str = field(metadata=_help("short name of the status, for example Not Found"))
    message: str = field(metadata=_help("what was wrong"))
    hint: str = field(metadata=_help("what to do next; may be empty"))


CONTEXTS: Final[dict[str, type[BaseContext]]] = {
    "live.html": LiveContext,
    "sessions.html": SessionsContext,
    "session.html": SessionContext,
    "kv.html": KvContext,
    "runs.html": RunsContext,
    "definitions.html": DefinitionsContext,
    "status.html": StatusContext,
    "login.html": LoginContext,
    "error.html": ErrorContext,
}
"""The context of each template."""

_NAV: Final = (
    ("live", "Live", "/"),
    ("sessions", "Sessions", "/sessions"),
    ("kv", "KV cache", "/kv"),
    ("runs", "Runs", "/runs"),
    ("definitions", "Definitions", "/definitions"),
    ("status", "Health", "/status"),
)


def navigation(page: str, query: str = "") -> list[NavItem]:
    """The main navigation as seen from ``page``; a session's page lies below Sessions.

    Args:
        query: the query string that keeps the run and the instant, see :class:`BaseContext`.
    """
    here = "sessions" if page == "session" else page
    tail = f"?{query}" if query else ""
    return [NavItem(key, label, href + tail, key == here) for key, label, href in _NAV]


def names(context: BaseContext) -> dict[str, Any]:
    """The context as template variables, shallow: views stay what they are."""
    return {item.name: getattr(context, item.name) for item in dataclasses.fields(context)}
