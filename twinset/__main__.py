"""`python -m twinset`, for launchers that start several processes."""

import sys

from twinset.commandline.app import main

sys.exit(main())
