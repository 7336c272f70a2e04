"""What `logdict` is made of: the records of one key, and all that is done with them.

| file | what it knows |
| --- | --- |
| `rows` | one array with a record axis |
| `records` | one key: its arrays, steps, count and sites |
| `given` | one key from what a user gives, checked |
| `join` | one key and later records of it |
| `fold` | one key reduced |
| `layout` | all keys: which array is whose |
| `table` | all keys as a dictionary |
| `views` | the attributes that are looked up by step name and key |
| `nonfinite`, `display`, `groups`, `export` | ways out |
"""
