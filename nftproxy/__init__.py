"""A Kubernetes service proxy that renders Services and EndpointSlices into nftables rules.

For Python programs there are `render`, `explain` and `load` (library.py, docs/python.md).  They are imported at their
first use.  So the agent starts without them, and `import nftproxy` costs nothing.
"""

from nftproxy.version import __version__

TYPE_CHECKING = False  # type checkers take it for true, and importing typing would cost more than all of this
if TYPE_CHECKING:
    from nftproxy.library import Cluster, Conflict, Rendered, explain, load, render, renderer

__all__ = ["Cluster", "Conflict", "Rendered", "__version__", "explain", "load", "render", "renderer"]


def __getattr__(name: str) -> object:
    """Import a name from library.py.

    Raises:
        AttributeError: it is none of the names above.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nftproxy import library

    return getattr(library, name)
