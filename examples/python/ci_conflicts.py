"""Fails a pipeline that would deploy Services with conflicts.

    python ci_conflicts.py NODE PATH...

PATH is a file or directory of manifests.  The exit status is 1 if a Service loses an address or a port to another
Service, exceeds a limit, or has a fault.  Each of these is a line of the output.
"""

import sys

import nftproxy


def complaints(node: str, *paths: str) -> list[str]:
    """Return the faults of manifests, as the proxy of a node sees them."""
    rendered = nftproxy.render(nftproxy.load(*paths), node)
    return [
        *(f"wrong: {problem}" for problem in rendered.problems),
        *(f"conflict: {conflict}" for conflict in rendered.conflicts),
        *(f"too large: {service}: {reason}" for service, reason in rendered.quarantined.items()),
    ]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    found = complaints(*sys.argv[1:])
    print("\n".join(found) or "no conflicts")
    sys.exit(1 if found else 0)
