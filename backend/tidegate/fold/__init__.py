"""Records -> state. Pure: no I/O, no clock; live, replay and seek use it alike."""

from .changes import Changes, NewPoints
from .events import EVENT_TYPE_NAMES, EVENT_TYPES, EventView, event_view
from .limits import Limits
from .reducer import apply, fold
from .state import State

__all__ = [
    "EVENT_TYPES",
    "EVENT_TYPE_NAMES",
    "Changes",
    "EventView",
    "Limits",
    "NewPoints",
    "State",
    "apply",
    "event_view",
    "fold",
]
