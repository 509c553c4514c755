"""`nftproxy` with the pauses of hasty.py, and a wall clock that is ahead by the seconds in the file $CLOCK.

The clock of the machine, which all programs share, stays.
"""

import os
import time
from pathlib import Path

from tests.system.faults import hasty

CLOCK = Path(os.environ["CLOCK"])
_real = time.time


def jumping() -> float:
    """The time of the machine, and the jump."""
    return _real() + float(CLOCK.read_text())


if __name__ == "__main__":
    vars(time)["time"] = jumping
    hasty.main()
