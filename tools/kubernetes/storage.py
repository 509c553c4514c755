"""Objects written straight into etcd, beside the API server: a hundred thousand in half a minute.

The API server stores objects under /registry, and reads JSON there as well as its own encoding.  Each ClusterIP also
has an IPAddress, as the API server would have allocated it.
"""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

Object = dict[str, Any]

OPERATIONS = 100
"""Writes of a transaction.  etcd takes 128 by default (--max-txn-ops), and 1.5 MiB."""
MANAGED = {"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}


def store(over: http.client.HTTPConnection, objects: Iterable[Object]) -> None:
    """Write Services of one IPv4 ClusterIP and EndpointSlices, as the API has them, over a connection to etcd."""
    rest = chain.from_iterable(map(entries, objects))
    while batch := list(islice(rest, OPERATIONS)):
        puts = [{"requestPut": {"key": _encoded(key), "value": _encoded(json.dumps(value))}} for key, value in batch]
        over.request("POST", "/v3/kv/txn", json.dumps({"success": puts}), {"Content-Type": "application/json"})
        answer = over.getresponse()
        text = answer.read()
        assert answer.status == http.client.OK, text


def entries(made: Object) -> Iterator[tuple[str, Object]]:
    """Yield the keys under which the API server stores an object, each with its value."""
    name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
    if made["kind"] == "EndpointSlice":
        yield f"/registry/endpointslices/{namespace}/{name}", made
        return
    yield f"/registry/services/specs/{namespace}/{name}", made
    address = made["spec"]["clusterIP"]
    parent = {"resource": "services", "namespace": namespace, "name": name}
    metadata = {"name": address, "labels": MANAGED, "creationTimestamp": made["metadata"]["creationTimestamp"]}
    yield (
        f"/registry/ipaddresses/{address}",
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IPAddress",
            "metadata": metadata,
            "spec": {"parentRef": parent},
        },
    )


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()
