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
from tidegate.store.rows import AnyLine
from tidegate.store.store import Store, new_run_id, open_store

__all__ = [
    "AnyLine",
    "Batch",
    "CommittedBatch",
    "EventRow",
    "NewRun",
    "Reads",
    "Run",
    "SessionRow",
    "Sizes",
    "SourceRow",
    "Store",
    "StoreFullError",
    "new_run_id",
    "open_store",
]
