"""What logax costs, against the same programs written by hand: `python -m benchmarks`."""
