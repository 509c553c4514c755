"""The cluster's DNS: `python -m tools.kubernetes.dns KUBECONFIG` answers at the control plane's address.

It has A and AAAA records of Services, of the endpoints of headless Services, CNAME records of ExternalName, SRV records
of named ports, and PTR records of ClusterIPs of IPv4.  Each query asks the API, so no answer is stale.
"""

from __future__ import annotations

import ipaddress
import socketserver
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tools.kubernetes.api import client, get
from tools.kubernetes.layout import CONTROL

DOMAIN, REVERSE = ["svc", "cluster", "local"], ["in-addr", "arpa"]
NAME_ERROR, SERVER_FAILURE = 3, 2
A, CNAME, PTR, AAAA, SRV = 1, 5, 12, 28, 33  # RFC 1035, RFC 3596, RFC 2782
RESPONSE = 0x8580  # response, authoritative, recursion desired and available
VERSIONS = {A: 4, AAAA: 6}
Get = Callable[[str], Any]


class DnsRecord(NamedTuple):
    """A resource record of the name that was asked for."""

    type: int
    data: bytes


class DnsQuestion(NamedTuple):
    """The question of a message."""

    labels: list[str]
    type: int
    raw: bytes


def question(message: bytes) -> DnsQuestion:
    """The only question of a message.

    Raises:
        IndexError, struct.error: the message is cut off.
    """
    labels, at = [], 12
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += length + 1
    (kind,) = struct.unpack_from("!H", message, at + 1)
    return DnsQuestion(labels, kind, message[12 : at + 5])


def answer(message: bytes, ask: Get) -> bytes:
    """The answer to a message.  `ask` gets an object of the API, None if it doesn't exist."""
    asked = question(message)
    try:
        code, records = _records(asked, ask)
    except httpx.HTTPError:
        code, records = SERVER_FAILURE, []
    body = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", each.type, 1, 1, len(each.data)) + each.data for each in records)
    return message[:2] + struct.pack("!HHHHH", RESPONSE | code, 1, len(records), 0, 0) + asked.raw + body


def _records(asked: DnsQuestion, ask: Get) -> tuple[int, list[DnsRecord]]:
    if asked.labels[-2:] == REVERSE:
        return _names_of(".".join(reversed(asked.labels[:-2])), ask)
    if asked.labels[-3:] != DOMAIN or len(asked.labels) < 5:
        return NAME_ERROR, []
    *hostname, name, namespace = asked.labels[:-3]
    service = ask(f"/api/v1/namespaces/{namespace}/services/{name}")
    if service is None:
        return NAME_ERROR, []
    if hostname and hostname[0].startswith("_"):
        return _ports(service["spec"], hostname, _encoded(".".join([name, namespace, *DOMAIN])))
    if service["spec"]["type"] == "ExternalName":
        return 0, [DnsRecord(CNAME, _encoded(service["spec"]["externalName"]))]
    addresses = [each for each in service["spec"].get("clusterIPs", []) if each != "None"]
    if not addresses:
        query = f"labelSelector=kubernetes.io/service-name%3D{name}"
        slices = ask(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}")
        addresses = list(_ready(slices["items"], hostname))
    parsed = map(ipaddress.ip_address, addresses)
    return 0, [DnsRecord(asked.type, each.packed) for each in parsed if each.version == VERSIONS.get(asked.type)]


def _names_of(address: str, ask: Get) -> tuple[int, list[DnsRecord]]:
    found = [each["metadata"] for each in ask("/api/v1/services")["items"] if address == each["spec"].get("clusterIP")]
    names = [_encoded(".".join([each["name"], each["namespace"], *DOMAIN])) for each in found]
    return 0 if names else NAME_ERROR, [DnsRecord(PTR, name) for name in names]


def _ports(spec: dict[str, Any], hostname: list[str], target: bytes) -> tuple[int, list[DnsRecord]]:
    """The ports of a Service with a name and protocol, such as _http._tcp, all at the Service's own name."""
    named = [
        each for each in spec.get("ports", []) if hostname == [f"_{each.get('name')}", f"_{each['protocol'].lower()}"]
    ]
    numbers = [struct.pack("!HHH", 0, 1, each["port"]) for each in named]
    return 0 if named else NAME_ERROR, [DnsRecord(SRV, each + target) for each in numbers]


def _ready(slices: list[dict[str, Any]], hostname: list[str]) -> Iterator[str]:
    """The addresses of ready endpoints, of all or of those with this host name."""
    for each in slices:
        for endpoint in each["endpoints"] or []:
            if endpoint["conditions"].get("ready", True) and (not hostname or [endpoint.get("hostname")] == hostname):
                yield endpoint["addresses"][0]


def _encoded(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.strip(".").split(".")) + b"\0"


def main(kubeconfig: Path) -> None:
    """Answer by UDP and TCP."""
    api = client(kubeconfig)

    def ask(path: str) -> Any:
        return get(api, path)

    class OverUdp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            message, socket = self.request
            socket.sendto(answer(message, ask), self.client_address)

    class OverTcp(socketserver.StreamRequestHandler):
        timeout = 5

        def handle(self) -> None:
            (length,) = struct.unpack("!H", self.rfile.read(2))
            reply = answer(self.rfile.read(length), ask)
            self.wfile.write(struct.pack("!H", len(reply)) + reply)

    class TcpServer(socketserver.ThreadingTCPServer):
        allow_reuse_address = True  # connections of its predecessor may still be in TIME-WAIT

    place = CONTROL, 53
    with socketserver.ThreadingUDPServer(place, OverUdp) as udp, TcpServer(place, OverTcp) as tcp:
        threading.Thread(target=tcp.serve_forever, daemon=True).start()
        udp.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
