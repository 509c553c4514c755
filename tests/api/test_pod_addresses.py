"""The addresses of pods, from any documents that have them."""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.api.pod_addresses import pods_in
from nftproxy.model.objects import ObjectKey
from tests.support.objects import api_object

POD = api_object("Pod", "web-1", "shop") | {
    "status": {"podIP": "10.1.0.4", "podIPs": [{"ip": "10.1.0.4"}, {"ip": "fd00:1::4"}]}
}
SLICE: dict[str, Any] = {
    "kind": "EndpointSlice",
    "metadata": {"namespace": "shop", "name": "web-x"},
    "endpoints": [
        {"addresses": ["10.1.0.5", "10.1.0.6"], "targetRef": {"kind": "Pod", "name": "web-2", "namespace": "shop"}},
        {"addresses": ["10.1.0.7"], "targetRef": {"kind": "Pod", "name": "web-3"}},
        {"addresses": ["10.1.0.8"], "targetRef": {"kind": "Node", "name": "node-a"}},
        {"addresses": ["10.1.0.9"]},
    ],
}


def known(value: object) -> set[tuple[str, str]]:
    """Names and addresses, as texts."""
    return {(str(key), address) for key, address in pods_in(value)}


def test_pods_say_their_own_addresses() -> None:
    """A Pod has the addresses of its status."""
    assert known(POD) == {("shop/web-1", "10.1.0.4"), ("shop/web-1", "fd00:1::4")}


def test_endpoints_name_their_pods() -> None:
    """An endpoint that refers to a pod has its name, by default in the slice's namespace.  Others have no name."""
    assert known(SLICE) == {("shop/web-2", "10.1.0.5"), ("shop/web-3", "10.1.0.7")}


def test_lists_are_taken_apart() -> None:
    """The items of a List count, and the items of a typed list, which need no kind."""
    assert known({"kind": "List", "items": [POD, SLICE]}) == known(POD) | known(SLICE)
    bare = {name: value for name, value in POD.items() if name != "kind"}
    assert known({"kind": "PodList", "items": [bare]}) == known(POD)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "Pod",
        {"kind": ["Pod"]},
        {"kind": "List", "items": 7},
        {"kind": "List", "items": [None, 7]},
        {"kind": "Service", "metadata": {"name": "web"}},
        POD | {"metadata": {"name": 7}},
        POD | {"metadata": {"name": "a\nb"}},
        POD | {"metadata": {"name": "web", "namespace": "Shop"}},
        POD | {"status": {"podIP": "10.1.0.300"}},
        POD | {"status": None},
        SLICE | {"endpoints": [None]},
        SLICE | {"endpoints": None},
    ],
)
def test_malformed_pods_name_no_address(value: object) -> None:
    """A document without a pod that has a name and an address is skipped, and nothing raises."""
    assert known(value) == set()


def test_keys_are_typed() -> None:
    """The keys are the model's."""
    assert next(iter(pods_in(POD)))[0] == ObjectKey("shop", "web-1")
