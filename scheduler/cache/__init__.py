"""Pages: what layers keep in them, who holds them, and what can be found in them again."""
