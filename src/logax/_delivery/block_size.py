"""The number of records that leave a program together, where users give no `buffer`.

A compiled program has no clock, so the host measures for it: each time records leave, the host
compares the time since the last ones with `TARGET_SECONDS`, and answers how many are to leave next.
"""

from __future__ import annotations

TARGET_SECONDS = 0.02
MAX_BLOCK_RECORDS = 4096
SMALL_BLOCK_RECORDS = 32


class BlockSize:
    """The number of records that leave one compiled program together.

    It is kept from call to call: a later call begins with the size that the last one found.
    """

    def __init__(self) -> None:
        self.records = 1

    def limited(self, most: float) -> int:
        """Return the number of records that are to leave together, at most `most` but for one."""
        return max(1, int(min(self.records, most)))

    def adapt(self, records: int, seconds: float) -> None:
        """Adapt to a program that took so long for so many records.

        The size doubles while a whole block takes less than half of the target, or less than nine
        tenths if the block is small: an emission has a fixed cost. The size shrinks in proportion
        once a block takes more than twice the target.
        """
        fraction = 0.9 if self.records < SMALL_BLOCK_RECORDS else 0.5
        if seconds > 2 * TARGET_SECONDS:
            allowed = int(records * TARGET_SECONDS / seconds)
            self.records = max(1, min(self.records, allowed))
        elif seconds < fraction * TARGET_SECONDS and records >= self.records:
            self.records = min(2 * self.records, MAX_BLOCK_RECORDS)
