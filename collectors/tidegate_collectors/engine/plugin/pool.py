"""vLLM's block pool as the plane sees and touches it. Only the engine's thread calls this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidegate_collectors.engine.plugin.residency import Session

_RATE_WINDOW_S: Final = 5.0


class PoolWatch:
    """The pool, watched by wrapping two methods of this one instance.

    Args:
        scheduler: the scheduler whose pool it is.
        on_evicted: called with the key of each block that leaves the device, and the request that took its place.
        now_s: monotonic clock.
    """

    def __init__(
        self, scheduler: Any, on_evicted: Callable[[Any, str | None], None], now_s: Callable[[], float]
    ) -> None:
        self._pool = scheduler.kv_cache_manager.block_pool
        self._now_s = now_s
        self.blocks = int(self._pool.num_gpu_blocks) - 1  # the first one is a placeholder
        self._rate_blocks_per_s = 0.0
        self._new_blocks = 0
        self._rated_s = now_s()
        self._taker: str | None = None
        self._dropping = False
        self._pins: dict[int, int] = {}
        self._wrap(scheduler.kv_cache_manager, on_evicted)

    def _wrap(self, manager: Any, on_evicted: Callable[[Any, str | None], None]) -> None:
        pool = self._pool
        evict, allocate = pool._maybe_evict_cached_block, manager.allocate_slots
        get_new = pool.get_new_blocks

        def maybe_evict_cached_block(block: Any) -> Any:
            key = block.block_hash
            done = evict(block)
            if done and key is not None and not self._dropping:
                on_evicted(key, self._taker)
            return done

        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._taker = request.request_id
            try:
                return allocate(request, *args, **kwargs)
            finally:
                self._taker = None

        def get_new_blocks(count: int) -> Any:
            self._new_blocks += count
            return get_new(count)

        pool._maybe_evict_cached_block = maybe_evict_cached_block
        pool.get_new_blocks = get_new_blocks
        manager.allocate_slots = allocate_slots

    # --- what is seen --------------------------------------------------------------------------------------------

    def free_blocks(self) -> int:
        """Blocks that can be taken, whether or not they hold something."""
        return int(self._pool.get_num_free_blocks())

    def blocks_per_s(self) -> float:
        """How fast requests take blocks, over the last seconds."""
        now_s = self._now_s()
        passed_s = now_s - self._rated_s
        if passed_s > 0.2:
            keep = max(0.0, 1.0 - passed_s / _RATE_WINDOW_S)
            self._rate_blocks_per_s = keep * self._rate_blocks_per_s + (1.0 - keep) * self._new_blocks / passed_s
            self._new_blocks, self._rated_s = 0, now_s
        return self._rate_blocks_per_s

    def cached_free(self) -> int:
        """Free blocks that hold something that can be found again. Looks at every block."""
        return sum(block.ref_cnt == 0 and block.block_hash is not None for block in self._pool.blocks)

    def pinned(self) -> int:
        """Blocks that we hold, and nobody else."""
        return sum(self._pool.blocks[block_id].ref_cnt == count for block_id, count in self._pins.items())

    def held(self) -> int:
        """Blocks that we hold."""
        return len(self._pins)

    def has(self, key: Any) -> bool:
        """Whether a block of that key can be found."""
        return self._pool.cached_block_hash_to_block.get_one_block(key) is not None

    def resident(self, keys: Sequence[Any]) -> list[Any]:
        """The blocks of these keys, from the beginning to the first that cannot be found."""
        found, get = [], self._pool.cached_block_hash_to_block.get_one_block
        for key in keys:
            block = get(key)
            if block is None:
                break
            found.append(block)
        return found

    # --- what is done --------------------------------------------------------------------------------------------

    def hold(self, blocks: list[Any]) -> None:
        """Hold blocks, one reference each."""
        self._pool.touch(blocks)
        for block in blocks:
            self._pins[block.block_id] = self._pins.get(block.block_id, 0) + 1

    def let(self, blocks: list[Any]) -> None:
        """Give held blocks back to the LRU order, as the most recently used."""
        for block in blocks:
            left = self._pins[block.block_id] - 1
            if left:
                self._pins[block.block_id] = left
            else:
                del self._pins[block.block_id]
        if blocks:
            self._pool.free_blocks(list(reversed(blocks)))

    def pin(self, session: Session, blocks: list[Any]) -> None:
        """Hold blocks for a session."""
        self.hold(blocks)
        session.pinned = blocks

    def unpin(self, session: Session) -> list[Any]:
        """Give the session's pinned blocks back; their keys."""
        blocks, session.pinned, session.deadline_s = session.pinned, [], None
        self.let(blocks)
        return [block.block_hash for block in blocks]

    def drop(self, blocks: list[Any]) -> list[Any]:
        """Evict those that nobody holds, and have them taken next; keys that cannot be found any more."""
        victims = [
            block for block in blocks if block.ref_cnt == 0 and not block.is_null and block.block_hash is not None
        ]
        keys = [block.block_hash for block in victims]
        queue = self._pool.free_block_queue
        for block in victims:
            queue.remove(block)
        self._dropping = True
        try:
            self._pool.evict_blocks({block.block_id for block in victims})
        finally:
            self._dropping = False
        queue.prepend_n(list(reversed(victims)))
        return [key for key in keys if not self.has(key)]  # another block may hold the same
