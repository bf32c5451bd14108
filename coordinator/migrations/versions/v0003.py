"""A site's answer is kept with the entry of its log that was proved with it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("phase_reply", sa.Column("peer", sa.Text()))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("phase_reply", "peer")
