"""The migrations, in the form that Alembic reads."""
