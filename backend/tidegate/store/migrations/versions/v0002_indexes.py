"""Indexes for what charts and pages of a session ask for.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them."""
    of_session, losses = sa.text("session IS NOT NULL"), sa.text("type = 'loss'")
    op.create_index(
        "subjects_session", "subjects", ["run", "session"], sqlite_where=of_session, postgresql_where=of_session
    )
    op.create_index("events_loss", "events", ["run", "ord"], sqlite_where=losses, postgresql_where=losses)
