"""The real scheduler of the vLLM that is installed, without a model: these tests run in vLLM's environment.

``./run_tests.sh`` runs them there (``.venv-vllm/bin/python -m pytest tests/engine``).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tidegate_collectors.engine.plugin.host_tier_connector import TidegateHostTier
from tidegate_collectors.engine.plugin.plane import Plane, attach
from tidegate_collectors.engine.plugin.scheduler import TidegateAsyncScheduler, TidegateScheduler
from tidegate_collectors.engine.plugin.settings import Settings
from tidegate_collectors.records import Record

BLOCK_TOKENS = 16
BLOCKS = 32
R = TypeVar("R", bound=Record)


class Recorder:
    """Keeps what is sent, stamped as the link stamps it."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def send(self, record: Record) -> None:
        record.seq = len(self.records)
        self.records.append(record)

    def close(self, timeout_s: float = 2.0) -> None:
        self.closed = True

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]


class Engine:
    """A scheduler with its plane, and a model that always says 7.

    With a host tier also its worker, whose KV cache is ``memory``: a row of bytes for each block.
    """

    def __init__(self, scheduler: Any, recorder: Recorder) -> None:
        self.scheduler = scheduler
        self.recorder = recorder
        self.worker: TidegateHostTier | None = None
        self.memory = torch.zeros(0)

    @property
    def plane(self) -> Plane:
        plane: Plane = self.scheduler.tidegate
        return plane

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    def free(self) -> int:
        count: int = self.pool.get_num_free_blocks()
        return count

    def add(self, name: str, prompt: list[int], session: str | None = None, out: int = 2, **extra: Any) -> Request:
        request = Request(
            request_id=name, prompt_token_ids=prompt, pooling_params=None, block_hasher=_hasher, session_id=session,
            sampling_params=SamplingParams(max_tokens=out, ignore_eos=True, extra_args=extra or None),
        )  # fmt: skip
        request.sampling_params.update_from_generation_config({}, 2)
        self.scheduler.add_request(request)
        return request

    def step(self) -> Any:
        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[7] for _ in names], kv_connector_output=self._transfers(output),
            ),
        )  # fmt: skip
        return output

    def _transfers(self, output: Any) -> KVConnectorOutput | None:
        """The worker's part in a step, in the order of vLLM's model runner."""
        worker = self.worker
        if worker is None:
            return None
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.start_load_kv(None)
        worker.wait_for_save()
        if not output.total_num_scheduled_tokens:
            time.sleep(0.001)  # as the engine does, so that its other threads go on
        sent, received = worker.get_finished(output.finished_req_ids)
        transfers = KVConnectorOutput(
            finished_sending=sent, finished_recving=received,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )  # fmt: skip
        worker.clear_connector_metadata()
        return transfers

    def idle(self) -> None:
        """Step as long as an engine without requests would."""
        for _ in range(5000):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError("the engine does not come to rest")

    def run(self, name: str, prompt: list[int], session: str | None = None, out: int = 2, **extra: Any) -> Request:
        """One request from beginning to end."""
        request = self.add(name, prompt, session, out, **extra)
        for _ in range(1000):
            if request.is_finished():
                return request
            self.step()
        raise AssertionError(f"{name} did not end")

    def sample(self) -> None:
        """Have the pool told at once."""
        self.plane.sampler.soon()
        self.plane.tick()

    def pressure(self, blocks: int = BLOCKS) -> None:
        """Requests of nobody, until so many blocks were taken."""
        for number in range(-(-blocks // 6)):
            base = 100_000 + 1000 * (number + 1000 * len(self.recorder.records))
            self.run(f"p{base}", [base + i for i in range(6 * BLOCK_TOKENS - 4)])


init_none_hash(sha256)
_hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)


@pytest.fixture(scope="session")
def model_config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """A model that exists as its configuration only."""
    folder: Path = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 256,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig(
        model=str(folder), skip_tokenizer_init=True, max_model_len=4096, dtype="bfloat16", seed=0
    )  # fmt: skip


@pytest.fixture
def make_engine(model_config: ModelConfig) -> Iterator[Callable[..., Engine]]:
    """Builds engines; ``groups`` is the number of groups of KV blocks."""
    made: list[Engine] = []

    def make(
        settings: Settings | None = None, *, blocks: int = BLOCKS, groups: int = 1, is_async: bool = False,
        host_blocks: int | None = None, host_bytes: Any = None,
    ) -> Engine:  # fmt: skip
        cache = CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True)
        cache.num_gpu_blocks = blocks + 1
        config = VllmConfig(
            model_config=model_config,
            scheduler_config=SchedulerConfig(
                max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=4096, is_encoder_decoder=False,
                enable_chunked_prefill=True, async_scheduling=is_async,
            ),
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=_host_tier(host_blocks, host_bytes),
        )  # fmt: skip
        cache.block_size = BLOCK_TOKENS
        shape = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": 32, "dtype": torch.bfloat16}
        # Groups of one and the same kind are no model that there is, and 0.28 says so.
        spec, other = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=64)
        kv = KVCacheConfig(
            num_blocks=blocks + 1, kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer{n}"], other if n else spec) for n in range(groups)],
        )  # fmt: skip
        recorder = Recorder()
        kind = TidegateAsyncScheduler if is_async else TidegateScheduler
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "tidegate_collectors.engine.plugin.scheduler.attach",
                lambda scheduler: attach(scheduler, settings or Settings(mode="enforce", name="e"), recorder),
            )
            scheduler = kind(
                vllm_config=config, kv_cache_config=kv, structured_output_manager=StructuredOutputManager(config),
                block_size=BLOCK_TOKENS, hash_block_size=BLOCK_TOKENS, log_stats=True,
            )  # fmt: skip
        engine = Engine(scheduler, recorder)
        if config.kv_transfer_config is not None:
            engine.memory = torch.zeros((blocks + 1, int(spec.page_size_bytes)), dtype=torch.uint8)
            engine.worker = TidegateHostTier(config, KVConnectorRole.WORKER, kv)
            engine.worker.register_kv_caches({"layer0": engine.memory.view(blocks + 1, 2, -1)})
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.plane.close()
        if engine.worker is not None:
            engine.worker.shutdown()


def _host_tier(blocks: int | None, size_bytes: Any) -> KVTransferConfig | None:
    if blocks is None and size_bytes is None:
        return None
    return KVTransferConfig(
        kv_connector="TidegateHostTier", kv_role="kv_both",
        kv_connector_module_path="tidegate_collectors.engine.plugin.host_tier_connector",
        kv_connector_extra_config={"host_bytes": size_bytes if blocks is None else blocks * 2 * BLOCK_TOKENS * 32 * 2},
    )  # fmt: skip
