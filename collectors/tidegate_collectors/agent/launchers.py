"""Programs that start the real agent as their child: what they start is still the agent, not a call of it."""

from __future__ import annotations

from collections.abc import Sequence

_LAUNCHERS = frozenset(
    (
        # package runners
        *("npx", "npm", "pnpm", "pnpx", "yarn", "yarnpkg", "bun", "bunx", "uv", "uvx", "pipx", "pipenv", "poetry"),
        *("pdm", "hatch", "rye", "conda", "mamba", "micromamba", "mise", "asdf", "volta", "fnm", "nvm", "corepack"),
        # wrappers of one command
        *("timeout", "script", "unbuffer", "strace", "ltrace", "time", "sudo", "doas", "direnv", "dotenv"),
    )
)
"""They fork and wait. (A launcher that execs, such as env or nohup, does no harm here: its depth is not used up.)"""

_EXECING = frozenset(["env", "nohup", "nice", "ionice", "chrt", "taskset", "exec"])
"""They become the program themselves, so what counts is the word after their options."""


def runtime_depth(command: Sequence[str]) -> int:
    """How many generations of started programs still belong to the runtime: one for each launcher in front."""
    depth, words = 0, list(command)
    while words:
        name = words.pop(0).rpartition("/")[2]
        if name in _LAUNCHERS:
            depth += 1
        elif name not in _EXECING:
            break
        words = _skip_options(words)
    return min(depth, 16)


def _skip_options(words: list[str]) -> list[str]:
    """Go on at the next word that may be a launcher: options, settings, numbers and subcommands are passed over."""
    at = 0
    while at < len(words):
        word = words[at]
        plain = word.rpartition("/")[2]
        if plain in _LAUNCHERS or plain in _EXECING:
            return words[at:]
        if not (word.startswith("-") or "=" in word or word[:1].isdigit() or word in _SUBCOMMANDS):
            return words[at:]
        at += 1
    return []


_SUBCOMMANDS = frozenset(["run", "exec", "x", "dlx", "tool", "start"])


def agent_name(command: Sequence[str]) -> str:
    """Base name of the program that is the agent: the first word that is neither launcher nor option."""
    words = list(command)
    while words:
        name = words.pop(0).rpartition("/")[2]
        if name not in _LAUNCHERS and name not in _EXECING:
            return name
        words = _skip_options(words)
    return command[0].rpartition("/")[2] if command else ""
