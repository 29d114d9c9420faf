"""Build hook: a wheel carries the compiled kernel programs, so that a host without clang can use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelPrograms(BuildHookInterface[Any]):
    """Compiles them before a wheel is packed, where a compiler is at hand; else the wheel has their source only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Called by hatchling; ``version`` is ``standard`` or ``editable``."""
        if version == "editable":  # the start script builds them in the checkout
            return
        done = subprocess.run(
            [sys.executable, "-m", "tidegate_collectors.kernel.build"],
            env={**os.environ, "PYTHONPATH": str(Path(self.root) / "collectors")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self.app.display_warning(f"the wheel has no compiled kernel programs: {done.stderr.strip()}")
