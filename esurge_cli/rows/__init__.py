"""Input of every kind, as rows."""
