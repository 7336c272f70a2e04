"""Convert record batches to scalars over an x-axis, for services that know no pytrees or arrays.

    x_axis = XAxis(whole=True)                             # one per sink
    for metric_batch in x_axis.metric_batches(batch):      # usually one
        for table in metric_batch.tables:                  # scalars that share their x
            for x, row in table.rows(number):              # Python numbers of stream `number`
                send(x, dict(zip(table.names, row)))
        metric_batch.histograms, metric_batch.images       # separate: show them, or leave them out
    x_axis.forget(runs)                                    # when the runs are closed

**Values.** Scalars stay as they are, booleans become 0 or 1, and complex numbers become `key/real`
and `key/imag`. An array of at most 16 elements becomes one scalar per element (`key/0`, `key/1,2`),
a larger one `key/mean`, `key/min` and `key/max`. Leaves of a pytree are named by their path. PRNG
keys are left out. NaN and infinities stay. If two values have the same name, the later one gets a
`~`.

**X-axis.** The x of a record is its step called `step`, else the first step named, else a count of
the key's records, which continues from batch to batch until the run is forgotten. Other steps
become scalars under their names, or under `steps/name` if a key has that name. With `whole=True` x
is always an integer: if a step is not whole, x is the count and the step a scalar; that key uses
the count from then on.

| file | contents |
| --- | --- |
| `x_axis.py` | x of each record, and tables of the scalars that share it |
| `extraction.py` | scalars, histograms and images of a batch by flat name; PNG encoding |
"""

from logax.loggers._numbers.extraction import MediaColumn, as_uint8, encode_png
from logax.loggers._numbers.x_axis import MetricBatch, ScalarTable, XAxis

__all__ = ["MediaColumn", "MetricBatch", "ScalarTable", "XAxis", "as_uint8", "encode_png"]
