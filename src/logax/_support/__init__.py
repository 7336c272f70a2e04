"""Shared helpers without knowledge of logs."""
