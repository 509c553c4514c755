"""The cost of many agents for a real API server: its processor time, its memory, and the bytes that it sends.

The agents are simulated in one process.  Each has a connection for each resource, lists and watches as the agent does,
and doesn't decode what it reads.  All have the rights of kube-proxy.

The styles differ in the media type, in compression, and in how the present objects come: as a list before the watch, or
by the watch itself (KEP-3157).  The API server compresses lists only.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import resource
import socket
import time
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from nftproxy_conformance.lab.node import Node

from nftproxy.api.resources import Resource, resources
from tools.bench.changes import replacement
from tools.bench.cluster import NODE, SPARE, Pod, Size
from tools.kubernetes.api import credentials
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.control_plane import RealControlPlane, free_ports
from tools.kubernetes.scale import LOCALHOST, Api, fill, processor_time

HEADER = (
    "agents", "style", "begin: s of processor time; MB at most; MB sent; s",
    "changes: processor time of each, ms; KB sent to each agent; s after the last",
    "restart: s of processor time; MB at most; MB sent; s", "listed anew",
)  # fmt: skip
TCP = socket.AF_INET, socket.SOCK_STREAM
API_SERVER, USER = "kube-apiserver", "system:kube-proxy"
JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"
RATE, CHANGES = 100, 1000
"""Changes of EndpointSlices a second, and of each series."""
LONGEST_PAUSE = 3.0
"""Seconds that an agent waits at most before it connects again."""
SETTLING, PATIENCE, DENIAL = 5.0, 600.0, 1.0
WATCH_SECONDS = 3600
PIECE = 1 << 18
INITIAL_END = b"k8s.io/initial-events-end"
TOO_OLD = b"too old resource version"
GZIP = b"\x1f\x8b"
TAIL = 512
"""Bytes of a watch that are searched together with the next bytes."""
_VERSION = re.compile(rb'(?:"resourceVersion":"|[\x122]([\x01-\x14]))(\d+)')
"""A resourceVersion in JSON, and in protobuf as field 2 of ListMeta and field 6 of ObjectMeta, with its length."""


class Style(NamedTuple):
    """How agents ask.

    Attributes:
        name: in the table.
        media_type: of all answers.
        is_compressed: whether lists are compressed.
        streams: whether watches send the present objects, without lists.
        probes: whether an agent asks for the API server's version before it resumes a watch.
    """

    name: str
    media_type: str
    is_compressed: bool
    streams: bool
    probes: bool = True


STYLES = {
    "nftproxy": Style("JSON, list with gzip (nftproxy)", JSON, is_compressed=True, streams=False),
    "json": Style("JSON, list", JSON, is_compressed=False, streams=False),
    "json-watchlist": Style("JSON, WatchList", JSON, is_compressed=False, streams=True),
    "protobuf": Style("protobuf, list with gzip", PROTOBUF, is_compressed=True, streams=False),
    "client-go": Style("protobuf, WatchList (client-go)", PROTOBUF, is_compressed=False, streams=True, probes=False),
}


def request_head(style: Style, kind: Resource, parameters: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
    """Return an HTTP request for a resource."""
    version = kind.kind.api_versions[0]
    base = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    is_watch = "watch" in parameters
    lines = {
        "host": LOCALHOST,
        "accept": style.media_type,
        "accept-encoding": "gzip" if style.is_compressed and not is_watch else "identity",
        **headers,
    }
    head = [f"GET {base}/{kind.plural}?{urlencode({**kind.selectors, **parameters})} HTTP/1.1"]
    return "\r\n".join([*head, *(f"{name}: {value}" for name, value in lines.items()), "\r\n"]).encode()


def first_version(body: bytes) -> str:
    """Return the resourceVersion of a list, from the first bytes of the answer's content."""
    if GZIP in body[:TAIL]:
        body = zlib.decompressobj(wbits=31).decompress(body[body.index(GZIP) :], TAIL)
    return next(_versions(body[:TAIL]))


def last_version(watched: bytes) -> str:
    """Return the last resourceVersion before the end of the present objects."""
    *_, last = _versions(watched[: watched.index(INITIAL_END)])
    return last


def _versions(content: bytes) -> Iterator[str]:
    for length, digits in _VERSION.findall(content):
        yield digits[: length[0] if length else None].decode()


