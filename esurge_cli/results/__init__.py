"""Results, and the file or pipe they go to."""
