"""What a harvest is: what it does with a log, and the frames that records go to.

A harvest (`spool`, `tap`, `nolog`, ...) subclasses `Harvest`. It must say what a log amounts to
before the program runs (`census_of_log`) and what becomes of it (`on_log`); all else has an answer
that is right for harvests whose records stay in the program. Those that stream say in addition
where records leave, and what waits for that.

A `Frame` is one part of the program while it is walked. Three things travel through it. *States*
are of constant size (the stores of `storage`, above all), threaded through every construct that
runs in sequence. *Blocks* are the records of all other keys, returned outwards. `valid` says, as
data, whether this part of the program is really running: under `vmap`, JAX runs both sides of a
`cond` and lanes of a `while_loop` that are finished, and their logs must not count.

What holds a log somewhere inside is dealt with by the rule of its primitive in `RULES`, the same
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
from logax._harvest import census as counting
from logax._harvest.blocks import Block, Single, joined
from logax._harvest.census import Census
from logax._harvest.stores import Store
from logax._log import bind_again, listening, log_p
from logax._log_spec import LogSpec


class Rule(NamedTuple):
    """How one primitive is walked.

    Attributes:
      census: The census of the equation, given the harvest.
      run: Runs the equation on its arguments within a frame, and returns its results.
    """

    census: Callable[[Equation, Harvest], Census]
    run: Callable[[Equation, Sequence[Array], Frame], Sequence[Array]]


RULES: dict[str, Rule] = {}
Collected = dict[str, Block | Single]


def rule_for(equation: Equation) -> Rule:
    """The rule of the equation's primitive; one that holds logs and has none is an error."""
    name = equation.primitive.name
    if name not in RULES:
        raise NotImplementedError(
            f"A `log` inside the primitive `{name}` cannot be harvested: logax has no rule for it. "
            "Log outside of it, or wrap the function that is called there in `logax.nolog`."
        )
    return RULES[name]


def census_of(parameter: str) -> Callable[[Equation, Harvest], Census]:
    """The census of a primitive that runs the jaxpr in one of its parameters once."""
    return lambda equation, harvest: harvest.census(equation.params[parameter])


