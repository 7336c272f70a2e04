"""Sinks, driven as the shell of loggers drives them."""


def write_runs(sink, runs, *portions, status="finished", flushes=False):
    """Open runs, write portions, each flushed by itself if asked for, and close the runs."""
    sink.open(runs)
    for portion in portions:
        sink.write(portion)
        if flushes:
            sink.flush()
    sink.flush()
    sink.close(runs, status)
    sink.end()
