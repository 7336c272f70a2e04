"""Drive a sink in the order in which a `Logger` calls it."""


def write_runs(sink, runs, *batches, status="finished", flushes=False):
    """Open runs, write batches (with `flushes`, flush after each), and close the runs."""
    sink.open(runs)
    for batch in batches:
        sink.write(batch)
        if flushes:
            sink.flush()
    sink.flush()
    sink.close(runs, status)
    sink.end()
