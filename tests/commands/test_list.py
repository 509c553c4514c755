"""`nftproxy list`: its columns, and kubectl's habits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from nftproxy.agent.socket.answers import ConflictRow, End, EndpointRow, ListingRow, ServiceRow
from nftproxy.commands.agent_client import AgentClient
from nftproxy.commands.output import age
from tests.support.command import nftproxy

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400


def service_row(name: str, *external_ips: str) -> ServiceRow:
    """A Service with these external addresses."""
    ips, ports, counts = ("10.96.0.10",), ("80:30080/TCP",), (1, 0, 2)
    return ServiceRow(
        "shop", name, "NodePort", ips, external_ips, ports, 0, "Served", *counts, "Cluster", "Cluster", None, {}
    )


ROWS: dict[str, list[ListingRow | End]] = {
    "services": [service_row("api"), service_row("web", *(f"203.0.113.{number}" for number in range(1, 6))), End()],
    "endpoints": [
        EndpointRow("shop", "web", "http", 80, "TCP", "10.1.0.4", 8080, True, True, "ready", False, "no", "shop/web-1"),
        End(),
    ],
    "conflicts": [
        ConflictRow("shop", "web", "http", "203.0.113.1:80/TCP", "taken", "shop/api"),
        ConflictRow("shop", "web", "http", "[2001:db8::1]:80/UDP", "taken", "shop/api"),
        ConflictRow("shop", "web", "http", "node:30080/TCP", "taken", "shop/api"),
        ConflictRow("shop", "web", "", "health-check node port 32000", "taken", "shop/api"),
        End(),
    ],
}


@pytest.fixture(autouse=True)
def agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that has `ROWS`."""

    def lines(_agent: AgentClient, path: str, _query: Mapping[str, str]) -> Iterator[bytes]:
        yield from map(msgspec.json.encode, ROWS[path.removeprefix("/v1/")])

    monkeypatch.setattr(AgentClient, "lines", lines)


@pytest.mark.parametrize("word", ["services", "service", "svc"])
def test_short_names(word: str) -> None:
    """Listings have kubectl's short names and singulars."""
    assert nftproxy("list", word, "-n", "shop", "-o", "name").out == "svc/shop/api\nsvc/shop/web\n"
    assert nftproxy("list", "ep", "-n", "shop", "-o", "name").out == "svc/shop/web 10.1.0.4:8080\n"


def test_services_by_name() -> None:
    """With names only these Services are listed, and a name that is not there is an error of exit status 1."""
    assert nftproxy("list", "svc", "web", "-n", "shop", "-o", "name").out == "svc/shop/web\n"
    some = nftproxy("list", "svc", "web", "wbe", "-n", "shop", "-o", "name")
    assert (some.status, some.out) == (1, "svc/shop/web\n")
    absent = "services wbe not found in shop namespace, or not served: nftproxy explain svc/shop/wbe\n"
    assert some.err == absent
    assert nftproxy("list", "ep", "web", "-n", "shop", "-o", "name").status == 0
    assert nftproxy("list", "svc", "web", "-A").status == 2


def test_long_lists_are_cut_unless_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is at most 120 characters long: of addresses that don't fit the number is printed, and -o wide has all."""
    addresses = [f"203.0.113.{number}" for number in range(1, 6)]
    monkeypatch.setitem(ROWS, "services", [service_row("api"), service_row("web", *addresses), End()])
    *_, web = nftproxy("list", "svc", "-A").out.splitlines()
    assert "   203.0.113.1,203.0.113.2+3   80:30080/TCP   1/2         Served   <unknown>" in web
    assert f"{','.join(addresses)}   80:30080/TCP" in nftproxy("list", "svc", "-A", "-o", "wide").out


def of_both_families(number: int, namespace: str, name: str, kind: str) -> ServiceRow:
    """A Service of a large cluster, with addresses of both families."""
    ips = (f"10.96.{number // 250}.{number % 250 + 1}", f"fd00:10:96:4000:8000::{number:x}")
    external = (f"203.0.113.{number % 250}", f"2001:db8:113::{number:x}") if kind == "LoadBalancer" else ()
    port = f"{80 + number % 9000}/TCP" if kind == "ClusterIP" else f"443:3{number % 10000:04}/TCP"
    row = service_row(name, *external)
    return msgspec.structs.replace(
        row,
        namespace=namespace,
        type=kind,
        cluster_ips=ips,
        ports=(port, "53/UDP")[: 1 + number % 2],
        state="NoEndpoints" if number % 7 == 0 else "Served",
        created=1,
    )


