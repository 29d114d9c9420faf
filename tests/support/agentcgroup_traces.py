"""AgentCgroup's recorded traces (GPL, not part of this project), read through our importer. Absent: tests skip."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tidegate.analysis.traces import Trace, traces_of
from tidegate.importers import Skipped, read
from tidegate_collectors import records
from tidegate_collectors.records import AnyRecord, Unknown

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "agentcgroup"

needs_traces = pytest.mark.skipif(
    not (TRACES / "README.md").exists(), reason=f"the recorded traces of AgentCgroup are not at {TRACES}"
)

HAIKU = (
    "haiku/NVIDIA__nv-ingest-71", "haiku/dask__dask-11628", "haiku/pre-commit__pre-commit-2524",
    "haiku/sigmavirus24__github3.py-673", "haiku/tobymao__sqlglot-4014",
)  # fmt: skip
GLM = (
    "glm/dask__dask-11628", "glm/libp2p__py-libp2p-533", "glm/numba__numba-9636", "glm/pydicom__pydicom-2065",
    "glm/sigmavirus24__github3.py-673",
)  # fmt: skip
BATCH = (
    "batch18/DevOps_Build_Hard_attempt_1", "batch18/DevOps_Build_Hard_attempt_2",
    "batch18/DevOps_Build_Hard_attempt_3", "batch18/Medical_Bio_Hard_attempt_1",
)  # fmt: skip
EBPF = (
    "ebpf/study_diffcover_20260305_170357", "ebpf/study_starlette_20260305_170357",
    "ebpf/sweb1147_100ms_20260305_011002",
)  # fmt: skip


@cache
def imported(name: str) -> tuple[list[AnyRecord | Unknown], Skipped]:
    """The records of one trace as they come out of a recording: stamped, encoded and decoded; and what was skipped."""
    skipped = Skipped()
    found: list[AnyRecord | Unknown] = []
    for seq, record in enumerate(read(TRACES / name, skipped)):
        record.v, record.seq, record.src = records.VERSION, seq, "import-0"
        found.append(records.decode(records.encode(record)))
    return found, skipped


@cache
def trace(name: str) -> Trace:
    """The only session of a trace."""
    (only,) = traces_of(imported(name)[0]).values()
    return only
