"""Test what a program logs, and test custom loggers.

`MemoryLogger` keeps all records in memory:

    logger = logax.testing.MemoryLogger()
    with logger.run(name="a") as state:
        logger.tap(train, state)(key)
    (run,) = logger.runs
    assert run.status == "finished"
    assert [value for step, value in run.columns["loss"]] == [...]

`CASES` are the programs that test every logger of this library. `Case.check` runs one with your
logger, and compares the expected records with those that you read back:

    @pytest.mark.parametrize("case", logax.testing.CASES, ids=str)
    def test_my_logger(case, tmp_path):
        case.check(MyLogger(tmp_path), lambda: read_my_files(tmp_path))

`read_my_files` returns a dictionary from the name of each run to a `Seen`, which holds the records
of each array as a list of pairs `(x, value)`. The x is the step called `step`, else the first named
step, else the position of the record in the list.

| File | Contents |
| --- | --- |
| `_memory.py` | `MemoryLogger` and `MemoryRun` |
| `_checks.py` | `Case` and `Seen`: run a program, and compare the records |
| `_cases.py` | `CASES`: the programs with their expected records |
| `_programs.py` | the functions that these programs compile |
"""

from __future__ import annotations

from logax.testing._cases import CASES as CASES
from logax.testing._checks import Case as Case
from logax.testing._checks import Seen as Seen
from logax.testing._memory import MemoryLogger as MemoryLogger
from logax.testing._memory import MemoryRun as MemoryRun

__all__ = ["CASES", "Case", "MemoryLogger", "MemoryRun", "Seen"]
