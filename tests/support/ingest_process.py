"""``python -m tests.support.ingest_process DIR``: a backend's ingest in a process of its own, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.ingesting import backend


async def main(directory: Path) -> None:
    """Serve until the process ends."""
    async with backend(directory) as b:
        print(b.run.id, flush=True)
        await asyncio.sleep(100)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
