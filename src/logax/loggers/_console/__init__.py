"""Terminal output of `ConsoleLogger`.

| file | contents |
| --- | --- |
| `console_sink.py` | the sink, and its view for files and notebooks: a line every few seconds |
| `dashboard.py` | state of the runs that are shown together: keys, steps, status, rate |
| `key_statistics.py` | running statistics of one key over all streams |
| `live_table.py` | view for terminals: a table that is redrawn in place (needs rich) |
| `screen.py` | terminal access: redrawing lines while the program prints |
"""
