"""What this Python's vLLM has of what the plugin uses, as JSON. Run by vllm_contract.py, in the environment of vLLM."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any, Final

_SCHEDULER: Final = "vllm.v1.core.sched.scheduler:Scheduler"
_POOL: Final = "vllm.v1.core.block_pool:BlockPool"
SURFACES: Final[tuple[tuple[str, str], ...]] = (
    (_SCHEDULER, "add_request schedule update_from_output make_stats _preempt_request _free_blocks"),
    (_SCHEDULER, "reset_prefix_cache shutdown requests waiting skipped_waiting deferred_waiting kv_holding_waiting"),
    ("vllm.v1.core.kv_cache_manager:KVCacheManager", "allocate_slots get_blocks block_pool enable_caching"),
    (_POOL, "_maybe_evict_cached_block get_new_blocks touch free_blocks evict_blocks get_num_free_blocks"),
    (_POOL, "free_block_queue cached_block_hash_to_block"),
    ("vllm.v1.core.block_pool:BlockHashToBlockMap", "get_one_block"),
    ("vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue", "remove prepend_n"),
    ("vllm.v1.request:Request", "session_id prefill_stats num_preemptions block_hashes"),
    ("vllm.v1.metrics.stats:SchedulerStats", "prefix_cache_stats connector_prefix_cache_stats"),
    ("vllm.v1.metrics.stats:PrefillStats", "num_external_cached_tokens"),
    ("vllm.v1.engine.core:EngineCoreProc", "_handle_client_request run_busy_loop shutdown input_queue"),
    ("vllm.v1.engine:EngineCoreRequestType", "WAKEUP"),
)
"""Module and class, and the names on it, methods and attributes, that the plugin calls, wraps or reads."""


def has(kind: Any, name: str) -> bool:
    """Whether a class has a method of that name, or its source assigns or declares such an attribute."""
    if hasattr(kind, name):
        return True
    own = [base for base in kind.__mro__ if base.__module__.startswith("vllm")]
    assigned = re.compile(rf"^\s+(?:self\.{name}\b\s*[:=]|{name}\s*:)", re.MULTILINE)
    return any(assigned.search(inspect.getsource(base)) for base in own)


def surfaces() -> dict[str, bool]:
    """``Class.name`` -> whether it is there; a class that is missing has nothing."""
    found: dict[str, bool] = {}
    for place, names in SURFACES:
        module, _, kind_name = place.partition(":")
        try:
            kind = getattr(importlib.import_module(module), kind_name, None)
        except ModuleNotFoundError:
            kind = None
        for name in names.split():
            found[f"{kind_name}.{name}"] = kind is not None and has(kind, name)
    return found


if __name__ == "__main__":
    import vllm

    print(json.dumps({"version": vllm.__version__, "file": str(Path(vllm.__file__).resolve()), "surfaces": surfaces()}))
