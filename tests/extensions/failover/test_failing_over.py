"""The Services that fail over: by the annotation or by the configuration, and touched by silent endpoints."""

from __future__ import annotations

import pytest

from nftproxy.extensions.failover.annotations import FAILOVER, Failover
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Address
from nftproxy.model.annotations import Options
from nftproxy.model.events import Listed, Put
from nftproxy.model.objects import Place, Service
from tests.policy.test_state import configured, state, touched_endpoints
from tests.support.factories import service, slice_of


def test_silent_endpoints_touch_whoever_leaves_them_out() -> None:
    """An endpoint that falls silent, or answers again, touches each Service that leaves it out."""
    leave_out = Options.of({FAILOVER: frozenset({Failover.SILENT})})
    with_it = ["shop/a", "shop/b", "shop/c"]
    made = state(
        *(service(name, options=leave_out) for name in (*with_it, "shop/other")),
        service("shop/plain"),
        *(slice_of(name, ["10.1.0.4"]) for name in (*with_it, "shop/plain")),
        slice_of("shop/other", ["10.1.0.5"]),
    )
    place = Place(Address("10.1.0.4"), 8080)
    assert made.ingest(Put(SilentPlaces((place,)))) == touched_endpoints(*with_it)
    assert made.ingest(Put(SilentPlaces(()))) == touched_endpoints(*with_it)


@pytest.mark.parametrize(("annotation", "has_it"), [(None, True), ("none", False), ("silent", True)])
def test_the_annotation_goes_before_the_configuration(annotation: str | None, has_it: bool) -> None:
    """The configuration's failover is of Services without the annotation, listed or followed."""
    web = service(annotations={"failover": annotation} if annotation else {})
    for event in (Put(web), Listed(Service, (web,))):
        made = configured(failover=frozenset({Failover.SILENT}))
        made.ingest(event)
        assert (Failover.SILENT in made.services[web.key].options[FAILOVER]) is has_it
