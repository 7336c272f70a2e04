"""Harvests: walk a program and collect, stream or drop its logs.

| file | contents |
| --- | --- |
| `spool`, `tap`, `live`, `nolog` | the harvests that users call |
| `harvest` | the base class of harvests, the table of rules, the frames that collect records |
| `walker` | the interpreter that runs a jaxpr again and passes its logs to a harvest |
| `rules` | one rule per primitive that can contain a log |
| `unvmap` | predicates that a library reduces over lanes, computed for one lane |
| `census` | the keys that a program logs, their counts and shapes, before it runs |
| `record_blocks`, `stores` | records inside the program: as results, or in state of constant size |
| `selection` | selection of logs by name and tag, and warnings about what it misses |
| `streaming`, `stream_plan` | the harvest behind `tap`, and its plan: buffers and streams |
| `call`, `static_arguments`, `program_cache` | calls, static arguments and compiled programs |
| `tracing` | tracing of a function for a harvest |
| `nnx` | arguments with reference semantics: flax nnx objects |
"""

# The import of a module registers its rules.
from logax._harvest.rules import calls, control_flow, custom_derivatives, shard_map

__all__ = ["calls", "control_flow", "custom_derivatives", "shard_map"]
