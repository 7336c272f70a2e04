"""Deliver records from the device to callbacks and loggers on the host.

Data flows from top to bottom:

| module | content |
| --- | --- |
| `packet` | the wire format: schema, packing and arrays of one emission |
| `emit` | the primitives inside the program: emit a packet, open a call, ask the host |
| `calls` | the running calls, the size of their blocks, and packets without a call |
| `ordering` | the records of packets, put into the order of the program |
| `routes` | destinations of records: the `Route` protocol, and callbacks |
| `record_batch` | columnar batches, as sinks receive them |

and these serve all of them:

| module | content |
| --- | --- |
| `worker` | the bounded queue, and the thread that runs its jobs |
| `errors` | errors of background threads, stored until a call can raise them |
| `control` | `configure`, `flush` and `discard` |
| `shutdown` | SIGTERM, and an exit that takes long or fails |

The XLA thread that runs a program only puts arrays into the queue; the worker thread does the rest.
"""
