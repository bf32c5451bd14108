"""Which release names a blob is found by an index, however many jobs there were."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the indexes."""
    op.create_index("ix_model_release_record_root", "model_release", ["record_root"], unique=False)
    op.create_index("ix_model_release_mean_root", "model_release", ["mean_root"], unique=False)


def downgrade() -> None:
    """Drop the indexes."""
    op.drop_index("ix_model_release_mean_root", "model_release")
    op.drop_index("ix_model_release_record_root", "model_release")
