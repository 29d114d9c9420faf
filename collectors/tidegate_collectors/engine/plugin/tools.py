"""Which tool an answer asks for, recognised in its last tokens. Nothing of the text is kept."""

from __future__ import annotations

import re
from typing import Any, Final

from tidegate_collectors.engine.plugin.turns import extra_of

_TAIL_TOKENS: Final = 192
_MAX_CHARS: Final = 64
_NAME: Final = re.compile(r'"name"\s*:\s*"([A-Za-z0-9_.:/-]{1,64})"')
_MARKS: Final = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<function=", '"arguments"', '"parameters"')


def named(extra: dict[str, Any]) -> str | None:
    """The tool that the request itself names (``vllm_xargs`` kv_tool)."""
    tool = extra.get("kv_tool")
    return tool[:_MAX_CHARS] if isinstance(tool, str) and tool else None


def recognised(tokenizer: Any, output_token_ids: Any) -> str | None:
    """The last tool that the answer asks for; None when there is none, or no tokenizer."""
    if tokenizer is None or not output_token_ids:
        return None
    text = tokenizer.decode(list(output_token_ids[-_TAIL_TOKENS:]))
    if not any(mark in text for mark in _MARKS):
        return None
    found = _NAME.findall(text)
    return found[-1] if found else None


def asked_by(request: Any, scheduler: Any) -> str | None:
    """The tool that the answer of a request asks for: as it was named, or as it can be recognised."""
    tokenizer = getattr(scheduler.structured_output_manager, "tokenizer", None)
    return named(extra_of(request)) or recognised(tokenizer, request.output_token_ids)
