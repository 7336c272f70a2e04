"""Three small primitives that keep loops and branches exact and cheap where JAX batches them.

JAX selects the whole carry of a batched `while` loop at every step, which would copy every store.
So the loop is given a predicate that stays unbatched (`any_lane_p`: whether any lane goes on), and
the user's carry alone is selected lane by lane (`advance_p`: the new value where a lane is active,
else the old one); stores skip idle lanes by their validity. In a loop or a branch that is not
batched, what runs is real, and `running_p` says so to the compiler.

| | is | under `vmap` |
| --- | --- | --- |
| `any_lane_p` (active) | `active` | whether any lane is, with no lane axis |
| `running_p` (active) | true | `active` |
| `advance_p` (active, new, old) | `new` | `new` in active lanes, `old` in others |
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from logax._compat import Array
from logax._lane_axes import lane_count, lanes_first


def _any_lane_batch(args: Any, dims: Any) -> tuple[Array, None]:
    return any_lane_p.bind(jnp.any(args[0], axis=dims[0])), None


def _advance_batch(args: Any, dims: Any) -> tuple[Array, int]:
    size = lane_count(args, dims)
    active, new, old = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else x
        for x, d in zip(lanes_first(args, dims), dims, strict=True)
    )
    if dims[0] is None:
        return advance_p.bind(args[0], new, old), 0
    mask = active.reshape(active.shape + (1,) * (new.ndim - 1))
    return jnp.where(mask, new, old), 0


def _advance_jvp(primals: Any, tangents: Any) -> tuple[Array, Any]:
    active, new, old = primals
    result = advance_p.bind(active, new, old)
    _, new_dot, old_dot = tangents
    return result, advance_p.bind(
        active, ad.instantiate_zeros(new_dot), ad.instantiate_zeros(old_dot)
    )


def _advance_transpose(cotangent: Any, active: Any, new: Any, old: Any) -> list[Any]:
    # Only under `disable_jit`, where loops are Python's, and what runs is real: it is all `new`.
    return [None, cotangent, None]


any_lane_p = jex.Primitive("any_lane")
any_lane_p.def_impl(lambda active: active)
any_lane_p.def_abstract_eval(lambda active: active)
batching.primitive_batchers[any_lane_p] = _any_lane_batch
mlir.register_lowering(any_lane_p, lambda context, active: [active])

running_p = jex.Primitive("running")
running_p.def_impl(lambda active: active)
running_p.def_abstract_eval(lambda active: active)
batching.primitive_batchers[running_p] = lambda args, dims: (args[0], dims[0])
mlir.register_lowering(
    running_p, mlir.lower_fun(lambda active: jnp.ones((), bool), multiple_results=False)
)

advance_p = jex.Primitive("advance")
advance_p.def_impl(lambda active, new, old: new)
advance_p.def_abstract_eval(lambda active, new, old: new)
batching.primitive_batchers[advance_p] = _advance_batch
ad.primitive_jvps[advance_p] = _advance_jvp
ad.primitive_transposes[advance_p] = _advance_transpose
mlir.register_lowering(advance_p, lambda context, active, new, old: [new])