class Harvest:
    """What is done with logs. One object serves one walk of one program.

    Attributes:
      streams: Whether records leave the program while it runs.
      adapts: Whether the host says how many of them leave together.
      stores: The stores of the groups that have one, by name.
      memo: What is `remembered`.
    """

    streams = False
    adapts = False

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {}
        self.memo: dict[Any, Any] = {}
        self._kept: list[Any] = []

    def concerns_primitive(self, name: str) -> bool:
        """Whether equations of this primitive are looked at themselves."""
        return name == log_p.name

    def census_of_log(self, equation: Equation) -> Census:
        """The records of one log, as far as this harvest keeps them."""
        raise NotImplementedError

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        """Do with one log whatever this harvest does."""
        raise NotImplementedError

    def threaded(self, frame: Frame, census: Census, emits: bool) -> dict[str, Tree]:
        """The states that go through a part of the program, given its census."""
        return {key: frame.states[key] for key in census if key in frame.states}

    def through_branches(self, frame: Frame, census: Census) -> tuple[dict[str, Tree], bool]:
        """The states that go through the branches of a `cond`, and whether these emit."""
        return {}, False

    def emits_inside(self, frame: Frame, census: Census, again: bool) -> bool:
        """Whether a part emits its records, or returns them; `again` if it may run twice."""
        return False

    def on_shard(self, given: Tree, index: Array, number: int) -> Tree:
        """What a harvest that streams has at hand in one of so many shards."""
        raise NotImplementedError

    def cut(self, frame: Frame, census: Census, length: int) -> int:
        """After how many iterations of a scan records are emitted; 0: it returns them."""
        return 0

    def waits(self, frame: Frame, census: Census) -> bool:
        """Whether the records of such an iteration of a `while` wait in a buffer."""
        return False

    def runs_in_stretches(self, frame: Frame, census: Census, length: int) -> bool:
        """Whether the host says how many iterations of a `scan` emit together, while it runs."""
        return False

    def is_full(
        self, frame: Frame, states: dict[str, Tree], census: Census, group: int = 1
    ) -> Array:
        """Return whether the buffer must be emptied before the next iterations."""
        raise NotImplementedError

    def iterates_in_groups(self, states: dict[str, Tree], census: Census, group: int) -> Array:
        """Return whether as many records leave together as a group of such iterations makes."""
        raise NotImplementedError

    def end_stretch(self, frame: Frame, census: Census, group: int = 1) -> None:
        """Emit what waits, behind iterations that ended because the buffer or the loop did."""

    def leave_loop(self, frame: Frame) -> None:
        """Emit what waits, behind a loop that is in no other."""

    def took(self, frame: Frame) -> None:
        """Called when a frame that emits has taken in records."""

    def settle(self, frame: Frame, *, has_room: bool = False) -> None:
        """Let go of all records of a frame that emits; `has_room` if the buffer is known to."""

    def empty_buffer(self, frame: Frame) -> None:
        """Emit all that waits in the buffer."""

    def rule_context(self) -> contextlib.AbstractContextManager[None]:
        """Under which a user's own rule is traced when its run may stand for the function's."""
        return listening()

    def outer_context(self) -> contextlib.AbstractContextManager[None]:
        """Under which a user's own rule runs for whoever transforms outside."""
        return contextlib.nullcontext()

    def concerns(self, equation: Equation) -> bool:
        """Whether the equation is, or holds, something this harvest looks at."""
        if self.concerns_primitive(equation.primitive.name):
            return True
        return any(self.concerns_jaxpr(inner) for inner in _compat.jaxprs_in(equation.params))

    def concerns_jaxpr(self, jaxpr: Jaxpr) -> bool:
        """Whether any equation in the jaxpr, however deep, concerns this harvest."""
        inner, _ = _compat.parts(jaxpr)
        return bool(self.remembered("concerns", inner, lambda: any(map(self.concerns, inner.eqns))))

    def census(self, jaxpr: Jaxpr) -> Census:
        """The census of a whole jaxpr."""
        inner, _ = _compat.parts(jaxpr)

        def count() -> Census:
            total: Census = {}
            for equation in inner.eqns:
                if equation.primitive is log_p:
                    total = counting.then(total, self.census_of_log(equation))
                elif self.concerns(equation):
                    total = counting.then(total, rule_for(equation).census(equation, self))
            return total

        return self.remembered("census", inner, count)  # type: ignore[no-any-return]

    def remembered(self, what: Any, jaxpr: Jaxpr, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, once for each jaxpr, however often the program uses it."""
        place = (what, id(jaxpr))
        if place not in self.memo:
            self._kept.append(jaxpr)  # its id must stay its own
            self.memo[place] = compute()
        return self.memo[place]


class Silent(Harvest):
    """The harvest that drops every log."""

    def census_of_log(self, equation: Equation) -> Census:
        return {}

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        pass


@dataclasses.dataclass
class Frame:
    """One part of the program being walked, and where its records go.

    Attributes:
      harvest: What is done with logs.
      tallies: What is known of each group, as it is here: inside a `shard_map`, of one shard.
      states: The stores that are threaded through this part.
      valid: Whether the part is really running, where that is not certain.
      only: The keys that are taken here; those of other logs are for the harvest outside.
      given: What a harvest wants to have at hand everywhere.
      emits: Whether records may leave the program here.
      in_loop: Whether this part is in a loop.
      shards: How many shards there are at each level of `shard_map` around this part.
      blocks: The records so far of groups without a store here.
      decisions: By id, each value that a library reduced over lanes, with the value that this lane
        would have alone (see `unvmap`).
    """

    harvest: Harvest
    tallies: Census
    states: dict[str, Tree]
    valid: Array | None = None
    only: frozenset[str] | None = None
    given: Tree = None
    emits: bool = False
    in_loop: bool = False
    shards: tuple[int, ...] = ()
    blocks: dict[str, list[Block | Single]] = dataclasses.field(default_factory=dict)
    decisions: dict[int, tuple[Array, Array]] = dataclasses.field(default_factory=dict)

    def child(
        self, states: dict[str, Tree], passed: Tree, emits: bool = False, *, in_loop: bool = False
    ) -> Frame:
        """A frame for a part, given its states and what `passed` is there, with no blocks yet."""
        valid, given = passed
        return dataclasses.replace(
            self,
            states=dict(states),
            valid=valid,
            given=given,
            emits=emits,
            in_loop=in_loop or self.in_loop,
            blocks={},
            decisions={},
        )

    def passed(self) -> Tree:
        """What a part of the program gets to know beside its states."""
        return self.valid, self.given

    def add_decision(self, value: Array, alone: Array) -> None:
        """Keep, for a value that was reduced over lanes, the value of this lane alone."""
        self.decisions[id(value)] = (value, alone)

    def decided_alone(self, value: Array) -> Array | None:
        """Return the value of this lane alone; None if `value` was not reduced over lanes."""
        return self.decisions.get(id(value), (None, None))[1]

    def real(self, condition: Array) -> Array:
        """Return `condition`, but False where this part of the program does not really run."""
        return condition if self.valid is None else condition & self.valid

    def takes(self, key: str) -> bool:
        """Whether records of this key are taken here."""
        return self.only is None or key in self.only

    def taken(self, census: Census) -> Census:
        """The part of a census that is taken here, of each group its first key."""
        return {k: tally for k, tally in census.items() if k in self.tallies and self.takes(k)}

    def leave(self, operands: Sequence[Array], spec: LogSpec) -> None:
        """Bind a log, or a part of one, for whatever is around this harvest.

        That cannot tell by itself where this part is not really running: our loops run for all
        lanes as long as one goes on.
        """
        if self.valid is None:
            bind_again(operands, spec)
        else:
            jax.lax.cond(
                self.valid,
                lambda own: bind_again(own, spec, self.valid),
                lambda _: None,
                list(operands),
            )

    def record(self, key: str, records: Block | Single) -> None:
        """Take in some records of a group."""
        self.record_all({key: records})

    def record_all(self, blocks: Collected) -> None:
        """Take in what a part of the program returned, all of it before any of it leaves."""
        for key, block in blocks.items():
            self._keep(key, block)
        if self.emits:
            self.harvest.took(self)

    def collected(self) -> Collected:
        """The blocks so far, one for each group."""
        return {key: joined(blocks, self.tallies[key]) for key, blocks in self.blocks.items()}

    def threaded(self, census: Census, emits: bool = False) -> dict[str, Tree]:
        """The states that a part of the program needs, given its census."""
        return self.harvest.threaded(self, census, emits)

    def _keep(self, key: str, records: Block | Single) -> None:
        if key not in self.states:
            self.blocks.setdefault(key, []).append(records)
            return
        block = records.block()
        if block.rows() == 0:
            return
        # A store is one for the whole program, and starts before it is known how values are laid.
        block = jax.tree.map(_compat.replicated, block)
        if self.valid is not None:
            real = self.valid if block.valid is None else self.valid & block.valid
            block = block._replace(valid=jax.numpy.broadcast_to(real, (block.rows(),)))
        new = self.harvest.stores[key].append(self.states[key], block)
        self.states[key] = jax.tree.map(_compat.laid_as, new, self.states[key])
