"""`nftproxy` that opens files until it may open no more at SIGUSR1, and closes them at SIGUSR2.

`python -m tests.system.faults.leaky` is otherwise the usual program with a low limit of open files.
"""

import os
import resource
import signal

from nftproxy.commands import cli
from tests.system.faults.poor import FILES

LEAKED: list[int] = []


def leak(*_: object) -> None:
    """Open files until there are too many."""
    try:
        while True:
            LEAKED.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass


def mend(*_: object) -> None:
    """Close them."""
    while LEAKED:
        os.close(LEAKED.pop())


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    signal.signal(signal.SIGUSR1, leak)
    signal.signal(signal.SIGUSR2, mend)
    cli.main()
