"""What a user did wrong, or what is not there."""

from __future__ import annotations


class CommandError(Exception):
    """Told to the user as it is; the command ends with 1."""
