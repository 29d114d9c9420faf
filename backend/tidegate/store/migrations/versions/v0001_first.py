"""The first schema.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

Int = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _key(name: str, kind: Any = Int) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False, nullable=False)


def _ints(*names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, Int, nullable=nullable) for name in names]


def _texts(*names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=nullable) for name in names]


def _sample_key() -> list[sa.Column[Any]]:
    return [_key(name) for name in ("run", "subject", "t", "ord")]


def _clustered(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(name, *columns, sqlite_with_rowid=False, sqlite_strict=True)


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("no", Int, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        *_texts("title", "source", "host", "boot_id", nullable=False),
        *_ints("started_us", nullable=False),
        *_ints("ended_us"),
        *_ints("clean", "last_ord", nullable=False),
        *_ints("last_t"),
        sqlite_strict=True,
    )
    op.create_table(
        "chunks",
        _key("run"),
        _key("no"),
        *_ints("first_ord", "n", "first_t", "last_t", "raw_bytes", nullable=False),
        sa.Column("codec", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sqlite_strict=True,
    )
    _clustered("sources", _key("run"), _key("src", sa.Text), *_ints("last_seq", "last_t", "records", nullable=False))
    _clustered(
        "subjects",
        _key("run"),
        _key("no"),
        *_texts("kind", nullable=False),
        *_texts("session", "call"),
        *_texts("host", nullable=False),
    )
    _clustered(
        "sessions",
        _key("run"),
        _key("id", sa.Text),
        *_ints("first_ord", "first_us", nullable=False),
        *_ints("start_ord", "started_us"),
        *_texts("host", "agent", "title", "priority"),
        *_ints("budget_bytes", "end_ord", "ended_us"),
        *_texts("end_reason"),
        *_ints("exit_code", "signal"),
    )
    _clustered(
        "calls",
        _key("run"),
        _key("session", sa.Text),
        _key("id", sa.Text),
        *_ints("start_ord", "started_us"),
        *_texts("tool", "category", "command"),
        *_ints("end_ord", "ended_us", "exit_code", "signal", "oom", "lost", "duration_us", "peak_bytes"),
        *_ints("spike_bytes", "kept_bytes", "cpu_us", "wait_us"),
    )
    _clustered(
        "mem",
        *_sample_key(),
        *_ints("anon_bytes", nullable=False),
        *_ints("shmem_bytes", "file_bytes", "swap_bytes", "peak_bytes", "charged_bytes"),
    )
    _clustered(
        "sched",
        *_sample_key(),
        *_ints("oncpu_us", nullable=False),
        *_ints("wait_us", "wait_max_us", "window_us"),
    )
    _clustered(
        "psi",
        *_sample_key(),
        *_ints("memory_some_us", "memory_full_us", "cpu_some_us", "io_some_us", "io_full_us", "window_us"),
    )
    _clustered(
        "host_samples",
        *_sample_key(),
        *_ints("mem_available_bytes", "mem_total_bytes", "swap_used_bytes", "cpu_busy_us", nullable=False),
        *_ints("window_us"),
    )
    _clustered(
        "events",
        _key("run"),
        _key("ord"),
        *_ints("t", nullable=False),
        *_texts("type", nullable=False),
        *_texts("session", "call"),
        sa.Column("line", sa.LargeBinary, nullable=False),
    )
    op.create_index(
        "events_session",
        "events",
        ["run", "session", "ord"],
        sqlite_where=sa.text("session IS NOT NULL"),
        postgresql_where=sa.text("session IS NOT NULL"),
    )
