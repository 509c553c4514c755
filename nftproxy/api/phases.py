"""The phases of a reflector (reflector.py), and every transition between them.

A phase is the kind of the present request, or of the next request during a pause:

    LIST_... -------- complete --------> WATCH <----------- current ----------- PROBE
     ^  ^                                |   |                                  ^  |
     |  +-- expired, invalid, doubtful --+   +-- lost, broken, cut short, late -+  |
     |                                                                             |
     +------------ behind, overlong, expired, invalid, doubtful -------------------+

A list that fails may lead to another kind of list.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Phase(Enum):
    """The kind of the present or next request."""

    LIST_CACHED = "list any version that the server has cached"
    LIST_NOT_OLDER = "list a version at least as new as the known one"
    LIST_NEWEST = "list the newest version, in pages"
    LIST_WHOLE = "list the newest version, in one piece"
    PROBE = "read the server's version"
    WATCH = "watch from the known version"

    @property
    def is_list(self) -> bool:
        """Whether the request is for all objects."""
        return self not in (Phase.PROBE, Phase.WATCH)


class Ending(Enum):
    """How a request ended, as far as that may change the phase."""

    COMPLETE = "the last page of a listing is read"
    OVERLONG = "a list doesn't end"
    ABSENT = "the server knows the kind in no version of its API"
    CURRENT = "the server has reached the known version"
    BEHIND = "the server hasn't reached the known version"
    CUT_SHORT = "a watch ended before the timeout that it asked for"
    BROKEN = "an ERROR ended a watch"
    LOST = "the connection failed, or the answer can't be read"
    LATE = "a request was denied, and the next comes so late that the server may be another"
    EXPIRED = "the server no longer has the version, or doesn't have it yet"
    PAGE_EXPIRED = "the server no longer has the rest of a list"
    INVALID = "the server will never take this request"
    DOUBTFUL = "so many requests failed for no clear reason that the version may be at fault"


_LIST = {
    Ending.COMPLETE: Phase.WATCH,
    Ending.EXPIRED: Phase.LIST_NEWEST,
    Ending.PAGE_EXPIRED: Phase.LIST_WHOLE,
    Ending.OVERLONG: Phase.LIST_NEWEST,
    Ending.ABSENT: Phase.LIST_CACHED,
}
_RELIST = dict.fromkeys((Ending.EXPIRED, Ending.INVALID, Ending.DOUBTFUL), Phase.LIST_NOT_OLDER)

TRANSITIONS: Mapping[Phase, Mapping[Ending, Phase]] = {
    **{phase: _LIST | {Ending.DOUBTFUL: phase} for phase in Phase if phase.is_list},
    Phase.PROBE: _RELIST
    | {
        Ending.CURRENT: Phase.WATCH,
        Ending.BEHIND: Phase.LIST_NEWEST,
        Ending.OVERLONG: Phase.LIST_NEWEST,
    },
    Phase.WATCH: _RELIST | dict.fromkeys((Ending.CUT_SHORT, Ending.BROKEN, Ending.LOST, Ending.LATE), Phase.PROBE),
}
"""The next phase, by the present phase and the ending of its request.

An ending that a row lacks changes nothing: the same request follows, or the same page.  A transition to a phase that
lists begins a listing, even if it is the present phase."""
