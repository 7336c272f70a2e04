"""Progress of a compiled program, derived from its records, for `ProgressLogger`.

| file | contents |
| --- | --- |
| `lanes.py` | positions of the lanes of a key, and the choice of the key that the bar follows |
| `shown_values.py` | last values next to the bar, and the number of records still expected |
| `pending_bars.py` | bars that are complete and wait for values of the last iteration |
"""
