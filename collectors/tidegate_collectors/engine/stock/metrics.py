"""vLLM's ``/metrics`` text -> what is known of the engine. Pure.

What this version of vLLM does not say stays None, and the name we looked for is in ``missing``. Values of several
engine cores behind one server (labels ``engine``) are added up; their shares of use are averaged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

MAX_SERIES: Final = 200_000
"""A text with more is not vLLM's."""

ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prefix_queries_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "external_queries_tokens": ("vllm:external_prefix_cache_queries_total",),
    "external_hits_tokens": ("vllm:external_prefix_cache_hits_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "output_tokens": ("vllm:generation_tokens_total",),
}
"""Field -> names that it had, the newest first. ``gpu_`` went in 0.11; ``external_`` came in 0.12."""

_REASONS: Final = "vllm:num_requests_waiting_by_reason"
_CONFIG: Final = "vllm:cache_config_info"
_BIRTHS: Final = ("process_start_time_seconds", "vllm:prompt_tokens_created", "vllm:generation_tokens_created")
_COUNTERS: Final = ("prefix_queries_tokens", "prefix_hits_tokens", "preemptions", "prompt_tokens", "output_tokens")
_MAX: Final = float(1 << 53)
_MAX_REASONS: Final = 16
_REASON: Final = re.compile(r"[a-z_]{1,32}")


class MetricsError(ValueError):
    """It is not the text of vLLM's metrics; the message says what was found."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one text said.

    Attributes:
        counts: field of ``EngineSample`` -> whole number, where it is known.
        usage: share of the pool's blocks that requests hold, 0 to 1.
        waiting_by_reason: requests that wait, by why.
        block_tokens: tokens in a block.
        pool_blocks: blocks that requests can have; vLLM's null block is not among them.
        born_s: when the server, or its first counter, began (Unix seconds).
        cores: engine cores behind this server.
        missing: names that were looked for and are not there.
    """

    counts: dict[str, int] = field(default_factory=dict)
    usage: float | None = None
    waiting_by_reason: dict[str, int] = field(default_factory=dict)
    block_tokens: int | None = None
    pool_blocks: int | None = None
    born_s: float | None = None
    cores: int = 1
    missing: tuple[str, ...] = ()

    @property
    def used_blocks(self) -> int | None:
        """Blocks that requests hold, pinned ones among them."""
        return None if self.usage is None or self.pool_blocks is None else round(self.usage * self.pool_blocks)


Series = list[tuple[dict[str, str], float]]


def read(text: str) -> Reading:
    """What the text says.

    Raises:
        MetricsError: it is no such text, or not vLLM's.
    """
    found = _series(text)
    if not any(name.startswith("vllm:") for name in found):
        raise MetricsError("its /metrics has nothing of vLLM's; is it vLLM's own port, and not a proxy's?")
    counts: dict[str, int] = {}
    usage: float | None = None
    missing = []
    for name, aliases in ALIASES.items():
        series = next((found[alias] for alias in aliases if found.get(alias)), None)
        if series is None:
            missing.append(aliases[0])
        elif name == "usage":
            usage = min(1.0, sum(value for _, value in series) / len(series))
        else:
            counts[name] = min(int(_MAX) - 1, round(sum(value for _, value in series)))
    block_tokens, pool_blocks, cores = _config(found.get(_CONFIG, []))
    missing += [name for name in (_REASONS, _CONFIG) if not found.get(name)]
    births = [value for name in _BIRTHS[:1] or () for _, value in found.get(name, [])]
    births = births or [value for name in _BIRTHS[1:] for _, value in found.get(name, [])]
    return Reading(
        counts=counts, usage=usage, waiting_by_reason=_by_reason(found.get(_REASONS, [])), block_tokens=block_tokens,
        pool_blocks=pool_blocks, born_s=min(births, default=None), cores=cores, missing=tuple(missing),
    )  # fmt: skip


def restarted(before: Reading, now: Reading) -> str:
    """Why the engine of ``now`` must be another process than that of ``before``; empty when it may be the same."""
    if before.born_s is not None and now.born_s is not None and abs(now.born_s - before.born_s) > 1.0:
        return "it began at another time"
    for name in _COUNTERS:
        if name in before.counts and now.counts.get(name, before.counts[name]) < before.counts[name]:
            return f"its counter of {name.replace('_', ' ')} fell from {before.counts[name]} to {now.counts[name]}"
    if before.block_tokens and now.block_tokens and before.block_tokens != now.block_tokens:
        return f"its blocks have {now.block_tokens} tokens, before {before.block_tokens}"
    if before.pool_blocks and now.pool_blocks and before.pool_blocks != now.pool_blocks:
        return f"its pool has {now.pool_blocks} blocks, before {before.pool_blocks}"
    return ""


def _series(text: str) -> dict[str, Series]:
    wanted = {name for names in ALIASES.values() for name in names} | {_REASONS, _CONFIG, *_BIRTHS}
    found: dict[str, Series] = {}
    count = 0
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                count += 1
                if count > MAX_SERIES:
                    raise MetricsError(f"its /metrics has more than {MAX_SERIES} series")
                if sample.name in wanted:
                    if math.isfinite(sample.value) and 0 <= sample.value < _MAX:
                        found.setdefault(sample.name, []).append((sample.labels, sample.value))
                elif sample.name.startswith("vllm:"):
                    found.setdefault("vllm:", [])
    except MetricsError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):  # whatever the parser met
        raise MetricsError("its /metrics is no text of metrics; is it vLLM's port?") from None
    return found


def _config(series: Series) -> tuple[int | None, int | None, int]:
    """Tokens in a block, usable blocks of all cores, cores."""
    sizes = {_whole(labels.get("block_size")) for labels, _ in series}
    blocks = [_whole(labels.get("num_gpu_blocks")) for labels, _ in series]
    size = sizes.pop() if len(sizes) == 1 else None
    usable = sum(number - 1 for number in blocks if number) if blocks and all(blocks) else None
    return size, usable or None, max(1, len(series))


def _whole(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 12:
        return None
    return int(text) or None


def _by_reason(series: Iterable[tuple[dict[str, str], float]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for labels, value in series:
        reason = labels.get("reason", "")
        if _REASON.fullmatch(reason) and (reason in found or len(found) < _MAX_REASONS):
            found[reason] = found.get(reason, 0) + round(value)
    return found
