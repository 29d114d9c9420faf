"""The plugin's settings, from the environment of the engine."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from tidegate_collectors.engine.decision import RULES, Rule
from tidegate_collectors.records import KvMode

MODES: Final[tuple[KvMode, ...]] = ("off", "observe", "enforce")


class SettingError(ValueError):
    """A variable that does not fit, by name, with what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``pin_cap`` is a share of the pool, ``sessions`` the most that the table remembers; an empty name is made up."""

    mode: KvMode = "observe"
    rule: Rule = "four-state"
    ttl_s: float = 2.0
    max_ttl_s: float = 30.0
    pin_cap: float = 0.5
    sessions: int = 4096
    name: str = ""


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read ``TIDEGATE_ENGINE_*``. Raises SettingError."""
    name = environment.get("TIDEGATE_ENGINE_NAME", "").strip()[:128]
    return Settings(
        mode=cast("KvMode", _choice(environment, "MODE", MODES, "observe")),
        rule=cast("Rule", _choice(environment, "RULE", RULES, "four-state")),
        ttl_s=_number(environment, "TTL_S", 2.0, 0.0, 86_400.0),
        max_ttl_s=_number(environment, "MAX_TTL_S", 30.0, 0.0, 86_400.0),
        pin_cap=_number(environment, "PIN_CAP", 0.5, 0.0, 0.9),
        sessions=int(_number(environment, "SESSIONS", 4096, 1, 1_000_000)),
        name=name,
    )


def engine_name(settings: Settings, scheduler: Any) -> str:
    """The engine's name, the same after a restart: host and model unless one is set; a data-parallel rank's behind it.

    Two engines of one host that serve the same model need names of their own.
    """
    config = scheduler.vllm_config
    served = getattr(config.model_config, "served_model_name", None) or config.model_config.model
    model = str(served[0] if isinstance(served, list | tuple) and served else served).rstrip("/").rpartition("/")[2]
    name = settings.name or f"{socket.gethostname()}-{model[:64]}"
    parallel = getattr(config, "parallel_config", None)
    rank = int(getattr(parallel, "data_parallel_rank", 0) or 0)
    return f"{name}-dp{rank}" if int(getattr(parallel, "data_parallel_size", 1) or 1) > 1 else name


def _choice(environment: Mapping[str, str], key: str, known: tuple[str, ...], default: str) -> str:
    value = environment.get(f"TIDEGATE_ENGINE_{key}", default)
    if value not in known:
        raise SettingError(f"TIDEGATE_ENGINE_{key}={value!a}: expected one of {', '.join(known)}")
    return value


def _number(environment: Mapping[str, str], key: str, default: float, low: float, high: float) -> float:
    text = environment.get(f"TIDEGATE_ENGINE_{key}")
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise SettingError(f"TIDEGATE_ENGINE_{key}={text!a}: expected a number from {low:g} to {high:g}")
    return value
