"""The core of all loggers: from harvested functions to sinks.

| module | content |
| --- | --- |
| `logger` | `Logger`, the methods that users call |
| `state` | `RunState`, the pytree that `init` returns; the PRNG key and the config of `init` |
| `registry` | the runs of a logger: ids, metadata, numbers |
| `resume` | the lookup of earlier runs |
| `run_routes` | routes from `tap`, `spool`, `live` and logdicts to a run |
| `values` | `Logger.log`: values without a harvest |
| `inbox` | assigns records to runs, and buffers them |
| `batches` | packets split into record batches by site, and joined for sinks |
| `sink_worker` | passes batches to one sink, and stores its errors |
| `aggregation` | mean, minimum and maximum over lanes |

Records flow from `run_routes` and `values` through `inbox` and `batches` to the sink workers.
"""
