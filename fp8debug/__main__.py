"""`python -m fp8debug` is the command line."""

from __future__ import annotations

import sys

from fp8debug.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
