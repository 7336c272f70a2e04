"""The shell of every logger: from harvested functions to sinks.

    logger     what users call: `init`, `tap`, `spool`, `log`, `finish`, `run`, `loop`, `live`
    state      what `init` gives, a pytree with the number of a run
    given      what `init` is given
    register   which run a number stands for, and how it ends
    machine    where runs take place
    tickets    calls and blocks whose records are a run's
    values     values that are logged without a harvest
    inbox      takes batches in, and hands bundles to the branches in time
    own_steps  records of a logdict, each with the steps that it was logged with
    streams    whose records those of each lane are
    portions   the records of a batch as columns
    bundles    columns that wait until there are enough of them
    branch     one sink, what it is given, and what it fails at
    folding    lanes as their mean, least and greatest

Records flow from the inbox through bundles and branches to sinks.
"""
