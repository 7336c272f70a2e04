"""Plain numbers over one x-axis: what destinations show that know no pytrees and no arrays.

    axis = Axis(whole=True)                        # one for each sink
    for part in axis.parts(portion):               # mostly one
        for table in part.tables:                  # scalars that share their x
            for x, row in table.rows(number):      # of stream `number`: Python numbers only
                send(x, dict(zip(table.names, row)))
        part.histograms, part.images               # apart: show them, or leave them out
    axis.forget(runs)                              # when they are closed

**What becomes of a value.** A scalar stays as it is, a boolean becomes 0 or 1, a complex number
`key/real` and `key/imag`. An array of up to 16 elements goes element by element (`key/0`,
`key/1,2`), a larger one as `key/mean`, `key/min` and `key/max`. The leaves of a pytree are named by
their path. PRNG keys are left out. NaN and infinities stay. Where two values would have the same
name, the later has a `~` behind it.

**The x-axis** is the step called `step`, else the first one named, else a count of the key's
records, which goes on from portion to portion until the run is forgotten. The other steps go beside
as numbers, by their names; where a key has that name, as `steps/name`. A destination whose x-axis
takes integers only (`whole=True`) gets the count where a step is not whole, and the step as a
number beside; a key that had one such step keeps to the count from then on.
"""

from logax.loggers._numbers.axis import Axis, Part, Table
from logax.loggers._numbers.config import flat_config
from logax.loggers._numbers.values import Picture, as_bytes, png

__all__ = ["Axis", "Part", "Picture", "Table", "as_bytes", "flat_config", "png"]
