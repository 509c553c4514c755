"""`nftproxy` that may have few files open, and can't allow itself more.

`python -m tests.system.faults.poor` is in all else the program that everybody runs.
"""

import resource

from nftproxy.commands import cli

FILES = 256

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    cli.main()
