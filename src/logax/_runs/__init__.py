"""Runs on disk: what `SaveLogger` writes, and `logax.load` reads.

A folder holds one SQLite file for each process that wrote to it. `format` says what stands in a
file; it is made of

    errors, alive, database, log_file errors, locks, and how files are opened and checked
    checksums, statistics, claims     of rows and bytes; of batches; of who resumes a run
    layouts, packing, texts           what records look like, and where their bytes stand
    writer, file, packed, journal     the way in, and what is done when the disk is full
    source, batches, pieces, columns, logs    the way out: one file, the records of a key, one array
    run, runs, tables, frames, save   what a user sees

Nothing here names a file after what was logged, runs anything that a file says, or needs more than
Python's own library, NumPy and JAX.
"""
