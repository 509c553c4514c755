"""A silent endpoint that reaches itself through its Service is still masqueraded."""

from __future__ import annotations

from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place
from tests.support.factories import IPV4, elements, pipeline, service, slice_of


def test_a_silent_endpoint_that_one_list_keeps_is_a_hairpin() -> None:
    """A local pod that only the local list leaves out for silence may still reach itself by the cluster list."""
    web = service(annotations={"failover": "silent"})
    silent = SilentPlaces((Place(Address("10.1.1.4"), 8080), Place(Address("10.1.0.4"), 8080)))
    made = pipeline(web, slice_of(endpoints=["10.1.0.4@node-a", "10.1.0.5@node-a", "10.1.1.4@node-b"]), silent)
    assert "10.1.0.4 . 8080" in elements(made, IPV4, "tcp-endpoints").values()
    assert elements(made, IPV4, "hairpin") == {
        "10.1.0.4 . 10.1.0.4 . tcp . 8080": "",
        "10.1.0.5 . 10.1.0.5 . tcp . 8080": "",
    }
