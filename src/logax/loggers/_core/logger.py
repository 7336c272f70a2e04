"""What users call: a logger is sinks, and this shell around them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from logax._compat import Array, Tree
from logax._delivery.control import flush, wait_at_exit
from logax._delivery.emit import ask, shard_here
from logax._harvest.call import Harvested
from logax._harvest.live import live
from logax._harvest.selection import Names
from logax._harvest.spool import SENDING, spool_options
from logax._harvest.tap import STREAMING, tap_options
from logax._log import LOG_OPTIONS
from logax._logdict.logdict import logdict
from logax._schedule import Schedule
from logax._support.config import validate_name
from logax._support.messages import add_note, caller, described, received
from logax._support.validation import as_text, one_of, warn_of_misspelling
from logax.loggers._core.inbox import Inbox
from logax.loggers._core.registry import LANES, LiveRun, Register, ResumedRuns, Seeds
from logax.loggers._core.resume import find_runs, validate_resume
from logax.loggers._core.routes import LiveRoute, LiveTarget, LogdictRoute, RunTicket
from logax.loggers._core.run_config import TracedConfig, key_bits
from logax.loggers._core.sink_worker import Branch
from logax.loggers._core.state import Owner, RunState
from logax.loggers._core.values import log_columns, log_values
from logax.loggers.sink import Sink
from logax.loop.run_logger import RunLoop


class Logger:
    """Sends the logs of functions to a destination, one run for each seed.

        logger = SaveLogger("runs")
        state = logger.init(key)              # inside jit and vmap too: one run per key
        y = logger.tap(f, state)(xs)          # streams while f runs
        y = logger.spool(f, state)(xs)        # one write when f has ended
        logger.log(state, {"val/loss": v}, step=i)
        logger.finish(state)

    Records are written on a thread of their own, about twice a second: the program waits for none
    of it. A sink that fails stops neither the program nor other sinks; its error comes out of
    `logax.flush()`, of the next call of the logger, and at exit, with the number of records that
    were lost.

    Args:
      sink: Where records go. Write your own by deriving from `Sink`.
      lanes: What becomes of seeds, the lanes of the `vmap` around `init`: "split", a run for each;
        "aggregate", one run with the mean, the least and the greatest; "group", a run for each,
        and all of them a group.
      network: Whether the sink waits for others. Then it has a thread of its own.

    Raises:
      TypeError: `sink` is no `Sink`.
      ValueError: `lanes` is none of the three.
    """

    def __init__(self, sink: Sink, *, lanes: str = "split", network: bool = False) -> None:
        name = type(self).__name__
        if not isinstance(sink, Sink):
            raise TypeError(
                f"`{name}` takes a sink, and got {received(sink)}. Derive your class from "
                "`logax.loggers.Sink`, and write `Logger(YourSink())`."
            )
        one_of(name, "lanes", lanes, LANES)
        self._start([Branch(sink, name, lanes, network)])

    def _start(self, branches: Sequence[Branch], callbacks: Sequence[Any] = ()) -> None:
        self._name = type(self).__name__
        self._branches, self._callbacks = list(branches), list(callbacks)
        self._register = Register()
        self._owner = Owner(self._name, self._register)
        let_go = weakref.WeakMethod(self._let_go)
        self._inbox = Inbox(self._name, self._register, self._branches, self._callbacks, let_go)
        self._closed = False
        for branch in self._branches:
            branch.users += 1
        # A logger that is dropped has no open runs: those keep it.
        weakref.finalize(self, self._inbox.end).atexit = False

    # Runs.

    def init(
        self,
        key: Array,
        *,
        name: str | None = None,
        config: Any = None,
        resume: str | Sequence[str] | None = None,
    ) -> RunState:
        """A new run for this key; under `vmap`, one for each lane.

        Works in Python and inside compiled functions, where a run begins each time the program gets
        there.

        Args:
          key: A PRNG key: `jax.random.key(0)`.
          name: Name of the run; under `vmap`, the number of the lane is appended.
          config: A mapping or a dataclass of strings, numbers and arrays, in any nesting. Values
            may be traced, and may differ between lanes.
          resume: An earlier run, which goes on: its id, the beginning of it, its name if no other
            has the same, or "last" for the newest. Under `vmap` the same of an earlier sweep, whose
            lanes go on one by one, or a sequence with the run of each lane. Inside a compiled
            function runs are looked up when it is compiled.

        Raises:
          TypeError: `key` is not a PRNG key, or `config` holds a value that cannot be stored.
          ValueError: There is no run to resume, or more than one, or it is still being written.
        """
        self._check_open()
        what = f"{self._name}.init"
        bits, given = key_bits(what, key), TracedConfig(what, config)
        name, resume = validate_name(what, name), validate_resume(what, resume)
        shard = shard_here()
        on_shard = [] if shard is None else [shard]
        if on_shard and resume is not None:
            raise ValueError(
                f"`{what}` cannot resume runs inside `shard_map`, where each shard begins runs of "
                "its own. Call it outside, and give the state to the mapped function."
            )
        # By lanes, because one call of `init` may be compiled for several numbers of lanes.
        found: dict[tuple[int, ...], ResumedRuns] = {}

        def prepare(lanes: tuple[int, ...]) -> None:
            if resume is not None:
                found[lanes] = self._find_runs(what, resume, lanes)

        def answer(lanes: tuple[int, ...], arrays: Sequence[Any]) -> Any:
            bits, *values = arrays
            index = int(values.pop(0).flat[0]) if on_shard else None
            resumed = found.get(lanes)
            again = () if resumed is None else self._open_ones(resumed)
            seeds = Seeds(
                name, given.filled(values), lanes, bits, None if again else resumed, index
            )
            if again:
                self._inbox.could_not_resume(what, again, seeds.id)
            return [run.number for run in self._begin_runs(seeds)]

        operands = [bits, *on_shard, *given.arrays]
        return RunState(ask(answer, operands, prepare), self._owner)

    def _begin_runs(self, seeds: Seeds) -> list[LiveRun]:
        runs = self._register.begin(seeds)
        self._inbox.begin(runs)
        # Anew, so that it comes before what a destination has registered until now.
        atexit.unregister(self._end_at_exit)
        atexit.register(self._end_at_exit)
        return runs

    def _let_go(self) -> None:
        """Some runs have ended: without any this logger may be dropped."""
        if self._register.has_any():
            return
        atexit.unregister(self._end_at_exit)
        if self._register.has_any():  # one that began just now, on another thread
            atexit.register(self._end_at_exit)  # twice does no harm

    def _end_at_exit(self) -> None:
        status = "crashed" if hasattr(sys, "last_value") else "finished"
        wait_at_exit(lambda: self._end(status))

    def finish(self, state: RunState) -> None:
        """The run has ended: all of it is written, and the destination is told.

        In Python this waits for all records, and raises what went wrong: the run ends all the same.
        Inside a compiled function it ends with the next `logax.flush()`, or at exit.

        Raises:
          ValueError: It was finished before.
          DeliveryError: Something could not be written.
        """
        number = self._number(state, several=True)
        if isinstance(number, jax.core.Tracer):
            ask(self._finish_inside, [number])
            return
        self._end_runs(self._owner.open_runs(number), "finished")

    def _finish_inside(self, lanes: tuple[int, ...], arrays: Sequence[Any]) -> Any:
        found = [self._register.find(number) for number in np.ravel(arrays[0]).tolist()]
        self._inbox.finish([run for run in found if run is not None])
        return np.zeros(lanes, np.uint32)

    def run(
        self,
        name: str | None = None,
        config: Any = None,
        *,
        key: Array | None = None,
        resume: str | None = None,
    ) -> contextlib.AbstractContextManager[RunState]:
        """A run for the length of a block: finished at its end, or marked as crashed.

            with logger.run("baseline", config) as state:
                y = logger.tap(f, state)(xs)

        Args:
          name: Name of the run.
          config: A mapping or a dataclass, as `init` takes it.
          key: A PRNG key, kept with the run.
          resume: An earlier run, which goes on, as `init` takes it.
        """
        self._check_open()
        what = f"{self._name}.run"
        name, resumed = validate_name(what, name), validate_resume(what, resume)
        bits = None if key is None else np.asarray(key_bits(what, key))[None]
        return self._block(name, TracedConfig(what, config), bits, resumed)

    @contextlib.contextmanager
    def _block(
        self, name: str | None, given: TracedConfig, bits: Any, resume: str | Sequence[str] | None
    ) -> Iterator[RunState]:
        values = [np.asarray(x)[None] for x in given.arrays]
        what = f"{self._name}.run"
        found = None if resume is None else self._find_runs(what, resume, ())
        runs = self._begin_runs(Seeds(name, given.filled(values), (), bits, found))
        try:
            yield RunState(np.uint32(runs[0].number), self._owner)
        except BaseException as error:
            self._crashed(runs, error)
            raise
        else:
            self._end_runs(runs, "finished")

    def _find_runs(
        self, what: str, resume: str | Sequence[str], lanes: tuple[int, ...]
    ) -> ResumedRuns:
        flush()  # so that runs which just began can be found, and finished ones have ended
        return find_runs(what, resume, lanes, self._branches, self._open_ones)

    def _open_ones(self, runs: ResumedRuns) -> list[str]:
        """Return the ids of the runs that are open in this logger."""
        found: dict[str, None] = {}
        for lanes in sorted({"split", *(branch.lanes for branch in self._branches)}):
            still_open = {run.info(lanes).id for run in self._register}
            found |= dict.fromkeys(run for run in runs.in_branch(lanes) if run in still_open)
        return list(found)

    def _crashed(self, runs: list[LiveRun], error: BaseException) -> None:
        """Write what there is; the error that ended the block is the one to be raised."""
        if isinstance(error, Exception):
            try:
                self._end_runs(runs, "crashed")
            except Exception as failure:  # noqa: BLE001 - told beside the error
                add_note(error, f"Besides, `{self._name}` had trouble: {described(failure)}")
        else:  # an interrupt: nobody wants to wait for the program
            self._inbox.close(runs, "crashed")

    def _end_runs(self, runs: list[LiveRun], status: str) -> None:
        """Have runs end behind all that was said, also where some of it failed."""
        try:
            flush()
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt: nobody knows what was missed
                status = "crashed"
            self._inbox.close(runs, status)
            raise
        self._inbox.close(runs, status)
        flush()

    def close(self) -> None:
        """Write all, end all runs as finished, and let go of files and connections."""
        if self._closed:
            return
        self._closed = True
        self._end("finished")

    def _end(self, status: str) -> None:
        try:
            flush()
        finally:
            own = [run for run in self._register if run.seeds.of_here]
            self._inbox.close(own, status)
            self._inbox.end()
            flush()

    # Records.

    def tap(
        self,
        fun: Callable[..., Any],
        state: RunState,
        argnames: Names = None,
        tags: Names = None,
        interval: int | None = None,
        prefix: str = "",
        *,
        keep_logs: bool = False,
        buffer: int | None = None,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
    ) -> Callable[..., Any]:
        """A function that returns what `fun` returns, while its logs go to the run as it runs.

        Calling `logger.tap(f, state)(x)` in a loop compiles once. The options are those of
        `logax.tap`.
        """
        options = tap_options(argnames, tags, interval, prefix, keep_logs, buffer, owned=True)
        ticket = RunTicket(self._inbox, self._number(state))
        return Harvested(fun, STREAMING, options, static_argnums, static_argnames, ticket)

    def spool(
        self,
        fun: Callable[..., Any],
        state: RunState,
        argnames: Names = None,
        tags: Names = None,
        keep_logs: bool = False,
        interval: int | None = None,
        reduce: Any = None,
        prefix: str = "",
        *,
        capacity: int | Mapping[str, int] | None = None,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
    ) -> Callable[..., Any]:
        """A function that returns what `fun` returns; its logs go to the run when it has ended.

        The options are those of `logax.spool`.
        """
        options = spool_options(argnames, tags, keep_logs, interval, reduce, prefix, capacity)
        ticket = RunTicket(LogdictRoute(self._inbox), self._number(state))
        return Harvested(fun, SENDING, options, static_argnums, static_argnames, ticket)

    def log(
        self, state: RunState, data: Mapping[str, Tree], *, prefix: str = "", **steps: Any
    ) -> None:
        """Write values to the run: one record of plain values, or all records of a `logdict`.

        Waits for nothing: what is still being computed is written when it is there. Inside compiled
        functions it works too.

        Args:
          state: The run.
          data: A mapping from names to pytrees of arrays and numbers, or a `logdict`.
          prefix: Put literally in front of every key.
          **steps: Named counters: `step=i`. A logdict has its own.

        Raises:
          TypeError: A value is not an array; steps are given with a logdict; or `every`, `tags` or
            `explicit` is given, which only `logax.log` has.
          ValueError: The run is finished.
        """
        number = self._number(state)
        self._inbox.check()
        if prefix != "":
            as_text("prefix", prefix, f"`{self._name}.log` at {caller()}")
        if isinstance(data, logdict):
            if steps:
                raise TypeError(
                    f"`{self._name}.log` got a `logdict`, which has steps of its own, and besides "
                    f"{', '.join(f'`{name}`' for name in steps)}. Leave these out."
                )
            log_columns(self._inbox, self._name, number, data.prefix(prefix) if prefix else data)
            return
        site = caller()
        if steps.keys() != _USUAL_STEPS:
            self._check_steps(steps, site)
        log_values(self._inbox, number, data, prefix, steps, site)

    def _check_steps(self, steps: Mapping[str, Any], site: str) -> None:
        what = f"`{self._name}.log` at {site}"
        for option in LOG_OPTIONS:
            if option in steps:
                raise TypeError(
                    f"{what} has no option `{option}`: it writes what it is given, each time. "
                    "Choose with an `if` in Python, or use `logax.log` in a function that is "
                    "tapped."
                )
        warn_of_misspelling(f"{what}, among its steps,", steps, LOG_OPTIONS)

    def live(self, state: RunState, *, argnames: Names = None, tags: Names = None) -> live:
        """Stream every log of what runs inside the block to the run, with nothing wrapped.

            with logger.live(state):
                train_step(...)      # jitted already, or a library's own

        The options are those of `logax.live`.
        """
        return live(LiveTarget(self._inbox, self._number(state)), argnames=argnames, tags=tags)

    def loop(
        self,
        view: Callable[[Any], Tree],
        schedule: int | Schedule = 1,
        *,
        name: str | None = None,
        config: Any = None,
        key: Array | None = None,
        resume: str | None = None,
    ) -> Any:
        """A logger for Python loops (`logax.loop`), which writes what a view gives.

        It opens a run when it is entered, and ends it when it is left.

        Args:
          view: From the state of the loop to a mapping from names to values.
          schedule: When: a schedule, or a number n for every n-th step.
          name: Name of the run.
          config: A mapping or a dataclass, as `init` takes it.
          key: A PRNG key, kept with the run.
          resume: An earlier run, which goes on, as `init` takes it.
        """
        run = functools.partial(self.run, name, config, key=key, resume=resume)
        return RunLoop(self, view, schedule, run)

    @contextlib.contextmanager
    def streamed_live(self, name: str | None = None) -> Iterator[Any]:
        """Open the run that `logax.live(logger)` writes to."""
        with self.run(name) as state:
            yield LiveRoute(self._inbox, state.number)

    def _number(self, state: Any, several: bool = False) -> Any:
        """The number of a run that is open, as far as that can be known here."""
        self._check_open()
        return self._owner.number_of(state, several)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"This `{self._name}` is closed. Make a new one.")


_USUAL_STEPS = {"step"}  # which need no check
