"""`logdict`, the columnar result of a harvest: a dictionary and a pytree of records.

| file | contents |
| --- | --- |
| `logdict.py` | `logdict` and `concat`, and their registration as pytrees |
| `table.py` | the dictionary that `logdict` extends, and its static layout |
| `records.py` | the records of one key: arrays, steps, count and sites |
| `validate.py` | the records of one key from user input, checked |
| `join.py` | joining records: `a + b` and `concat` |
| `reduce.py` | applying reducers: `logs.reduce(...)` |
| `views.py` | `logs.steps`, `logs.count`, `logs.last`, `logs.slice`; `logs.first_nonfinite()` |
| `display.py` | the text of `print(logs)` |
| `export.py` | `logs.to_pandas()` and `logs.to_xarray()` |
"""
