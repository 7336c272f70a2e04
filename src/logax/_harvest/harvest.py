"""Base classes of a harvest: its treatment of logs, the frames of a walk, the table of rules.

A harvest (`spool`, `tap`, `nolog`, ...) subclasses `Harvest`. It must define the census of a log
before the program runs (`census_of_log`) and the treatment of a log (`on_log`). All other methods
have defaults that are right for harvests whose records stay in the program; harvests that stream
override them to define where records leave the program and where they are buffered.

A `Frame` is one part of the program during the walk. Three things travel through it:

- *States* have constant size (the stores of `stores`, above all) and pass through every construct
  that runs in sequence.
- *Blocks* are the records of all other keys, which each part returns.
- `valid` is a boolean array: whether this part of the program really runs. Under `vmap`, JAX runs
  both branches of a `cond` and the finished lanes of a `while_loop`, whose logs must not count.

An equation that contains a log goes to the rule of its primitive in `RULES`. The rules are the same
for all harvests.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from logax import _compat
from logax._compat import Array, Equation, Jaxpr, Tree
from logax._harvest.census import Census, census_of_sequence
from logax._harvest.record_blocks import Block, join_blocks
from logax._harvest.stores import Store
from logax._log import enable_logs, log_p, rebind_log
from logax._log_spec import LogSpec


class Rule(NamedTuple):
    """Treatment of one primitive by the walker.

    Attributes:
      census: Function of an equation and the harvest that returns the census of the equation.
      run: Function that runs an equation on its arguments in a frame and returns its results.
      predicate: Position of the operand that selects a branch, if there is one. A library may
        reduce it over lanes (see `unvmap`).
    """

    census: Callable[[Equation, Harvest], Census]
    run: Callable[[Equation, Sequence[Array], Frame], Sequence[Array]]
    predicate: int | None = None


RULES: dict[str, Rule] = {}
INLINE_CALLS = ("closed_call", "core_call", "eval_jaxpr")
"""Primitives that run one jaxpr once and have no parameters to keep."""
Blocks = dict[str, Block]


def rule_for(equation: Equation) -> Rule:
    """Return the rule of the equation's primitive; raise if it has none."""
    name = equation.primitive.name
    if name not in RULES:
        raise NotImplementedError(
            f"A `log` inside the primitive `{name}` cannot be harvested: logax has no rule for it. "
            "Log outside of it, or wrap the function that is called there in `logax.nolog`."
        )
    return RULES[name]


def census_of_param(parameter: str) -> Callable[[Equation, Harvest], Census]:
    """Return the census function of a primitive that runs the jaxpr in a parameter once."""
    return lambda equation, harvest: harvest.census(equation.params[parameter])


