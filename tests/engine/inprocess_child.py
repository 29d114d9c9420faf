"""A real model in this process, its scheduler at hand: what a session gets after each action. Prints JSON.

Run by vLLM's Python: ``inprocess_child.py MODEL``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="WARNING", TIDEGATE_ENGINE_MODE="enforce",
)  # fmt: skip

BLOCKS = 64
HOST_BLOCKS = 48


class Child:
    """The engine, and turns of sessions in it."""

    def __init__(self, model: str) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=model, max_model_len=1024, enforce_eager=True, block_size=32, num_gpu_blocks_override=BLOCKS + 1,
            max_num_seqs=4, scheduler_cls="tidegate_collectors.engine.plugin.TidegateScheduler",
            kv_transfer_config={
                "kv_connector": "TidegateHostTier", "kv_role": "kv_both",
                "kv_connector_module_path": "tidegate_collectors.engine.plugin.host_tier_connector",
                "kv_connector_extra_config": {"host_bytes": HOST_BLOCKS * 32 * 512},
            },
        )  # fmt: skip
        core: Any = self.llm.llm_engine.engine_core
        self.core = core.engine_core
        self.scheduler = self.core.scheduler
        self.sent: list[Any] = []
        plane = self.scheduler.tidegate
        send = plane._link.send

        def sending(record: Any) -> None:
            self.sent.append(record)
            send(record)

        plane._link.send = sending

    def turn(self, prompt: list[int], session: str | None = None, action: str = "KEEP") -> dict[str, Any]:
        """One request from beginning to end, and what it leads to."""
        from vllm import SamplingParams

        extra = {"session_id": session, "kv_action": action, "kv_ttl_s": 60} if session else None
        sampling = SamplingParams(max_tokens=12, temperature=0.0, logprobs=1, ignore_eos=True, extra_args=extra)
        (answer,) = self.llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        self.rest()
        output = answer.outputs[0]
        chosen = [
            step[token].logprob for step, token in zip(output.logprobs or [], output.token_ids, strict=True)
        ]  # fmt: skip
        return {"tokens": list(output.token_ids), "logprobs": chosen, "cached": answer.num_cached_tokens}

    def rest(self) -> None:
        """Step as the engine's loop does until nothing is left to do."""
        deadline = time.monotonic() + 30
        while self.scheduler.has_requests():
            self.core.step()
            assert time.monotonic() < deadline, "the engine does not come to rest"
            time.sleep(0.0005)

    def pressure(self) -> None:
        """Requests of nobody take every block that is not held."""
        for number in range(6):
            self.turn([(7 * number + 11 * place) % 250 for place in range(480)])

    def empty(self) -> None:
        """Nothing is left on the device or the host."""
        assert self.scheduler.reset_prefix_cache(reset_connector=True)

    def free(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def story(self, action: str, *, pressed: bool) -> dict[str, Any]:
        """A turn that ends with an action, what others do meanwhile, and the next turn."""
        self.empty()
        first = self.turn(PROMPT, f"s-{action}", action)
        side = self.scheduler.connector.side
        used = side.table.used()
        if pressed:
            self.pressure()
        back = self.turn(PROMPT + first["tokens"] + MORE, f"s-{action}", "KEEP")
        ends = [record for record in self.sent if type(record).__name__ == "TurnEnd"]
        known = self.scheduler.tidegate.accounts.table.get(f"s-{action}")
        return back | {
            "first": first["tokens"], "used": used, "free": self.free(), "device": ends[-1].cached_device_tokens,
            "host": ends[-1].cached_host_tokens, "residency": known.residency(),
        }  # fmt: skip


PROMPT = [(13 * place + place // 7) % 250 for place in range(230)]
MORE = [(5 * place) % 250 for place in range(40)]


def main() -> None:
    """Everything, in one go: the start takes longer than all of it."""
    child = Child(sys.argv[1])
    scratch = child.turn(PROMPT)
    child.empty()
    report = {"first": scratch, "scratch": child.turn(PROMPT + scratch["tokens"] + MORE)}
    for action in ("KEEP", "PIN", "DROP", "OFFLOAD"):
        report[action] = child.story(action, pressed=False)
    report["OFFLOAD under pressure"] = child.story("OFFLOAD", pressed=True)
    report["KEEP under pressure"] = child.story("KEEP", pressed=True)
    child.empty()
    transfers = [record for record in child.sent if type(record).__name__ == "KvTransfer"]
    report["end"] = {
        "free": child.free(), "used": child.scheduler.connector.side.table.used(),
        "mode": child.scheduler.tidegate.mode,
        "transfers": [
            [one.direction, one.ok, one.blocks, one.bytes, one.duration_us, one.exposed_us] for one in transfers
        ],
    }  # fmt: skip
    print("REPORT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