class Crowd:
    """Simulated agents, from `start` on, until `close`.

    Args:
        style: how they ask.
        count: how many.
        node: the namespace of the API server.
        kubeconfig: of their user.
    """

    def __init__(self, style: Style, count: int, node: Node, kubeconfig: Path) -> None:
        url, self.context, self.headers = credentials(kubeconfig)
        self.style = style
        self.node = node
        self.port = int(url.rpartition(":")[2])
        self.bytes = 0
        self.relists = 0
        self.awaited = b""
        """The bytes after which an agent that watches EndpointSlices is right, empty if it is right after its list."""
        self._changed = asyncio.Event()
        self._followers = [Follower(self, each) for number in range(count) for each in resources(f"node-{number}")]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let all agents begin."""
        self._tasks = [asyncio.create_task(each.follow()) for each in self._followers]

    def follower_changed(self) -> None:
        """Note that some agent has become right."""
        self._changed.set()

    def expect(self, awaited: bytes) -> None:
        """Let the agents that watch EndpointSlices be wrong until they see these bytes."""
        self.awaited = awaited
        for each in self._followers:
            if each.kind.plural == "endpointslices":
                each.is_right = False

    def disturb(self) -> None:
        """Count all agents as wrong: the API server is away."""
        self.awaited = b""
        for each in self._followers:
            each.is_right = False

    async def right(self) -> None:
        """Wait until all agents are right."""
        async with asyncio.timeout(PATIENCE):
            while not all(each.is_right for each in self._followers):
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        """End all agents."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Denied(Exception):
    """The API server answers with an error, and the status of HTTP."""


class Follower:
    """An agent's connection for a resource."""

    def __init__(self, crowd: Crowd, kind: Resource) -> None:
        self.kind = kind
        self.is_right = False
        self._crowd = crowd
        self._version = ""
        self._must_list = True

    async def follow(self) -> None:
        """List and watch, and again after each failure."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, Denied):
                await self._converse()
            await asyncio.sleep(random.uniform(0, LONGEST_PAUSE))

    async def _converse(self) -> None:
        crowd = self._crowd
        plain = crowd.node.socket(*TCP)
        plain.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(plain, (LOCALHOST, crowd.port))
            reader, writer = await asyncio.open_connection(
                sock=plain, ssl=crowd.context, server_hostname=LOCALHOST, limit=PIECE
            )
        except BaseException:
            plain.close()
            raise
        try:
            if self._must_list and not crowd.style.streams:
                await self._list(reader, writer)
            elif self._version and not self._must_list and crowd.style.probes:
                async with aclosing(self._answer(reader, writer, {"limit": "1"})) as pieces:
                    async for _ in pieces:
                        pass
            await self._watch(reader, writer)
        finally:
            writer.transport.abort()

    async def _list(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = {"resourceVersion": "0", "limit": "500"}
        if self._version:
            asked = {"resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
            self._crowd.relists += 1
        head = b""
        async with aclosing(self._answer(reader, writer, asked)) as pieces:
            async for piece in pieces:
                if len(head) < TAIL:
                    head += piece
        self._version = first_version(head)
        self._become_right()

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        streams = self._must_list and self._crowd.style.streams
        if streams:
            asked |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            self._crowd.relists += bool(self._version)
        if self._version:
            asked["resourceVersion"] = self._version
        seen = b""
        async with aclosing(self._answer(reader, writer, asked)) as pieces:
            async for piece in pieces:
                if not self.is_right and not streams and not self._crowd.awaited:
                    self._become_right()
                seen = seen[-TAIL:] + piece
                if TOO_OLD in seen:
                    self._must_list, self.is_right = True, False
                    return
                if streams and INITIAL_END in seen:
                    self._version = last_version(seen)
                    streams = False
                    self._become_right()
                elif not self.is_right and self._crowd.awaited and self._crowd.awaited in seen:
                    self._become_right()

    def _become_right(self) -> None:
        self._must_list = False
        self.is_right = True
        self._crowd.follower_changed()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parameters: Mapping[str, str]
    ) -> AsyncGenerator[bytes]:
        """Make a request, and yield the pieces of its answer, the first empty.  The frames of chunks stay in them."""
        crowd = self._crowd
        writer.write(request_head(crowd.style, self.kind, parameters, crowd.headers))
        head = await reader.readuntil(b"\r\n\r\n")
        status, length = int(head[9:12]), re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        left = int(length[1]) if length else -1
        if status == 200:
            yield b""
        end = b""
        while left and (piece := await reader.read(PIECE)):
            crowd.bytes += len(piece)
            left -= len(piece) if length else 0
            end = (end + piece)[-5:]
            if status == 200:
                yield piece
            if not length and end == b"0\r\n\r\n":
                break
        if status == 410:
            self._must_list = True
        if status != 200:
            raise Denied(status)


class Cost(NamedTuple):
    """Seconds of the API server's processor time, its most memory and the bytes that it sent, and seconds."""

    work: float
    memory: float
    sent: float
    took: float

    def __str__(self) -> str:
        return f"{self.work:.1f}; {self.memory / 1e6:,.0f}; {self.sent / 1e6:,.1f}; {self.took:.0f}"


