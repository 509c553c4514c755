"""`nftproxy` with shorter pauses and timeouts, so that many faults fit into a test.

`python -m tests.system.faults.hasty` is otherwise the usual program.
"""

import functools

from nftproxy.agent import daemon, node_watch, process_watch
from nftproxy.agent.lifecycle import credentials_watch, rivals
from nftproxy.agent.reporting import freshness
from nftproxy.api.pauses import ReflectorTimes
from nftproxy.commands import cli
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.api_connection import Timeouts

BOOKMARKS = 0.3
"""Seconds between bookmarks, which keep a watch from timing out."""
PROXIES_PERIOD = 0.3
"""Seconds between two checks for other proxies, for routes to pods, of forwarding, credentials, and of conntrack."""
PROCESS_PERIOD = 1.5
"""Seconds between two looks at hanging threads and the CPU limit."""
LONGEST_CALL = 5.0
"""Seconds for which a thread's call may take."""
GRACE = 0.5
"""Seconds for which requests may fail before a resource counts as out of touch."""
SILENCE = 4.0
"""Seconds without a word of the API server after which a resource counts as out of touch."""
PATIENCE = Timeouts(connect=2.0, answer=2.0, silence=1.5)
TIMES = ReflectorTimes(healthy=0.3, first_attempt=0.05, longest_attempt=0.5, first_error=0.05, longest_error=0.5)


def main() -> None:
    """Run the program with these pauses."""
    vars(daemon)["ApiClient"] = functools.partial(ApiClient, times=TIMES, patience=PATIENCE)
    vars(rivals)["PERIOD"] = PROXIES_PERIOD
    vars(freshness)["GRACE"] = GRACE
    vars(freshness)["LONGEST_SILENCE"] = SILENCE
    vars(node_watch)["PERIOD"] = PROXIES_PERIOD
    vars(credentials_watch)["PERIOD"] = PROXIES_PERIOD
    vars(process_watch).update(PERIOD=PROCESS_PERIOD, LONGEST_CALL=LONGEST_CALL)
    cli.main()


if __name__ == "__main__":
    main()
