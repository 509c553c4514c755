"""`nftproxy` that loads in the smallest pieces and kills itself before a transaction, if a variable is set.

`python -m tests.system.faults.mortal` is otherwise the usual program.
"""

import itertools
import os
import signal

from nftproxy import pipeline
from nftproxy.agent.sync import piecewise_load
from nftproxy.commands import cli
from nftproxy.kernel.libnftables import Kernel
from nftproxy.rules.transaction import Commit, Transaction

DIES_BEFORE = "NFTPROXY_DIES_BEFORE"
"""The variable with the number of the transaction, from 0.  Without the variable, the program is as usual."""
NEVER = "never"
"""The variable's value for small pieces without a kill."""


def main() -> None:
    """Run `nftproxy`."""
    last, real, numbers = os.environ.get(DIES_BEFORE), Kernel.apply, itertools.count()

    def apply(self: Kernel, transaction: Transaction) -> Commit:
        if str(next(numbers)) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, transaction)

    if last is not None:
        vars(piecewise_load)["LOAD_PIECE"] = vars(pipeline)["STEP"] = 1
        type.__setattr__(Kernel, "apply", apply)
    cli.main()


if __name__ == "__main__":
    main()
