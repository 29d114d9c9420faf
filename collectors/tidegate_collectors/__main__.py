"""``python -m tidegate_collectors collect|run|exec|gateway``: their commands where only the collectors are."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Final

_COMMANDS: Final = {
    "collect": "tidegate_collectors.collecting",
    "run": "tidegate_collectors.agent.run",
    "exec": "tidegate_collectors.agent.exec_",
    "gateway": "tidegate_collectors.agent.gateway.main",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] not in _COMMANDS:
        print(f"usage: python -m tidegate_collectors {{{','.join(_COMMANDS)}}} ...", file=sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    name = arguments[0]
    module = importlib.import_module(_COMMANDS[name])
    parser = argparse.ArgumentParser(prog=f"python -m tidegate_collectors {name}")
    module.add_arguments(parser)
    return int(module.main(parser.parse_args(arguments[1:])))


if __name__ == "__main__":
    sys.exit(main())
