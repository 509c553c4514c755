"""How much memory a cluster takes once it is in the pipeline: counted by objects and by Python's allocator."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator

import msgspec
import pytest

from nftproxy.api.reflector import Reflector
from nftproxy.api.resources import resources
from nftproxy.model.events import Event, Put
from nftproxy.pipeline import SKELETON, Pipeline
from tests.support.factories import pipeline, service, slice_of
from tests.support.lists import receive_list
from tools.bench import cluster

NODE = "node-a"
SERVICES = 200
SIZE = cluster.Size(SERVICES, 10)
MOST = 4_500
"""Bytes for a Service, its EndpointSlice with 10 endpoints and all their elements, of which there are 13: 4,100 with
Python 3.11."""


def _listed() -> Iterator[Event]:
    """The API server's answer, parsed as the agent parses it, so that each string is a new object."""
    lists = {
        "services": [cluster.service(number) for number in range(SERVICES)],
        "endpointslices": [cluster.slice_of(number, cluster.pods(SIZE, number)) for number in range(SERVICES)],
    }
    for resource in resources(NODE):
        if items := lists.get(resource.plural):
            kind = f"{resource.kind.name}List"
            body = {
                "kind": kind,
                "apiVersion": resource.kind.api_versions[0],
                "metadata": {"resourceVersion": "1"},
                "items": items,
            }
            reflector = Reflector(resource)
            reflector.request(0.0, 0.0)
            reflector.receive_answer(0.0)
            yield from receive_list(reflector, msgspec.json.encode(body))


@contextlib.contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Give a function that returns the bytes of all objects that are made from now on and are still in use."""

    def size() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    gc.collect()
    gc.freeze()  # a search through the objects of thousands of earlier tests takes a second
    tracemalloc.start()
    try:
        yield size
    finally:
        tracemalloc.stop()
        gc.unfreeze()


@pytest.fixture(scope="module")
def filled() -> tuple[Pipeline, float]:
    """A pipeline with the cluster, and the bytes that each Service takes."""
    made = pipeline()
    made.ingest(_listed())  # the first use of templates and caches is not counted
    made = pipeline()
    with _traced() as size:
        made.ingest(_listed())
        return made, size() / SERVICES


@pytest.mark.slow
def test_a_service_takes_so_many_bytes(filled: tuple[Pipeline, float]) -> None:
    """The memory for a Service with ten endpoints is bounded, after any way of compiling it."""
    made, each = filled
    assert len(made.state.services) == SERVICES
    assert sum(generation.element_count() for generation in made.generations.values()) > 12 * SERVICES
    assert 1_000 < each < MOST


def test_texts_that_many_have_are_kept_once(filled: tuple[Pipeline, float]) -> None:
    """Names of namespaces and ports are one object each, however often they occur."""
    made, _ = filled
    texts = [text for key, each in made.state.services.items() for text in (key.namespace, each.ports[0].name)]
    texts += [
        text
        for key in made.state.services
        for each in made.state.slices_of(key)
        for text in (each.key.namespace, each.service.namespace, each.ports[0].name)
    ]
    assert len(texts) == 5 * SERVICES
    assert len({id(text) for text in texts}) == len(set(texts))


def test_a_block_shares_its_elements_with_the_union(filled: tuple[Pipeline, float]) -> None:
    """Each element is one object in its block and in its generation."""
    made, _ = filled
    for generation in made.generations.values():
        names = [name for _, name in generation.declarations]
        held = {id(line) for name in names for line in generation.lines_of(name)}
        blocks = [block for owner, block in generation.blocks.items() if owner != SKELETON]
        assert held >= {id(line) for block in blocks for line in block.lines}


@pytest.mark.slow
def test_lists_of_many_lengths_share_their_maps() -> None:
    """Each new number of IPv6 endpoints keeps a few declarations, and no map of slots or rows of its own."""
    hosts = [f"fd00:1::{number:x}" for number in range(1, 2_000)]
    made = pipeline(service(cluster_ips=["fd00:96::10"]))
    sizes = []
    with _traced() as size:
        for count in (1_100, 1_100, *range(1_101, 1_105)):  # maps of 2,048 slots take 1 MB
            made.ingest([Put(slice_of(endpoints=hosts[:count], suffix="6"))])
            sizes.append(size())
    assert sizes[1] > 1_000_000
    assert sizes[-1] - sizes[1] < 500_000
