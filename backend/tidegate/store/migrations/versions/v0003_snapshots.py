"""Snapshots of the folded state, so that any instant of a run is reached without folding it from the start; imports.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them."""
    marked = sa.text("type IN ('action', 'call.start', 'kv.decision', 'mem.burst')")
    op.create_index("events_marks", "events", ["run", "type", "ord", "t"], sqlite_where=marked, postgresql_where=marked)
    op.create_index(
        "events_oom",
        "events",
        ["run", "ord", "t"],
        sqlite_where=sa.text("type = 'mem.event' AND instr(line, x'226f6f6d') > 0"),
        postgresql_where=sa.text("type = 'mem.event' AND position('\\x226f6f6d'::bytea in line) > 0"),
    )
    op.create_table(
        "snapshots",
        sa.Column("run", sa.Integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("ord", sa.Integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("t", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_table(
        "parts",
        sa.Column("run", sa.Integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("ord", sa.Integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), primary_key=True, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_table(
        "imports",
        sa.Column("run", sa.Integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
