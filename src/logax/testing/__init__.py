"""What users need to test what they log, and to test destinations of their own.

`MemoryLogger` keeps in memory what it is given:

    logger = logax.testing.MemoryLogger()
    with logger.run(name="a") as state:
        logger.tap(train, state)(key)
    (run,) = logger.runs
    assert run.status == "finished"
    assert [value for step, value in run.columns["loss"]] == [...]

`CASES` are the programs that every destination of this library is tested with. Each is run with
your logger, and compared with what you read back:

    @pytest.mark.parametrize("case", logax.testing.CASES, ids=str)
    def test_my_logger(case, tmp_path):
        case.check(MyLogger(tmp_path), lambda: read_my_files(tmp_path))

What is read back is, for each run by name, a `Seen`: by the flat name of each array the list of its
records, each an x and a value, in order. The x is the step called `step`, else the first step that
is named, else the number of the record of its key.
"""

from __future__ import annotations

from logax.testing._cases import CASES as CASES
from logax.testing._checks import Case as Case
from logax.testing._checks import Seen as Seen
from logax.testing._memory import MemoryLogger as MemoryLogger
from logax.testing._memory import MemoryRun as MemoryRun

__all__ = ["CASES", "Case", "MemoryLogger", "MemoryRun", "Seen"]
