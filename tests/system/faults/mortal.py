"""`nftproxy` that loads in the smallest pieces, and kills itself before a transaction, if the environment says so.

`python -m tests.system.faults.mortal` is in all else the program that everybody runs.
"""

import itertools
import os
import signal

from nftproxy import pipeline
from nftproxy.agent import pieces
from nftproxy.commands import cli
from nftproxy.kernel.libnftables import Kernel
from nftproxy.rules.transaction import Commit, Transaction

DIES_BEFORE = "NFTPROXY_DIES_BEFORE"
"""The variable with the number of the transaction, from 0; without it there are no small pieces either."""
NEVER = "never"
"""Its value for who lives."""


def main() -> None:
    """Run it."""
    last, real, numbers = os.environ.get(DIES_BEFORE), Kernel.apply, itertools.count()

    def apply(self: Kernel, transaction: Transaction) -> Commit:
        if str(next(numbers)) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, transaction)

    if last is not None:
        vars(pieces)["PIECE"] = vars(pipeline)["STEP"] = 1
        type.__setattr__(Kernel, "apply", apply)
    cli.main()


if __name__ == "__main__":
    main()