class Harvest:
    """Base class of harvests. One object serves one walk of one program.

    Attributes:
      streams: True if records leave the program while it runs.
      adapts: True if the host decides how many records leave together.
      stores: Stores by group, for the groups that have one.
      memo: Results of `memoize`.
    """

    streams = False
    adapts = False

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {}
        self.memo: dict[Any, Any] = {}
        self._memoized: list[Any] = []

    def concerns_primitive(self, name: str) -> bool:
        """Return whether this harvest handles equations of this primitive itself."""
        return name == log_p.name

    def census_of_log(self, equation: Equation) -> Census:
        """Return the census of one log: the records that this harvest keeps."""
        raise NotImplementedError

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        """Handle one log."""
        raise NotImplementedError

    def states_for(self, frame: Frame, census: Census, emits: bool) -> dict[str, Tree]:
        """Return the states that pass through a part of the program, given its census."""
        return {key: frame.states[key] for key in census if key in frame.states}

    def branch_states(self, frame: Frame, census: Census) -> tuple[dict[str, Tree], bool]:
        """Return the states that pass through the branches of a `cond`, and whether they emit."""
        return {}, False

    def emits_inside(self, frame: Frame, census: Census, may_repeat: bool) -> bool:
        """Return whether a part emits its records itself, and does not return them.

        `may_repeat` is true if JAX may run the part twice.
        """
        return False

    def context_on_shard(self, context: Tree, index: Array, number: int) -> Tree:
        """Return the call context on one of `number` shards, for a harvest that streams."""
        raise NotImplementedError

    def iterations_per_emission(self, frame: Frame, census: Census, length: int) -> int:
        """Return after how many iterations a scan emits its records; 0 if it returns them."""
        return 0

    def uses_buffer(self, frame: Frame, census: Census) -> bool:
        """Return whether a `while` loop with this census per iteration buffers its records."""
        return False

    def runs_in_chunks(self, frame: Frame, census: Census, length: int) -> bool:
        """Return whether the host decides how many iterations of a `scan` emit together."""
        return False

    def is_full(
        self, frame: Frame, states: dict[str, Tree], census: Census, group: int = 1
    ) -> Array:
        """Return whether the buffer must be emptied before the next iterations."""
        raise NotImplementedError

    def iterates_in_groups(self, states: dict[str, Tree], census: Census, group: int) -> Array:
        """Return whether at least one group of iterations fits into an emission."""
        raise NotImplementedError

    def end_chunk(self, frame: Frame, census: Census, group: int = 1) -> None:
        """Emit buffered records after a chunk: the buffer is full or the loop is done."""

    def end_loop(self, frame: Frame) -> None:
        """Emit buffered records after an outermost loop."""

    def after_record(self, frame: Frame) -> None:
        """Handle the new records of a frame that emits."""

    def drain(self, frame: Frame, *, has_room: bool = False) -> None:
        """Emit or buffer all records of a frame that emits.

        `has_room` is true if the buffer is known to have room for them.
        """

    def empty_buffer(self, frame: Frame) -> None:
        """Emit all buffered records."""

    def rule_context(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a user's rule is traced to replace the function."""
        return enable_logs()

    def outer_context(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a user's rule runs for an outer transformation."""
        return contextlib.nullcontext()

    def concerns(self, equation: Equation) -> bool:
        """Return whether the equation is, or contains, one that this harvest handles."""
        if self.concerns_primitive(equation.primitive.name):
            return True
        return any(self.concerns_jaxpr(inner) for inner in _compat.jaxprs_in(equation.params))

    def concerns_jaxpr(self, jaxpr: Jaxpr) -> bool:
        """Return whether any equation in the jaxpr, at any depth, concerns this harvest."""
        inner, _ = _compat.jaxpr_and_consts(jaxpr)
        return bool(self.memoize("concerns", inner, lambda: any(map(self.concerns, inner.eqns))))

    def census(self, jaxpr: Jaxpr) -> Census:
        """Return the census of a jaxpr."""
        inner, _ = _compat.jaxpr_and_consts(jaxpr)

        def count() -> Census:
            total: Census = {}
            for equation in inner.eqns:
                if equation.primitive is log_p:
                    total = census_of_sequence(total, self.census_of_log(equation))
                elif self.concerns(equation):
                    total = census_of_sequence(total, rule_for(equation).census(equation, self))
            return total

        return self.memoize("census", inner, count)  # type: ignore[no-any-return]

    def memoize(self, kind: Any, jaxpr: Jaxpr, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, which runs once per kind and jaxpr."""
        key = (kind, id(jaxpr))
        if key not in self.memo:
            self._memoized.append(jaxpr)  # its id must not be reused
            self.memo[key] = compute()
        return self.memo[key]


class SilentHarvest(Harvest):
    """The harvest that drops every log."""

    def census_of_log(self, equation: Equation) -> Census:
        return {}

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        pass


@dataclasses.dataclass
class Frame:
    """One part of the program during the walk, with its records.

    Attributes:
      harvest: The harvest that handles the logs.
      tallies: Tally of each group in this part; inside a `shard_map`, of one shard.
      states: States that pass through this part.
      valid: True if the part really runs; None if that is certain.
      only_keys: Keys that this part records; None for all. Logs of other keys go to the outer
        harvest.
      call_context: Values that the harvest needs in every part.
      emits: True if records may leave the program here.
      in_loop: True if this part is in a loop.
      shards: Number of shards at each level of `shard_map` around this part.
      blocks: Records so far of the groups without a store here.
      single_lane_values: By id, each value that a library reduced over lanes, with the value that
        this lane would have alone (see `unvmap`).
    """

    harvest: Harvest
    tallies: Census
    states: dict[str, Tree]
    valid: Array | None = None
    only_keys: frozenset[str] | None = None
    call_context: Tree = None
    emits: bool = False
    in_loop: bool = False
    shards: tuple[int, ...] = ()
    blocks: dict[str, list[Block]] = dataclasses.field(default_factory=dict)
    single_lane_values: dict[int, tuple[Array, Array]] = dataclasses.field(default_factory=dict)

    def child(
        self, states: dict[str, Tree], scope: Tree, emits: bool = False, *, in_loop: bool = False
    ) -> Frame:
        """Return a frame without blocks for a part, given its states and its `scope`."""
        valid, call_context = scope
        return dataclasses.replace(
            self,
            states=dict(states),
            valid=valid,
            call_context=call_context,
            emits=emits,
            in_loop=in_loop or self.in_loop,
            blocks={},
            single_lane_values={},
        )

    def scope(self) -> Tree:
        """Return the values that every part of the program gets beside its states."""
        return self.valid, self.call_context

    def set_single_lane_value(self, value: Array, alone: Array) -> None:
        """Store, for a value that was reduced over lanes, the value of this lane alone."""
        self.single_lane_values[id(value)] = (value, alone)

    def single_lane_value(self, value: Array) -> Array | None:
        """Return the value of this lane alone; None if `value` was not reduced over lanes."""
        return self.single_lane_values.get(id(value), (None, None))[1]

    def mask_valid(self, condition: Array) -> Array:
        """Return `condition`, but False where this part of the program does not really run."""
        return condition if self.valid is None else condition & self.valid

    def takes(self, key: str) -> bool:
        """Return whether this part records the key."""
        return self.only_keys is None or key in self.only_keys

    def select_census(self, census: Census) -> Census:
        """Return the entries of a census that this part records; a group has its first key."""
        return {k: tally for k, tally in census.items() if k in self.tallies and self.takes(k)}

    def bind_for_outer(self, operands: Sequence[Array], spec: LogSpec) -> None:
        """Bind a log, or a part of one, for the harvest outside of this one.

        The outer harvest cannot know where this part does not really run, because our loops run for
        all lanes while one continues.
        """
        if self.valid is None:
            rebind_log(operands, spec)
        else:
            jax.lax.cond(
                self.valid,
                lambda own: rebind_log(own, spec, self.valid),
                lambda _: None,
                list(operands),
            )

    def record(self, key: str, records: Block) -> None:
        """Add records of a group."""
        self.record_all({key: records})

    def record_all(self, blocks: Blocks) -> None:
        """Add the blocks that a part of the program returned, all of them before any is emitted."""
        for key, block in blocks.items():
            self._add_records(key, block)
        if self.emits:
            self.harvest.after_record(self)

    def collect_blocks(self) -> Blocks:
        """Return the blocks so far, joined into one per group."""
        return {key: join_blocks(blocks, self.tallies[key]) for key, blocks in self.blocks.items()}

    def states_for(self, census: Census, emits: bool = False) -> dict[str, Tree]:
        """Return the states that a part of the program needs, given its census."""
        return self.harvest.states_for(self, census, emits)

    def _add_records(self, key: str, records: Block) -> None:
        if key not in self.states:
            self.blocks.setdefault(key, []).append(records)
            return
        block = records.with_record_axis()
        if block.num_rows() == 0:
            return
        # A store serves the whole program, and is created before the layout of values is known.
        block = jax.tree.map(_compat.replicate, block)
        if self.valid is not None:
            valid = self.valid if block.valid is None else self.valid & block.valid
            valid = jax.numpy.broadcast_to(valid, (block.num_rows(),))
            block = dataclasses.replace(block, valid=valid)
        new = self.harvest.stores[key].append(self.states[key], block)
        self.states[key] = jax.tree.map(_compat.reshard_like, new, self.states[key])
