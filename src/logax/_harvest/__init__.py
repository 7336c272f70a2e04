"""Harvests: the walker over a program, its rules, and what is done with the logs it finds.

| file | what it holds |
| --- | --- |
| `walker` | the walk, the table of rules, the frame that records go to |
| `calls`, `control`, `custom`, `shards` | the rules, one for each primitive |
| `census` | what a program logs, and how often, before it runs |
| `storage` | where records wait inside the program |
| `choice` | which logs a harvest takes |
| `call`, `programs`, `references` | how a harvested function is called, compiled and kept |
| `spool`, `nolog` | the harvests |
"""

# A rule is in the table once its module is imported.
from logax._harvest import calls, control, custom, shards

__all__ = ["calls", "control", "custom", "shards"]
