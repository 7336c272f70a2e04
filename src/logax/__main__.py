"""`python -m logax` is the command `logax`."""

import sys

from logax._cli import main

if __name__ == "__main__":  # pragma: no branch - nobody imports it
    sys.exit(main())
