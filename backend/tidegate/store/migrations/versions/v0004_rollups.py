"""Rollups: charts of long spans without reading each sample; an index for the calls within a span.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels = None
depends_on = None


def _key(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False, nullable=False)


def upgrade() -> None:
    """Add them."""
    op.create_table(
        "rollups",
        _key("run", sa.Integer()),
        _key("kind", sa.Text()),
        _key("name", sa.Text()),
        _key("bucket_us", sa.Integer()),
        _key("block", sa.Integer()),
        sa.Column("stats", sa.LargeBinary(), nullable=False),
        sa.Column("total", sa.LargeBinary(), nullable=False),
        sa.Column("layers", sa.LargeBinary(), nullable=False),
        sa.Column("shares", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "rollup_states",
        _key("run", sa.Integer()),
        _key("kind", sa.Text()),
        _key("name", sa.Text()),
        sa.Column("until_us", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index("calls_ended", "calls", ["run", "session", "ended_us"])
