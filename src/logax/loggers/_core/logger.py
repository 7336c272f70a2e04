"""`Logger`, the class that users call: it sends the logs of functions to sinks."""

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
from logax._delivery.emit import ask_host, current_shard
from logax._harvest.call import HarvestedFunction
from logax._harvest.live import live
from logax._harvest.selection import Names, Selection
from logax._harvest.spool import SEND_HARVESTER, spool_options
from logax._harvest.tap import TAP_HARVESTER, tap_options
from logax._log import LOG_OPTIONS
from logax._logdict.logdict import logdict
from logax._schedule import Schedule
from logax._serialization.plain_config import validate_run_name
from logax._support.messages import add_note, caller_location, describe_error, describe_value
from logax._support.validation import validate_choice, validate_string, warn_of_misspelling
from logax.loggers._core.inbox import Inbox
from logax.loggers._core.registry import LANES, OpenRun, ResumedRuns, RunRegistry, RunSet
from logax.loggers._core.resume import find_runs, validate_resume
from logax.loggers._core.run_routes import LiveRoute, LiveTarget, LogdictRoute, RunTicket
from logax.loggers._core.sink_worker import SinkWorker
from logax.loggers._core.state import RunState, StateOwner, TracedConfig, key_bits
from logax.loggers._core.values import log_columns, log_values
from logax.loggers.sink import Sink
from logax.loop.run_logger import RunLogger


