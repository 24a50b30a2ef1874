"""A further process that writes rows of a twin; `row_processes` starts it and says what is asked.

It ends with the process that started it: one that was left behind would write into a run that is
resumed by others.
"""

from __future__ import annotations

import json
import os
import sys
from threading import Thread


def main(rank: str) -> None:
    """Draw the groups of one share, as a line of the standard input says."""
    message = json.loads(sys.stdin.readline())
    Thread(target=_end_with_input, daemon=True).start()
    from twinset.run.row_processes import draw_share

    draw_share(message, int(rank))


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
