"""The resources that are watched: kinds, their URLs, and the server's selectors."""

from __future__ import annotations

from nftproxy.api.resources import resources
from nftproxy.model.objects import EndpointSlice, Node, Service, ServiceCIDR

FOLLOWED = {
    Node: ("v1", "nodes", {"fieldSelector": "metadata.name=node-a"}),
    ServiceCIDR: ("networking.k8s.io/v1", "servicecidrs", {}),
    Service: ("v1", "services", {}),
    EndpointSlice: (
        "discovery.k8s.io/v1",
        "endpointslices",
        {"labelSelector": "!service.kubernetes.io/headless"},
    ),
}


def test_what_is_followed() -> None:
    """This Node alone, all ServiceCIDRs and Services, and the EndpointSlices of Services with an address."""
    found = {each.model: (each.kind.api_versions[0], each.plural, each.selectors) for each in resources("node-a")}
    assert found == FOLLOWED


def test_each_kind_is_that_of_its_model() -> None:
    """Each resource has the kind of its model."""
    assert [each.kind.name for each in resources("node-a")] == [each.model.__name__ for each in resources("node-a")]


def test_only_service_cidrs_may_be_absent() -> None:
    """Every cluster knows the other kinds.  ServiceCIDRs came with Kubernetes 1.33."""
    assert [each.model for each in resources("node-a") if each.may_be_absent] == [ServiceCIDR]


def test_a_named_proxy_follows_objects_with_its_label() -> None:
    """The server selects the Services and EndpointSlices with the label, and no ServiceCIDR is asked for."""
    label = "service.kubernetes.io/service-proxy-name=canary"
    assert {each.model: each.selectors for each in resources("node-a", "canary")} == {
        Node: {"fieldSelector": "metadata.name=node-a"},
        Service: {"labelSelector": label},
        EndpointSlice: {"labelSelector": f"!service.kubernetes.io/headless,{label}"},
    }
