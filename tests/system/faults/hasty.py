"""`nftproxy` with shorter pauses and less patience, so that many faults fit into a test.

`python -m tests.system.faults.hasty` is in all else the program that everybody runs.
"""

import functools

from nftproxy.agent import daemon, neighbours
from nftproxy.api.pauses import Times
from nftproxy.commands import cli
from nftproxy.sources.api_connection import Patience
from nftproxy.sources.apiserver import Cluster

BOOKMARKS = 0.3
"""Seconds between bookmarks that keep a watch from being taken for dead."""
PROXIES_PERIOD = 0.3
"""Seconds between two looks for other proxies."""
PATIENCE = Patience(connect=2.0, answer=2.0, silence=1.5)
TIMES = Times(healthy=0.3, first_attempt=0.05, longest_attempt=0.5, first_error=0.05, longest_error=0.5)

if __name__ == "__main__":
    vars(daemon)["Cluster"] = functools.partial(Cluster, times=TIMES, patience=PATIENCE)
    vars(neighbours)["PERIOD"] = PROXIES_PERIOD
    cli.main()