class Meter:
    """Measures what the API server does for a crowd, from now on."""

    def __init__(self, control: RealControlPlane, crowd: Crowd) -> None:
        self._control, self._crowd = control, crowd
        self._process = control.process_id(API_SERVER)
        Path(f"/proc/{self._process}/clear_refs").write_text("5")  # proc(5): begin VmHWM anew
        self._began, self._work, self._sent = time.monotonic(), processor_time(self._process), crowd.bytes

    def cost(self) -> Cost:
        """Return the cost until now, of the API server's present process if it was restarted."""
        process = self._control.process_id(API_SERVER)
        most = re.search(r"^VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
        assert most
        work = processor_time(process) - (self._work if process == self._process else 0)
        return Cost(work, int(most[1]) * 1024, self._crowd.bytes - self._sent, time.monotonic() - self._began)


def compare(
    binaries: Binaries, directory: Path, size: Size, counts: Sequence[int], names: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """A row of the table with `HEADER` for each number of agents and each style, after a row without agents.

    Args:
        binaries: of the control plane.
        directory: for all files.
        size: of the cluster.
        counts: how many agents.
        names: of styles.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    (port,) = free_ports(1)
    users = {USER: "system:authenticated"}
    with (
        Node(NODE) as node,
        RealControlPlane(binaries, directory / "control-plane", LOCALHOST, port, users, node.popen) as control,
    ):
        fill(node, control, size)
        for count, name in [(0, names[0]), *itertools.product(counts, names)]:
            control.stop(API_SERVER)
            control.start_api_server()
            time.sleep(SETTLING)
            yield asyncio.run(_measure(control, node, STYLES[name], size, count))


async def _measure(control: RealControlPlane, node: Node, style: Style, size: Size, count: int) -> tuple[str, ...]:
    crowd = Crowd(style, count, node, control.kubeconfig_of(USER))
    meter = Meter(control, crowd)
    crowd.start()
    await crowd.right()
    begin = meter.cost()
    await asyncio.sleep(SETTLING)
    meter = Meter(control, crowd)
    crowd.expect(marker := os.urandom(8).hex().encode())
    await asyncio.to_thread(change, Api(node, control.kubeconfig), size, marker.decode())
    written = time.monotonic()
    await crowd.right()
    late = time.monotonic() - written
    changes = meter.cost()
    crowd.disturb()
    crowd.relists = 0
    meter = Meter(control, crowd)
    control.stop(API_SERVER)
    await asyncio.to_thread(control.start_api_server)
    await crowd.right()
    await asyncio.sleep(DENIAL)  # a watch that begins may be denied yet
    await crowd.right()
    restart = meter.cost()
    await crowd.close()
    each = changes.sent / max(count, 1) / 1e3
    return (
        str(count), crowd.style.name if count else "none", str(begin),
        f"{1e3 * changes.work / CHANGES:.1f}; {each:,.0f}; {late:.1f}", str(restart), str(crowd.relists),
    )  # fmt: skip


def change(api: Api, size: Size, marker: str) -> None:
    """Write changes at a rate, the last with an annotation that has the marker."""
    over, began = api.connect(), time.monotonic()
    for number in range(CHANGES):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        made = replacement(size, 1 + number % size.services, Pod(SPARE + random.randrange(SPARE)))
        body = made.body or {}
        if number == CHANGES - 1:
            body["metadata"]["annotations"] = {"marker": marker}
        api.write(over, made.method, made.path, body)
