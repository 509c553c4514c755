"""Fails a pipeline that would deploy Services which don't get what they ask for.

    python ci_conflicts.py NODE PATH...

PATH is a file or directory of manifests.  Exit status 1 if a Service loses an address or a port to another, exceeds a
limit, or is wrong in itself; each of these is a line of the output.
"""

import sys

import nftproxy


def complaints(node: str, *paths: str) -> list[str]:
    """What is wrong with manifests, as the proxy of a node sees them."""
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
