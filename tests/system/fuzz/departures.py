"""Objects that go, drawn from the present objects: events drawn blindly rarely name a present object."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from nftproxy_conformance.strategies.objects import Given
from nftproxy_conformance.strategies.values import some

from nftproxy.model.events import Event, Listed, Removed, Seen
from nftproxy.model.objects import ClusterObject, key_of


def departures(there: Sequence[Given]) -> st.SearchStrategy[Event]:
    """An object is removed, or some are missing in a list of their kind."""
    objects = [value for value in there if not isinstance(value, Seen)]
    if not objects:
        return st.nothing()
    kinds = list(dict.fromkeys(map(type, objects)))
    removed = st.sampled_from(objects).map(lambda value: Removed(type(value), key_of(value)))
    return st.one_of(removed, st.sampled_from(kinds).flatmap(lambda kind: _lists(objects, kind)))


def _lists(objects: Sequence[ClusterObject], kind: type[ClusterObject]) -> st.SearchStrategy[Event]:
    present = [value for value in objects if type(value) is kind]
    return some(present, most=len(present)).map(lambda kept: Listed(kind, kept))
