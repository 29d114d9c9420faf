"""Turns as the scheduler sees them: when they came, began, answered and ended."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_FORM: Final = re.compile(r"^(?:(?P<choice>\d+)_)?(?:chatcmpl-|cmpl-|resp_|msg_)(?P<id>.+)$")
_PROMPT: Final = re.compile(r"^(?P<id>.+)-(?P<prompt>\d+)$")
_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_MAX_CHARS: Final = 128


def turn_id(request_id: str, *, suffixed: bool = True) -> str:
    """The turn of an engine's request id: the value of X-Request-Id, to which vLLM adds a prefix and a suffix.

    A completion has the number of its prompt behind it, and of several choices each has its number in front: the first
    of them is the turn, the others get their number behind a ``/``.

    Args:
        request_id: the engine's.
        suffixed: whether the engine adds random suffixes (VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is not set).
    """
    bare = _SUFFIX.sub("", request_id) if suffixed else request_id
    found = _FORM.match(bare)
    if found is None:
        return bare[:_MAX_CHARS]
    name, numbers = found["id"], [found["choice"]]
    if "cmpl-" in bare and "chatcmpl-" not in bare and (prompt := _PROMPT.match(name)) is not None:
        name, numbers = prompt["id"], [found["choice"], prompt["prompt"]]
    further = "".join(f"/{int(number)}" for number in numbers if number is not None and int(number))
    return name[:_MAX_CHARS] + further


def suffixed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this engine adds random suffixes to request ids."""
    return environment.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0").strip() in ("", "0")


def extra_of(request: Any) -> dict[str, Any]:
    """The request's ``vllm_xargs``."""
    extra = getattr(request.sampling_params, "extra_args", None)
    return extra if isinstance(extra, dict) else {}


def session_of(request: Any) -> str | None:
    """The session that a request names, by header or body, or by ``vllm_xargs``; None where it names none."""
    session = getattr(request, "session_id", None) or extra_of(request).get("session_id")
    return session[:_MAX_CHARS] if isinstance(session, str) and session else None


@dataclass(slots=True)
class Turn:
    """One request. Times are monotonic seconds, None before it happened.

    ``known_tokens``: of its prompt, those that the session's last turn had left. ``counted``: its blocks that are in
    the session's account.
    """

    request: Any
    session: str
    id: str
    arrived_s: float
    began_s: float | None = None
    first_s: float | None = None
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    recomputed_tokens: int = 0
    known_tokens: int = 0
    counted: int = 0
    waiting: Any = None

    def queue_us(self) -> int | None:
        """From the arrival to the first step."""
        return None if self.began_s is None else round((self.began_s - self.arrived_s) * 1e6)

    def prefill_us(self) -> int | None:
        """From there to the first token."""
        if self.began_s is None or self.first_s is None:
            return None
        return round((self.first_s - self.began_s) * 1e6)


def beside(turn: Turn, running: Iterable[Turn]) -> list[Turn]:
    """Turns of the same session that run beside this one: its id is used twice, or it asks for several choices."""
    return [one for one in running if one is not turn and one.session == turn.session and one.began_s is not None]
