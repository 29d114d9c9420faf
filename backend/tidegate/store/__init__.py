"""The database: the raw log of records, and tables derived from it for fast reading."""

from tidegate.store.engines import StoreFullError
from tidegate.store.model import (
    Batch,
    CommittedBatch,
    EventRow,
    NewRun,
    Run,
    SessionRow,
    Sizes,
    SourceRow,
)
from tidegate.store.reads import Reads
from tidegate.store.reads_kv import DecisionFilter, DecisionRow, OutcomeRow
from tidegate.store.reads_session_kv import Found
from tidegate.store.rows import AnyLine
from tidegate.store.rows_kv import engine_name
from tidegate.store.store import Store, new_run_id, open_store

__all__ = [
    "AnyLine",
    "Batch",
    "CommittedBatch",
    "DecisionFilter",
    "DecisionRow",
    "EventRow",
    "Found",
    "NewRun",
    "OutcomeRow",
    "Reads",
    "Run",
    "SessionRow",
    "Sizes",
    "SourceRow",
    "Store",
    "StoreFullError",
    "engine_name",
    "new_run_id",
    "open_store",
]
