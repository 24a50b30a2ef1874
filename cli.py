"""Start the command line from a checkout: `python cli.py --help`. `twinset` does the same."""

import sys

from twinset.commandline.app import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    sys.exit(main())
