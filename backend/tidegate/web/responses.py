"""JSON answers, encoded by msgspec: it knows our structs and dataclasses and is several times faster than json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

_encoder: Final = msgspec.json.Encoder()


def encode(content: Any) -> bytes:
    """JSON in one line."""
    try:
        return _encoder.encode(content)
    except OverflowError:
        # A whole number beyond 64 bits, which only a hostile or broken sender writes, must not stop the pages.
        return json.dumps(msgspec.to_builtins(content), ensure_ascii=False, separators=(",", ":")).encode()


def json_response(content: Any, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that no cache may keep."""
    return Response(
        encode(content), status, headers={"cache-control": "no-store", **(headers or {})}, media_type="application/json"
    )
