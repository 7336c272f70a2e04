"""Rules: one per primitive that can contain a log.

| file | primitives |
| --- | --- |
| `calls` | `jit`, `checkpoint`, `custom_linear_solve`, plain calls |
| `control_flow` | `scan`, `while`, `cond` |
| `custom_derivatives` | `custom_jvp`, `custom_vjp`, `custom_vmap`; logs in partial evaluation |
| `shard_map` | `shard_map`, and `pmap`, which is made of it |
"""
