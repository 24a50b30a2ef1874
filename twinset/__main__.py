"""`python -m twinset`, which launchers of several processes call."""

import sys

from cli import main

sys.exit(main())
