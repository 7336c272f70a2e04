"""One text file as a destination, for `JSONLLogger` and `CSVLogger`.

`logax._serialization.record_text` formats the records.

| file | contents |
| --- | --- |
| `shared_files.py` | appending to a file that several processes write |
| `text_sink.py` | base class of the sinks of one text file; rows in program order |
"""
