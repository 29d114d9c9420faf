"""Turns as the scheduler sees them: when they came, began, answered and ended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

_FORM: Final = re.compile(r"^(?:chatcmpl-(.+)|cmpl-(.+?)(?:-\d+)?|resp_(.+)|msg_(.+))$")
_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_MAX_CHARS: Final = 128


def turn_id(request_id: str) -> str:
    """The turn of an engine's request id: the value of X-Request-Id, to which vLLM adds a prefix and a suffix.

    A completion has the number of its prompt behind it, too.
    """
    bare = _SUFFIX.sub("", request_id)
    found = _FORM.match(bare)
    return (next(filter(None, found.groups())) if found else bare)[:_MAX_CHARS]


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
    """One request. Times are monotonic seconds, None before it happened."""

    request: Any
    session: str
    id: str
    arrived_s: float
    began_s: float | None = None
    first_s: float | None = None
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    recomputed_tokens: int = 0
    waiting: Any = None

    def queue_us(self) -> int | None:
        """From the arrival to the first step."""
        return None if self.began_s is None else round((self.began_s - self.arrived_s) * 1e6)

    def prefill_us(self) -> int | None:
        """From there to the first token."""
        if self.began_s is None or self.first_s is None:
            return None
        return round((self.first_s - self.began_s) * 1e6)
