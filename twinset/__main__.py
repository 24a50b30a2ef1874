"""`python -m twinset`, which launchers of several processes call."""

import sys

from twinset.commandline.app import main

sys.exit(main())