class Logger:
    """Sends the logs of functions to a sink, one run per key.

        logger = SaveLogger("runs")
        state = logger.init(key)              # inside jit and vmap too: one run per key
        y = logger.tap(f, state)(xs)          # streams while f runs
        y = logger.spool(f, state)(xs)        # writes once, when f has ended
        logger.log(state, {"val/loss": v}, step=i)
        logger.finish(state)

    Background threads write the records, several times a second, so that programs do not wait for
    the destination. A sink that fails stops neither the program nor other sinks; `logax.flush()`,
    the next call of the logger, or the exit of the process raises its error, with the number of
    lost records.

    Args:
      sink: Destination of the records. Derive from `Sink` to write one.
      lanes: Treatment of the lanes of a `vmap` around `init`, for example seeds. "split" makes a
        run for each lane; "aggregate" makes one run with the mean, minimum and maximum over lanes;
        "group" makes a run for each lane, and groups these runs.
      network: True if the sink waits for a network. If so, it gets its own thread.

    Raises:
      TypeError: `sink` is not a `Sink`.
      ValueError: `lanes` is none of the three.
    """

    def __init__(self, sink: Sink, *, lanes: str = "split", network: bool = False) -> None:
        name = type(self).__name__
        if not isinstance(sink, Sink):
            raise TypeError(
                f"`{name}` takes a sink, and got {describe_value(sink)}. Derive your class from "
                "`logax.loggers.Sink`, and write `Logger(YourSink())`."
            )
        validate_choice(name, "lanes", lanes, LANES)
        self._start([SinkWorker(sink, name, lanes, network)])

    def _start(self, sink_workers: Sequence[SinkWorker], callbacks: Sequence[Any] = ()) -> None:
        self._name = type(self).__name__
        self._sink_workers, self._callbacks = list(sink_workers), list(callbacks)
        self._registry = RunRegistry()
        self._owner = StateOwner(self._name, self._registry)
        runs_closed = weakref.WeakMethod(self._on_runs_closed)
        self._inbox = Inbox(
            self._name, self._registry, self._sink_workers, self._callbacks, runs_closed
        )
        self._closed = False
        for sink_worker in self._sink_workers:
            sink_worker.users += 1
        # A logger with open runs is kept alive by its exit function, so it has none here.
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
        """Begin a run, and return its state; under `vmap`, begin a run for each lane.

        Works in Python and inside compiled functions. There a run begins each time the program gets
        here.

        Args:
          key: A PRNG key, such as `jax.random.key(0)`. It is stored with the run.
          name: Name of the run. Under `vmap` the index of the lane is appended.
          config: A mapping or a dataclass of strings, numbers and arrays, nested in any way. Values
            may be traced, and may differ between lanes.
          resume: An earlier run to continue: its id, the beginning of its id, its name if it is
            unique, or "last" for the newest run. Under `vmap`, the same for an earlier sweep, whose
            lanes continue one by one, or a sequence with one run for each lane. A compiled function
            looks up runs when it is compiled.

        Returns:
          The state of the run, for the other methods.

        Raises:
          TypeError: `key` is not a PRNG key, or `config` holds a value that cannot be stored.
          ValueError: No run matches `resume`, or more than one does, or a process still writes it.
        """
        self._check_open()
        what = f"{self._name}.init"
        bits, given = key_bits(what, key), TracedConfig(what, config)
        name, resume = validate_run_name(what, name), validate_resume(what, resume)
        shard = current_shard()
        on_shard = [] if shard is None else [shard]
        if on_shard and resume is not None:
            raise ValueError(
                f"`{what}` cannot resume runs inside `shard_map`, where each shard begins runs of "
                "its own. Call it outside, and give the state to the mapped function."
            )
        # By lanes, because one call of `init` may be compiled for different numbers of lanes.
        found: dict[tuple[int, ...], ResumedRuns] = {}

        def prepare(lanes: tuple[int, ...]) -> None:
            if resume is not None:
                found[lanes] = self._find_runs(what, resume, lanes)

        def answer(lanes: tuple[int, ...], arrays: Sequence[Any]) -> Any:
            bits, *values = arrays
            index = int(values.pop(0).flat[0]) if on_shard else None
            resumed = found.get(lanes)
            still_open = () if resumed is None else self._find_open(resumed)
            run_set = RunSet(
                name, given.fill(values), lanes, bits, None if still_open else resumed, index
            )
            if still_open:
                self._inbox.report_failed_resume(what, still_open, run_set.id)
            return [run.number for run in self._begin_runs(run_set)]

        operands = [bits, *on_shard, *given.arrays]
        return RunState(ask_host(answer, operands, prepare), self._owner)

    def _begin_runs(self, run_set: RunSet) -> list[OpenRun]:
        runs = self._registry.begin(run_set)
        self._inbox.begin(runs)
        # Register last, so that this runs before the exit functions of destinations.
        atexit.unregister(self._end_at_exit)
        atexit.register(self._end_at_exit)
        return runs

    def _on_runs_closed(self) -> None:
        """Unregister the exit function if no run is open, so that the logger can be freed."""
        if self._registry.has_open_runs():
            return
        atexit.unregister(self._end_at_exit)
        if self._registry.has_open_runs():  # a run began meanwhile, on another thread
            atexit.register(self._end_at_exit)  # registering twice is harmless

    def _end_at_exit(self) -> None:
        status = "crashed" if hasattr(sys, "last_value") else "finished"
        wait_at_exit(lambda: self._end(status))

    def finish(self, state: RunState) -> None:
        """End the run: write all of its records, and close it in the destination.

        In Python this waits for all records and raises the errors of the logger; the run ends even
        then. Inside a compiled function the run ends with the next `logax.flush()`, or at exit.

        Args:
          state: State of the run. A state of several runs ends all of them.

        Raises:
          ValueError: The run is finished already.
          DeliveryError: Some records could not be written.
        """
        number = self._number(state, several=True)
        if isinstance(number, jax.core.Tracer):
            ask_host(self._finish_inside, [number])
            return
        self._end_runs(self._owner.open_runs(number), "finished")

    def _finish_inside(self, lanes: tuple[int, ...], arrays: Sequence[Any]) -> Any:
        found = [self._registry.find(number) for number in np.ravel(arrays[0]).tolist()]
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
        """Begin a run for the length of a `with` block.

            with logger.run("baseline", config) as state:
                y = logger.tap(f, state)(xs)

        The run ends as "finished" at the end of the block, or as "crashed" if the block raises.

        Args:
          name: Name of the run.
          config: A mapping or a dataclass, see `init`.
          key: A PRNG key to store with the run.
          resume: An earlier run to continue, see `init`.
        """
        self._check_open()
        what = f"{self._name}.run"
        name, resumed = validate_run_name(what, name), validate_resume(what, resume)
        bits = None if key is None else np.asarray(key_bits(what, key))[None]
        return self._block(name, TracedConfig(what, config), bits, resumed)

    @contextlib.contextmanager
    def _block(
        self, name: str | None, given: TracedConfig, bits: Any, resume: str | Sequence[str] | None
    ) -> Iterator[RunState]:
        values = [np.asarray(x)[None] for x in given.arrays]
        what = f"{self._name}.run"
        found = None if resume is None else self._find_runs(what, resume, ())
        runs = self._begin_runs(RunSet(name, given.fill(values), (), bits, found))
        try:
            yield RunState(np.uint32(runs[0].number), self._owner)
        except BaseException as error:
            self._end_crashed(runs, error)
            raise
        else:
            self._end_runs(runs, "finished")

    def _find_runs(
        self, what: str, resume: str | Sequence[str], lanes: tuple[int, ...]
    ) -> ResumedRuns:
        flush()  # so that new runs can be found, and finished runs are closed
        return find_runs(what, resume, lanes, self._sink_workers, self._find_open)

    def _find_open(self, runs: ResumedRuns) -> list[str]:
        """Return the ids of the runs that are open in this logger."""
        found: dict[str, None] = {}
        for lanes in sorted({"split", *(sink_worker.lanes for sink_worker in self._sink_workers)}):
            still_open = {run.info(lanes).id for run in self._registry}
            found |= dict.fromkeys(run for run in runs.ids_for(lanes) if run in still_open)
        return list(found)

    def _end_crashed(self, runs: list[OpenRun], error: BaseException) -> None:
        """End runs as crashed, and add errors of the logger as notes to the error of the block."""
        if isinstance(error, Exception):
            try:
                self._end_runs(runs, "crashed")
            except Exception as failure:  # noqa: BLE001 - becomes a note
                add_note(error, f"Besides, `{self._name}` had trouble: {describe_error(failure)}")
        else:  # an interrupt: do not wait for the program
            self._inbox.close(runs, "crashed")

    def _end_runs(self, runs: list[OpenRun], status: str) -> None:
        """End runs after all of their records, even if some records failed."""
        try:
            flush()
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt: records may be missing
                status = "crashed"
            self._inbox.close(runs, status)
            raise
        self._inbox.close(runs, status)
        flush()

    def close(self) -> None:
        """Write all records, end all runs as finished, and release files and connections.

        The logger cannot be used afterwards. At exit, logax closes all loggers with open runs.

        Raises:
          DeliveryError: Some records could not be written.
        """
        if self._closed:
            return
        self._closed = True
        self._end("finished")

    def _end(self, status: str) -> None:
        try:
            flush()
        finally:
            own = [run for run in self._registry if run.run_set.is_of_this_process]
            self._inbox.close(own, status)
            self._inbox.end()
            flush()

    # Records.

    def tap(
        self,
        fun: Callable[..., Any],
        state: RunState,
        keys: Names = None,
        tags: Names = None,
        interval: int | None = None,
        prefix: str = "",
        *,
        keep_logs: bool = False,
        buffer: int | None = None,
        exclude: Names = None,
        argnames: Names = None,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
    ) -> Callable[..., Any]:
        """Return `fun` wrapped so that its logs stream to the run while it runs.

        The result of the wrapped function is unchanged. Calling `logger.tap(f, state)(x)` in a loop
        compiles once.

        Args:
          fun: Function of arrays.
          state: State of the run.
          keys: Names or glob patterns of the logs to take. By default all are taken.
          tags: Tags of the logs to take.
          interval: Take every `interval`-th record of each key.
          prefix: Text in front of every key.
          keep_logs: Leave the logs to an outer harvest as well.
          buffer: Number of records that leave the device together, see `logax.tap`.
          exclude: Names or glob patterns of logs to leave out.
          argnames: Alias of `keys`.
          static_argnums: Positions of static arguments.
          static_argnames: Names of static arguments.

        Raises:
          TypeError: `state` is not a state.
          ValueError: The run is finished, or an option is out of its range.
          DeliveryError: On a call of the wrapped function: earlier records could not be written.
        """
        selection = Selection.of(keys, tags, prefix, exclude, argnames)
        options = tap_options(selection, interval, keep_logs, buffer, owned=True)
        ticket = RunTicket(self._inbox, self._number(state))
        return HarvestedFunction(
            fun, TAP_HARVESTER, options, static_argnums, static_argnames, ticket
        )

    def spool(
        self,
        fun: Callable[..., Any],
        state: RunState,
        keys: Names = None,
        tags: Names = None,
        keep_logs: bool = False,
        interval: int | None = None,
        reduce: Any = None,
        prefix: str = "",
        *,
        capacity: int | Mapping[str, int] | None = None,
        exclude: Names = None,
        argnames: Names = None,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
    ) -> Callable[..., Any]:
        """Return `fun` wrapped so that its logs go to the run when it has ended.

        The logs are collected on the device, and leave it in one transfer. The result of the
        wrapped function is unchanged.

        Args:
          fun: Function of arrays.
          state: State of the run.
          keys: Names or glob patterns of the logs to take. By default all are taken.
          tags: Tags of the logs to take.
          keep_logs: Leave the logs to an outer harvest as well.
          interval: Take every `interval`-th record of each key.
          reduce: Reducers of keys, see `logax.spool`.
          prefix: Text in front of every key.
          capacity: Maximum number of records per key, see `logax.spool`.
          exclude: Names or glob patterns of logs to leave out.
          argnames: Alias of `keys`.
          static_argnums: Positions of static arguments.
          static_argnames: Names of static arguments.

        Raises:
          TypeError: `state` is not a state.
          ValueError: The run is finished, or an option is out of its range.
          DeliveryError: On a call of the wrapped function: earlier records could not be written.
        """
        selection = Selection.of(keys, tags, prefix, exclude, argnames)
        options = spool_options(selection, keep_logs, interval, reduce, capacity)
        ticket = RunTicket(LogdictRoute(self._inbox), self._number(state))
        return HarvestedFunction(
            fun, SEND_HARVESTER, options, static_argnums, static_argnames, ticket
        )

    def log(
        self, state: RunState, data: Mapping[str, Tree], *, prefix: str = "", **steps: Any
    ) -> None:
        """Write values to the run: one record, or all records of a `logdict`.

        Returns at once: values that a program still computes are written when they are ready. Works
        inside compiled functions too.

        Args:
          state: State of the run.
          data: A mapping from names to pytrees of arrays and numbers, or a `logdict`.
          prefix: Text in front of every key.
          **steps: Step counters, such as `step=i`. A logdict has its own.

        Raises:
          TypeError: A value is not an array or a number; steps are given with a logdict; or one of
            `every`, `tags` and `explicit` is given, which only `logax.log` has.
          ValueError: The run is finished.
          DeliveryError: Earlier records could not be written.
        """
        number = self._number(state)
        self._inbox.check()
        if prefix != "":
            validate_string("prefix", prefix, f"`{self._name}.log` at {caller_location()}")
        if isinstance(data, logdict):
            if steps:
                raise TypeError(
                    f"`{self._name}.log` got a `logdict`, which has steps of its own, and besides "
                    f"{', '.join(f'`{name}`' for name in steps)}. Leave these out."
                )
            log_columns(self._inbox, self._name, number, data.prefix(prefix) if prefix else data)
            return
        site = caller_location()
        if steps.keys() != _UNCHECKED_STEPS:
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

    def live(
        self,
        state: RunState,
        *,
        keys: Names = None,
        tags: Names = None,
        exclude: Names = None,
        argnames: Names = None,
    ) -> live:
        """Stream all logs of the programs that run inside a `with` block to the run.

            with logger.live(state):
                train_step(...)      # a compiled function, or one of a library

        Nothing needs to be wrapped. See `logax.live`.

        Args:
          state: State of the run.
          keys: Names or glob patterns of the logs to take. By default all are taken.
          tags: Tags of the logs to take.
          exclude: Names or glob patterns of logs to leave out.
          argnames: Alias of `keys`.
        """
        target = LiveTarget(self._inbox, self._number(state))
        return live(target, keys=keys, tags=tags, exclude=exclude, argnames=argnames)

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
        """Return a logger for Python loops (`logax.loop`) that writes the values of a view.

        It begins a run when it is entered, and ends the run when it is left.

        Args:
          view: Function from the state of the loop to a mapping from names to values.
          schedule: A schedule, or a number n for every n-th step.
          name: Name of the run.
          config: A mapping or a dataclass, see `init`.
          key: A PRNG key to store with the run.
          resume: An earlier run to continue, see `init`.
        """
        run = functools.partial(self.run, name, config, key=key, resume=resume)
        return RunLogger(self, view, schedule, run)

    @contextlib.contextmanager
    def streamed_live(self, name: str | None = None) -> Iterator[Any]:
        """Begin the run that `logax.live(logger)` writes to."""
        with self.run(name) as state:
            yield LiveRoute(self._inbox, state.number)

    def _number(self, state: Any, several: bool = False) -> Any:
        """Return the number of the run of a state; raise if the run has ended."""
        self._check_open()
        return self._owner.number_of(state, several)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"This `{self._name}` is closed. Make a new one.")


_UNCHECKED_STEPS = {"step"}  # the most common ones, so that `log` is fast
