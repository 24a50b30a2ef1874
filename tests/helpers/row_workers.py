"""What workers of a row pool draw with in tests: they import no model and no PyTorch.

A group of six rows, as plain tuples: nothing here looks into them.
"""

import os
import signal
import time


def load_quick(device):
    """Return what draws at once."""
    return lambda number: [((device,), number)] * 6


def load_slow(device):
    """Return what draws for a minute."""
    return lambda number: time.sleep(60)


def load_dying(device):
    """Return what ends as a process does that the system kills for its memory."""
    return lambda number: os.kill(os.getpid(), signal.SIGKILL)
