"""Run the command `logax` as `python -m logax`."""

import sys

from logax._cli import main

if __name__ == "__main__":  # pragma: no branch - never imported
    sys.exit(main())
