"""Harvests: the walker over a program, its rules, and what is done with the logs it finds.

| file | what it holds |
| --- | --- |
| `harvest` | what a harvest is, the table of rules, the frames that records go to |
| `walker` | the walk |
| `calls`, `control`, `custom`, `shards` | the rules, one for each primitive |
| `differentiation` | how often a log runs where JAX differentiates the program |
| `unvmap` | what a lane alone would decide, where a library decides for all lanes |
| `lanes` | primitives that keep loops and branches exact where JAX batches them |
| `census` | what a program logs, and how often, before it runs |
| `groups` | keys that are always logged together |
| `blocks`, `storage`, `buffer` | records on their way out; where they wait inside the program |
| `choice`, `findings` | which logs a harvest takes, and what it says of those it does not find |
| `call`, `arguments`, `programs`, `references` | how a harvested function is called and kept |
| `tracing`, `results` | how it is traced and harvested, and what it returns |
| `spool`, `tap`, `live`, `nolog` | the harvests that users call |
| `streaming`, `planning` | the harvest of `tap`, and what it settles before the program runs |
| `sending` | the harvest of a logger's `spool` |
"""

# A rule is in the table once its module is imported.
from logax._harvest.rules import calls, control_flow, custom_derivatives, shard_map

__all__ = ["calls", "control_flow", "custom_derivatives", "shard_map"]
