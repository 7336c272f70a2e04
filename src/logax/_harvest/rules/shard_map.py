"""The rule for `shard_map` (and `pmap`, which is made of it).

Each shard logs on its own. Records come out with the mesh axes as one axis after the record axis;
states go in and out with one in front. All shards must log the same number of records: a program
whose shards do not is harvested inside the `shard_map`, each shard alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import PartitionSpec

from logax import _compat
from logax._compat import Array, Equation, Tree
from logax._harvest.census import Census, Tally
from logax._harvest.harvest import RULES, Frame, Harvest, Rule
from logax._harvest.record_blocks import Block
from logax._harvest.walker import walk


def _axes(equation: Equation) -> tuple[tuple[str, ...], int]:
    """Return the mapped mesh axes, in the order of the mesh, and the number of shards."""
    manual, mesh = _compat.manual_axes(equation.params), equation.params["mesh"]
    axes = tuple(name for name in mesh.axis_names if name in manual)
    return axes, math.prod(mesh.shape[name] for name in axes)


def uneven_shards_error(tally: Tally) -> ValueError:
    """Return the error for a key whose number of records may differ between shards."""
    return ValueError(
        f"`{tally.entry.key}`, logged at {tally.sites[0]}, may have a different number of records "
        "on each shard of a `shard_map`. Harvest inside of it, on each shard: "
        "`jax.shard_map(g, ...)` of a `g` that calls `logax.spool(f)(x)` and returns the logs "
        "with an axis for the shards, `jax.tree.map(lambda a: a[None], logs)`."
    )


def _census_shard_map(equation: Equation, harvest: Harvest) -> Census:
    axes, number = _axes(equation)
    census = {}
    for key, tally in harvest.census(equation.params["jaxpr"]).items():
        if (
            not harvest.streams
            and not tally.is_exact
            and (not equation.params["check_vma"] or tally.count_varying & set(axes))
        ):
            raise uneven_shards_error(tally)
        census[key] = tally.over_shards(frozenset(axes), number)
    return census


def _run_shard_map(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Run the same `shard_map`, with states and records as additional operands and results."""
    params, (axes, number) = equation.params, _axes(equation)
    census = frame.select_census(_census_shard_map(equation, frame.harvest))
    inner_tallies = {key: frame.tallies[key].per_shard() for key in census}
    first, second = PartitionSpec(axes), PartitionSpec(None, axes)
    streams = frame.harvest.streams

    def shard(args: Sequence[Array], states: dict[str, Tree], scope: Tree) -> Tree:
        states = jax.tree.map(lambda x: x[0], states)
        child = frame.child(states, scope, streams)
        child.tallies, child.shards = inner_tallies, (*frame.shards, number)
        if streams:
            index = jax.lax.axis_index(axes)
            child.call_context = frame.harvest.context_on_shard(child.call_context, index, number)
        results = walk(child, params["jaxpr"], args)
        if streams:
            frame.harvest.drain(child)
            frame.harvest.empty_buffer(child)
        collected = {
            key: records.with_record_axis() for key, records in child.collect_blocks().items()
        }
        states, blocks = _compat.make_varying((child.states, collected), frozenset(axes))
        columns = {key: jax.tree.map(lambda x: x[:, None], block) for key, block in blocks.items()}
        return list(results), jax.tree.map(lambda x: x[None], states), columns

    mapped = jax.shard_map(
        shard,
        mesh=params["mesh"],
        in_specs=(list(params["in_specs"]), first, PartitionSpec()),
        out_specs=(list(params["out_specs"]), first, second),
        axis_names=frozenset(axes),
        check_vma=params["check_vma"],
    )
    states = frame.states_for(census, streams)
    sharded = jax.tree.map(lambda x: _compat.shard_leading_axis(x, params["mesh"], axes), states)
    results, states, columns = mapped(list(args), sharded, frame.scope())
    frame.states.update(jax.tree.map(_compat.replicate, states))
    for key, block in columns.items():
        # The census ensures that the mask is the same on every shard.
        valid = None if block.valid is None else block.valid[:, 0]
        frame.record(key, Block(block.leaves, block.steps, valid))
    return list(results)


RULES["shard_map"] = Rule(_census_shard_map, _run_shard_map)
