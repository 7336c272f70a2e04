"""What users call: a logger is sinks, and this shell around them."""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from logax._checks import one_of
from logax._compat import Array, Tree
from logax._delivery.ask import ask
from logax._delivery.control import flush
from logax._delivery.emit import shard_here
from logax._errors import add_note, caller, described, received
from logax._harvest.call import Harvested
from logax._harvest.choice import Names
from logax._harvest.live import live
from logax._harvest.sending import SENDING
from logax._harvest.spool import spool_options
from logax._harvest.tap import STREAMING, tap_options
from logax._logdict import logdict
from logax._schedule import Schedule
from logax.loggers._shell.branch import Branch
from logax.loggers._shell.given import Given, key_bits
from logax.loggers._shell.inbox import Inbox
from logax.loggers._shell.register import LANES, LiveRun, Register, Seeds
from logax.loggers._shell.state import Owner, RunState
from logax.loggers._shell.tickets import LiveRoute, LiveTarget, LogdictRoute, RunTicket
from logax.loggers._shell.values import log_columns, log_values
from logax.loggers.sink import Sink
from logax.loop.runs import RunLoop


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

    def init(self, key: Array, **info: Any) -> RunState:
        """A new run for this key; under `vmap`, one for each lane.

        Works in Python and inside compiled functions, where a run begins each time the program gets
        there.

        Args:
          key: A PRNG key: `jax.random.key(0)`.
          **info: What is to be known of the run: `name="baseline"`, `config={...}`, `lr=lr`.
            Strings, numbers and arrays in any nesting. Values that differ between lanes are kept
            for each lane.

        Raises:
          TypeError: `key` is no PRNG key, or `info` holds what cannot be stored.
        """
        self._check_open()
        what = f"{self._name}.init"
        bits, given = key_bits(what, key), Given(what, info)
        shard = shard_here()
        on_shard = [] if shard is None else [shard]

        def answer(lanes: tuple[int, ...], arrays: Sequence[Any]) -> Any:
            bits, *values = arrays
            index = int(values.pop(0).flat[0]) if on_shard else None
            runs = self._begin_runs(Seeds(given.filled(values), lanes, bits, shard=index))
            return [run.number for run in runs]

        return RunState(ask(answer, [bits, *on_shard, *given.arrays]), self._owner)

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
        self._end("crashed" if hasattr(sys, "last_value") else "finished")

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
        self, key: Array | None = None, *, resume: str | None = None, **info: Any
    ) -> contextlib.AbstractContextManager[RunState]:
        """A run for the length of a block: finished at its end, or marked as crashed.

            with logger.run(name="baseline", config=config) as state:
                y = logger.tap(f, state)(xs)

        Args:
          key: A PRNG key, kept with the run.
          resume: An earlier run, which goes on: its id, the beginning of it, or its name, if no
            other has the same; "last" is the newest. Not every destination knows names.
          **info: As `init` takes it.
        """
        self._check_open()
        what = f"{self._name}.run"
        bits = None if key is None else np.asarray(key_bits(what, key))[None]
        return self._block(bits, Given(what, info), resume)

    @contextlib.contextmanager
    def _block(self, bits: Any, given: Given, resume: str | None) -> Iterator[RunState]:
        values = [np.asarray(x)[None] for x in given.arrays]
        found = None if resume is None else self._found(resume)
        runs = self._begin_runs(Seeds(given.filled(values), (), bits, found))
        try:
            yield RunState(np.uint32(runs[0].number), self._owner)
        except BaseException as error:
            self._crashed(runs, error)
            raise
        else:
            self._end_runs(runs, "finished")

    def _found(self, run: str) -> str:
        if not isinstance(run, str) or not run:
            raise TypeError(
                f"`{self._name}.run` takes as `resume` the id or the name of a run, and got "
                f"{received(run)}. `logax.load(path)` lists runs."
            )
        flush()  # what began just now can be found then
        for branch in self._branches:
            run = branch.sink.find(run)
        if any(run == other.info("split").id for other in self._register):
            raise ValueError(
                f"`{self._name}.run` cannot resume the run {run}, which is still open here. Finish "
                "it first, or log to the state that it has."
            )
        return run

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
        buffer: int = 1,
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

    def log(self, state: RunState, data: Mapping[str, Tree], **steps: Any) -> None:
        """Write values to the run: one record of plain values, or all records of a `logdict`.

        Waits for nothing: what is still being computed is written when it is there. Inside compiled
        functions it works too.

        Args:
          state: The run.
          data: A mapping from names to pytrees of arrays and numbers, or a `logdict`.
          **steps: Named counters: `step=i`. A logdict has its own.

        Raises:
          TypeError: A value is no array, or steps are given with a logdict.
          ValueError: The run is finished.
        """
        number = self._number(state)
        self._inbox.check()
        if isinstance(data, logdict):
            if steps:
                raise TypeError(
                    f"`{self._name}.log` got a `logdict`, which has steps of its own, and besides "
                    f"{', '.join(f'`{name}`' for name in steps)}. Leave these out."
                )
            log_columns(self._inbox, self._name, number, data)
            return
        log_values(self._inbox, number, data, steps, caller())

    def live(self, state: RunState, *, argnames: Names = None, tags: Names = None) -> live:
        """Stream every log of what runs inside the block to the run, with nothing wrapped.

            with logger.live(state):
                train_step(...)      # jitted already, or a library's own

        The options are those of `logax.live`.
        """
        return live(LiveTarget(self._inbox, self._number(state)), argnames=argnames, tags=tags)

    def loop(self, view: Callable[[Any], Tree], schedule: int | Schedule = 1, **info: Any) -> Any:
        """A logger for Python loops (`logax.loop`), which writes what a view gives.

        It opens a run when it is entered, called and described by `info`, and ends it when it is
        left.

        Args:
          view: From the state of the loop to a mapping from names to values.
          schedule: When: a schedule, or a number n for every n-th step.
          **info: As `run` takes it, `key` and `resume` too.
        """
        return RunLoop(self, view, schedule, info)

    @contextlib.contextmanager
    def streamed_live(self, **info: Any) -> Iterator[Any]:
        """Where `logax.live(logger)` sends what runs in its block: a run of its own."""
        with self.run(**info) as state:
            yield LiveRoute(self._inbox, state.number)

    def _number(self, state: Any, several: bool = False) -> Any:
        """The number of a run that is open, as far as that can be known here."""
        self._check_open()
        return self._owner.number_of(state, several)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"This `{self._name}` is closed. Make a new one.")
