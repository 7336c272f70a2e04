"""Harvests: the walker over a program, its rules, and what is done with the logs it finds.

| file | what it holds |
| --- | --- |
| `walker` | the walk, the table of rules, the frame that records go to |
| `calls`, `control`, `custom`, `shards` | the rules, one for each primitive |
| `census` | what a program logs, and how often, before it runs |
| `groups` | keys that are always logged together |
| `storage`, `buffer` | where records wait inside the program |
| `choice`, `findings` | which logs a harvest takes, and what it says of those it does not find |
| `call`, `arguments`, `programs`, `references` | how a harvested function is called and kept |
| `tracing`, `results` | how it is traced and harvested, and what it returns |
| `spool`, `tap`, `live`, `nolog` | the harvests that users call |
| `streaming`, `sending` | the harvest of `tap`, and that of a logger's `spool` |
"""

# A rule is in the table once its module is imported.
from logax._harvest import calls, control, custom, shards

__all__ = ["calls", "control", "custom", "shards"]
