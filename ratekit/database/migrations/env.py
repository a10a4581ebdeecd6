"""What Alembic runs: the migrations, on the connection and in the transaction that it is given."""

from __future__ import annotations

from alembic import context

from ratekit.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["table"],
    render_as_batch=True,
)
context.run_migrations()
