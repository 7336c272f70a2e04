"""From device to host: what is emitted, how it is put in order, and the thread that hands it on.

    emit      the primitives inside the program
    packing   many small operands as one
    packets   what the arrays of an emission mean
    places    which records a parcel holds, and where they stand in the order of the program
    calls     which call a parcel belongs to, and what comes next in it
    direct    what belongs to no call
    routes    where records go
    records   what a callback is given
    worker    the bounded queue and the one thread behind it
    control   what users say to it: `configure`, `flush`, `discard`
    shutdown  SIGTERM, and an exit that waits or fails
    troubles  what went wrong, until somebody can be told
    forks     what is made anew in a process that is forked
    ask       a question that a program asks the host, apart from all of that

Data flows from top to bottom. The thread of XLA that runs the program only puts arrays into the
queue; all else happens on the thread behind it.
"""
