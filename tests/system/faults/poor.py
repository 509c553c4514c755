"""`nftproxy` with a low limit of open files, which it can't raise.

`python -m tests.system.faults.poor` is otherwise the usual program.
"""

import resource

from nftproxy.commands import cli

FILES = 256

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    cli.main()
