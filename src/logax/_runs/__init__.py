"""The run store: files that `SaveLogger` and `logax.save` write and `logax.load` reads.

A folder holds one SQLite file for each process that wrote to it.

| File | Content |
| --- | --- |
| `format` | specification of a file: tables, checksums, location of bytes |
| `layouts` | layout of the records of a `log` call: keys, trees, arrays, steps |
| `database` | creating and opening a file as a SQLite database; damage of its log |
| `lock_files` | lock files of writers, with the number of their commits |
| `claims` | claims on runs to resume |
| `identity` | ids of runs, and facts about the machine |
| `encoding` | a batch of records as bytes |
| `batch_statistics` | statistics that are stored with a batch |
| `journal` | uncommitted writes, kept while the disk is full |
| `runs_writer` | writing runs to a new file |
| `file_reader` | reading one file: its runs, streams and batches |
| `key_slices` | reading the records of a key from the batches of a file |
| `key_arrays` | joining the records of a key into one array |
| `search` | the run that a text means |
| `tables` | runs as text, and as one pandas table |
| `run`, `runs`, `save` | `Run`, `Runs`, `load` and `save` |
| `errors` | errors and warnings |

No file is named after logged data, no code from a file is executed, and reading needs only the
standard library, NumPy and JAX.
"""
