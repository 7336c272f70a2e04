"""Loggers refuse a path that is not writable when they are created.

Root may write everywhere, so a process without privileges runs the checks.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import pytest

_NOBODY = 65534

_TRY = """
    import json, os, sys
    import logax.loggers as loggers
    from logax.loggers import *  # while all may be read
    import tensorboardX.proto.event_pb2, tensorboardX.summary, tensorboardX.record_writer

    root = os.geteuid() == 0
    if root:
        os.setgroups([])
        os.setgid({nobody})
        os.setresuid({nobody}, {nobody}, 0)
    answers = {{}}
    for name, place in json.loads(sys.argv[1]):
        try:
            getattr(loggers, name)(place)
        except PermissionError as error:
            answers[name, place] = str(error)
    try:
        loggers.TensorBoardLogger(sys.argv[2]).run(resume="one").__enter__()
    except ValueError as error:
        answers["TensorBoardLogger", sys.argv[2]] = str(error)
    print(json.dumps([[*tried, answer] for tried, answer in answers.items()]))
    if root:  # what is done at exit may be done by whoever started it
        os.setresuid(0, 0, 0)
"""

_REFUSED = {
    ("JSONLLogger", "open/file"): "`JSONLLogger` may not write to the file /open/file.",
    ("CSVLogger", "open/file"): "`CSVLogger` may not write to the file /open/file.",
    ("JSONLLogger", "closed/a.jsonl"): "`JSONLLogger` may not write to the folder /closed.",
    ("CSVLogger", "closed/a.csv"): "`CSVLogger` may not write to the folder /closed.",
    ("TensorBoardLogger", "closed"): "`TensorBoardLogger` may not write to the folder /closed.",
    ("TensorBoardLogger", "closed/t"): "`TensorBoardLogger` may not make the folder /closed/t.",
    ("SaveLogger", "closed"): "`SaveLogger` may not write to the folder /closed.",
    ("SaveLogger", "closed/s"): "`SaveLogger` may not make the folder /closed/s.",
}


@pytest.fixture(scope="module")
def answers():
    """Return the errors of a process without privileges, by logger and path."""
    # The folders of pytest can be entered by their owner only.
    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        top.chmod(0o755)
        (top / "open").mkdir()
        (top / "open").chmod(0o777)
        (top / "open" / "file").touch(mode=0o444)
        (top / "closed").mkdir()
        (top / "closed").chmod(0o555)
        (top / "shared" / "secret").mkdir(parents=True)
        (top / "shared").chmod(0o777)
        (top / "shared" / "secret").chmod(0)
        tries = [(logger, f"{top}/{place}") for logger, place in _REFUSED]
        program = textwrap.dedent(_TRY).format(nobody=_NOBODY)
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(tries), f"{top}/shared"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        (top / "closed").chmod(0o755)
        (top / "shared" / "secret").chmod(0o755)
    return {
        (logger, os.path.relpath(place, top)): answer.replace(str(top), "")
        for logger, place, answer in json.loads(done.stdout)
    }


@pytest.mark.parametrize(("logger", "place"), _REFUSED)
def test_a_place_without_permission_is_refused_at_once(answers, logger, place):
    assert answers[logger, place] == _REFUSED[logger, place]


def test_a_folder_that_may_not_be_read_has_no_runs_to_go_on_with(answers):
    told = answers["TensorBoardLogger", "shared"]
    assert "'one' means no run in /shared. " in told
    assert told.endswith("of:\n  (there are none)")
