"""The host tier as a KV connector of vLLM's, out of its tree::

    --kv-transfer-config '{"kv_connector": "TidegateHostTier", "kv_role": "kv_both",
        "kv_connector_module_path": "tidegate_collectors.engine.plugin.host_tier_connector"}'

It stores nothing by itself: what goes to the host is what the plane decides. Whatever is there is found by any request.
vLLM's own offloading connector takes it for granted that no copy ever fails, and its insides change with each version;
the interface of connectors is the same in 0.28 to 0.33.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from tidegate_collectors.engine.plugin.host_tier import Key
from tidegate_collectors.engine.plugin.host_tier_jobs import Copied, Job, merged
from tidegate_collectors.engine.plugin.host_tier_side import HostSide
from tidegate_collectors.engine.plugin.host_tier_worker import HostWorker

log = logging.getLogger("vllm.tidegate")

BYTES_VARIABLE: Final = "TIDEGATE_ENGINE_HOST_BYTES"
DEFAULT_BYTES: Final = 1 << 30


def host_bytes(extra: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> int:
    """The size that was asked for: ``host_bytes`` of the connector's extra configuration, else the environment's.

    Raises:
        ValueError: it is not a number of bytes.
    """
    name = "host_bytes of kv_connector_extra_config" if "host_bytes" in extra else BYTES_VARIABLE
    value = extra.get("host_bytes", environment.get(BYTES_VARIABLE, DEFAULT_BYTES))
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = -1
    if size < 0 or isinstance(value, bool | float):
        raise ValueError(f"{name}={str(value)[:64]!a}: expected a number of bytes, for example {DEFAULT_BYTES}")
    return size


@dataclass(slots=True)
class Jobs(KVConnectorMetadata):
    """What workers have to begin in a step."""

    jobs: list[Job] = field(default_factory=list)


@dataclass(slots=True)
class Ended(KVConnectorWorkerMetadata):
    """Jobs that have ended, by number."""

    jobs: dict[int, Copied] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        return Ended(merged(self.jobs, other.jobs)) if isinstance(other, Ended) else self


class _Shape:
    """What both sides have to agree on."""

    def __init__(self, config: Any, kv: Any) -> None:
        self.workers = int(config.parallel_config.world_size)
        self.num_blocks = int(kv.num_blocks)
        self.slots = self.block_bytes = self.block_tokens = 0
        self.unable = self._read(config, kv)
        if self.unable:
            self.slots = 0

    def _read(self, config: Any, kv: Any) -> str:
        groups = kv.kv_cache_groups
        if len(groups) != 1:
            return f"the model has {len(groups)} groups of KV blocks; only models with one have a host tier"
        parallel = config.parallel_config
        if int(getattr(parallel, "pipeline_parallel_size", 1)) > 1 or int(
            getattr(parallel, "decode_context_parallel_size", 1)
        ) > 1:  # fmt: skip
            return "pipeline and context parallel engines have no host tier"
        spec = groups[0].kv_cache_spec
        self.block_tokens = int(spec.block_size)
        self.block_bytes = len(groups[0].layer_names) * int(spec.page_size_bytes) * self.workers
        try:
            size = host_bytes(config.kv_transfer_config.kv_connector_extra_config or {})
        except ValueError as error:
            return str(error)
        self.slots = size // self.block_bytes
        return "" if self.slots else f"{size} bytes do not hold one block of {self.block_bytes} bytes"


class TidegateHostTier(KVConnectorBase_V1, SupportsHMA):
    """vLLM makes one for its scheduler and one for each worker.

    Attributes:
        side: the scheduler's; None in a worker.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        shape = _Shape(vllm_config, kv_cache_config)
        self.side: HostSide | None = None
        self._worker: HostWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            # A copy that cannot be read is computed again. vLLM would end the request by default, and reads this next.
            vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
            self.side = HostSide(shape.slots, shape.block_bytes, shape.block_tokens, shape.workers, shape.unable)
            if shape.unable:
                log.error("tidegate: there is no host tier: %s", shape.unable)
        else:
            self._worker = HostWorker(shape.slots, shape.num_blocks)

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # --- the scheduler's side ------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        side = self.side
        if side is None or side.unable or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        size = side.block_tokens
        if len(request.block_hashes) > request.num_tokens // size or num_computed_tokens % size:
            return 0, False  # hashes of parts of a block are not what we store under
        # The last token is computed in any case: its logits are wanted.
        end = (request.num_tokens - 1) // size
        count = side.find(request.request_id, _keys(request), num_computed_tokens // size, end)
        return count * size, count > 0 and not side.fits_inline(count)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens and self.side is not None:
            numbers = [block.block_id for block in blocks.blocks[0]]
            count = num_external_tokens // self.side.block_tokens
            inline = self.side.fits_inline(count)  # as it was told just before
            self.side.load(request.request_id, _keys(request), numbers, count, inline=inline)

    def build_connector_meta(self, scheduler_output: Any) -> Jobs:  # noqa: ARG002
        return Jobs(self.side.take_jobs() if self.side is not None else [])

    def update_connector_output(self, connector_output: Any) -> None:
        ended = connector_output.kv_connector_worker_meta
        if self.side is not None and isinstance(ended, Ended):
            try:
                self.side.ended(ended.jobs)
            except Exception as error:  # a cache must not take the engine down
                self.side.fault(error)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        if self.side is not None:
            self.side.forget_request(request.request_id)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        return self.side is not None and self.side.busy()

    def reset_cache(self) -> bool | None:
        if self.side is not None:
            self.side.empty()
        return True

    # --- a worker's side -----------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if self._worker is not None:
            self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002
        jobs = self._connector_metadata
        if self._worker is not None and isinstance(jobs, Jobs):
            self._worker.begin(jobs.jobs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Requests do not run before all of their blocks are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved while it is computed."""

    def wait_for_save(self) -> None:
        """The plane holds what is being copied."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        return None, (self._worker.collect() if self._worker is not None else None) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.failed_blocks() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> Ended | None:
        ended = self._worker.ended() if self._worker is not None else {}
        return Ended(ended) if ended else None

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()


def _keys(request: Any) -> list[Key]:
    return [make_block_hash_with_group_id(hash_, 0) for hash_ in request.block_hashes]


try:  # vLLM >= 0.32 counts hits by where they came from
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    TidegateHostTier._cache_hit_source = CacheHitSource.HOST
except ImportError:
    pass