@pytest.mark.parametrize(
    ("kinds", "namespace", "is_whole"),
    [
        (("ClusterIP",), "kube-system", True),
        (("ClusterIP", "NodePort", "LoadBalancer"), "kube-system", False),
        (("LoadBalancer",), "n" * 63, False),
    ],
)
def test_a_large_cluster_of_both_families_fits(
    kinds: tuple[str, ...], namespace: str, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 Services with addresses of both families fit 120 characters, with at least the primary address of each.

    Names are whole if lists of addresses leave the place for them.
    """
    names = [f"web-{number}" + "-with-a-name" * (not is_whole) for number in range(5_000)]
    rows = [of_both_families(at, namespace, name, kinds[at % len(kinds)]) for at, name in enumerate(names)]
    monkeypatch.setitem(ROWS, "services", [*rows, End()])
    header, *lines = nftproxy("list", "svc", "-A").out.splitlines()
    assert max(map(len, (header, *lines))) <= 120
    cells = [re.split(" {2,}", line) for line in lines]
    assert {len(each) for each in cells} == {len(header.split())}
    at = header.split().index("CLUSTER-IP")
    assert [each[at] for each in cells] == [f"{row.cluster_ips[0]}+1" for row in rows]
    assert all(name.startswith(each[1].removesuffix("...")) for name, each in zip(names, cells, strict=True))
    assert all(each[1] == name for name, each in zip(names, cells, strict=True)) is is_whole


def test_local_endpoints_are_counted_for_policy_local_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a policy Local there is no number of local endpoints, which would read as if none were on this node."""
    local = msgspec.structs.replace(service_row("web"), external_policy="Local")
    monkeypatch.setitem(ROWS, "services", [service_row("api"), local, End()])
    header, *rows = (re.split(" {2,}", line) for line in nftproxy("list", "svc", "-A", "-o", "wide").out.splitlines())
    assert [row[header.index("LOCAL")] for row in rows] == ["<none>", "0"]


def test_long_cells_widen_their_own_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 100 addresses has them all with -o wide, and other rows are as short as without it."""
    addresses = [f"203.0.113.{number}" for number in range(1, 101)]
    monkeypatch.setitem(ROWS, "services", [service_row("api"), service_row("web", *addresses), End()])
    header, api, web = nftproxy("list", "svc", "-n", "shop", "-o", "wide").out.splitlines()
    assert f"{','.join(addresses)}   80:30080/TCP" in web
    assert max(len(header), len(api)) < 200


def test_ports_have_one_notation() -> None:
    """Ports are as kubectl writes them in each listing, those that a Service lacks too."""
    assert nftproxy("list", "ep", "-n", "shop").out.splitlines()[1].split() == [
        "web",
        "80/TCP",
        "10.1.0.4:8080",
        "yes",
        "yes",
        "web-1",
    ]
    lacking = [re.split(" {2,}", line)[2] for line in nftproxy("list", "conflicts", "-n", "shop").out.splitlines()]
    assert lacking == [
        "LACKS",
        "203.0.113.1:80/TCP",
        "[2001:db8::1]:80/UDP",
        "node:30080/TCP",
        "health-check node port 32000",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0.9, "0s"),
        (119, "119s"),
        (2 * MINUTE, "2m"),
        (192, "3m12s"),
        (10 * MINUTE + 5, "10m"),
        (179 * MINUTE, "179m"),
        (3 * HOUR, "3h"),
        (5 * HOUR + 7 * MINUTE, "5h7m"),
        (9 * HOUR + 7 * MINUTE, "9h"),
        (47 * HOUR, "47h"),
        (2 * DAY, "2d"),
        (3 * DAY + 5 * HOUR, "3d5h"),
        (12 * DAY + 5 * HOUR, "12d"),
        (729 * DAY, "729d"),
        (2 * YEAR, "2y"),
        (2 * YEAR + 30 * DAY, "2y30d"),
        (9 * YEAR + 30 * DAY, "9y"),
    ],
)
def test_ages_are_kubectls(seconds: float, text: str) -> None:
    """An age is as kubectl writes it (apimachinery, duration_test.go)."""
    assert age(seconds) == text
