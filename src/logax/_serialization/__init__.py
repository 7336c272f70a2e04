"""Values on disk and as text, shared by the run store, `logax.storage` and the text loggers.

| File | Content |
| --- | --- |
| `dtypes` | dtypes that files support, and all others as bits; `StorageError` |
| `trees` | outlines of pytrees as JSON and back, without names of classes |
| `plain_config` | names and configs of runs as plain values and as JSON |
| `record_text` | logged records as JSON, as cells of a table, and as CSV |
"""
