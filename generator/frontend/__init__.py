"""Front ends: what a user wrote becomes a spec graph."""
