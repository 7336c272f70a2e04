"""Rules: one for each primitive that may hold a log."""
