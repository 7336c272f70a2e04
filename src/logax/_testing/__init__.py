"""The parts of `logax.testing`.

memory    a logger that keeps what it is given
checks    what a destination is compared by
programs  functions that log
cases     what is done with them, for every destination, and what must be there then
"""
