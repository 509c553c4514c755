"""Small makers of model values: sensible defaults, and tweaks by keyword.

Short notations:

    service("shop/web", ports=["http:80:30080/tcp", "dns:53/udp"])      name:port:nodePort/protocol, only port is needed
    slice_of("shop/web", ["10.1.0.4@node-a", "10.1.1.4@node-b draining zone=a,b"], ports=["http:8080"])
    pipeline(service("shop/web"), slice_of("shop/web", ["10.1.0.4@node-a"]), masquerade_all=True)

The node is node-a (zone a, 192.168.0.2, fd00:c0a8::2).  The cluster's pods are in 10.1.0.0/16 and fd00:1::/48.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from nftproxy_conformance.strategies.notation import (
    addresses as addresses,  # for the tests, beside the rest of the notation
)
from nftproxy_conformance.strategies.notation import key as key
from nftproxy_conformance.strategies.notation import networks as networks

from nftproxy.api import schema
from nftproxy.api.annotation_parsers import options_of
from nftproxy.api.kinds import kinds_for
from nftproxy.config.flags import flag_of
from nftproxy.config.parse_config import EMPTY_CONFIG, parse_config
from nftproxy.installed import ALL_TEMPLATES, INSTALLED, OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import (
    TABLE,
    Address,
    Family,
    Protocol,
    family_of,
    parse_address,
)
from nftproxy.model.annotations import PLAIN, PREFIX, WEIGHT, Options, Word
from nftproxy.model.codes import Code
from nftproxy.model.config_fields import ConfigField
from nftproxy.model.events import HostAddresses, Put, Seen
from nftproxy.model.objects import (
    ClusterObject,
    Endpoint,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServiceCIDR,
    ServicePort,
    ServiceType,
    TrafficPolicy,
)
from nftproxy.model.settings import Capabilities, Config, DetectLocalMode, NodePortAddresses
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import Claim
from nftproxy.policy.extension import Settings
from nftproxy.rules.renderer import Renderer
from nftproxy.rules.ruleset import Element, Generation, NftKind
from nftproxy.rules.transaction import Container, Difference, Installed, Transaction
from nftproxy.templates_dir import template_texts
from tests.support.words import member_of

IPV4, IPV6 = Family.IPV4, Family.IPV6
CLUSTER_CIDRS = ("10.1.0.0/16", "fd00:1::/48")

_PORT = re.compile(r"(?:(?P<name>[a-z][a-z0-9-]*):)?(?P<port>\d+)(?::(?P<node_port>\d+))?(?:/(?P<protocol>\w+))?")

_CONDITIONS: Mapping[str, Mapping[str, bool]] = {
    "unready": {"ready": False, "serving": False},
    "serving": {"ready": False},
    "draining": {"ready": False, "terminating": True},
    "stopped": {"ready": False, "serving": False, "terminating": True},
    # publishNotReadyAddresses: ready even if the pod itself is not
    "published": {"serving": False},
    "published-draining": {"terminating": True},
    "published-stopped": {"serving": False, "terminating": True},
}
"""The conditions that each word of an endpoint stands for.  Without a word it is ready."""

INSTALLED_KINDS = kinds_for("", OPTIONS)
"""The kinds of objects, as the agent reads them."""


def _port_parts(text: str) -> tuple[str, Protocol, int, int]:
    match = _PORT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not written as name:port:nodePort/protocol")
    protocol = Protocol(match["protocol"] or "tcp")
    return match["name"] or "", protocol, int(match["port"]), int(match["node_port"] or 0)


def service_port(text: str) -> ServicePort:
    """A Service port from "name:port:nodePort/protocol", of which only the port is needed."""
    return ServicePort(*_port_parts(text))


def endpoint_port(text: str) -> EndpointPort:
    """An EndpointSlice's port from "name:port/protocol", of which only the port is needed."""
    return EndpointPort(*_port_parts(text)[:3])


def claim(text: str) -> Claim:
    """A claim from "address port/protocol", or "port/protocol" for a port of the node."""
    address, _, port = text.rpartition(" ")
    _, protocol, number, _ = _port_parts(port)
    return Claim(Address(address), protocol, number)


def service(
    name: str = "shop/web",
    *,
    cluster_ips: Iterable[str] = ("10.96.0.10",),
    ports: Iterable[str] = ("http:80/tcp",),
    type: str | ServiceType = ServiceType.CLUSTER_IP,  # noqa: A002  # the API's own word
    created: int = 0,
    external_ips: Iterable[str] = (),
    load_balancer_ips: Iterable[str] = (),
    source_ranges: Iterable[str] = (),
    internal_policy: str | TrafficPolicy = TrafficPolicy.CLUSTER,
    external_policy: str | TrafficPolicy = TrafficPolicy.CLUSTER,
    annotations: Mapping[str, str] = {},
    **tweaks: Any,
) -> Service:
    """A ClusterIP Service with the port http 80/tcp.  `tweaks` are fields of `Service` as they are.

    `annotations` are nftproxy's own, without the prefix.
    """
    return Service(
        key=key(name),
        created=created,
        type=ServiceType(type),
        cluster_ips=addresses(cluster_ips),
        ports=tuple(map(service_port, ports)),
        external_ips=addresses(external_ips),
        load_balancer_ips=addresses(load_balancer_ips),
        source_ranges=networks(source_ranges),
        internal_policy=TrafficPolicy(internal_policy),
        external_policy=TrafficPolicy(external_policy),
        **{"options": options(annotations)} | tweaks,
    )


def options(annotations: Mapping[str, str]) -> Options:
    """The options in annotations of nftproxy's own, given without the prefix.  A bad one is an error."""
    metadata = schema.ObjectMeta(annotations={f"{PREFIX}{name}": value for name, value in annotations.items()})
    known = {each.annotation: each for each in OPTIONS}
    return options_of(schema.ApiObject(metadata=metadata), known, _fail)


def _fail(field: str, message: str, _code: Code | None = None, /) -> None:
    raise ValueError(f"{field}: {message}")


def endpoint(text: str = "10.1.0.4@node-a", **tweaks: Any) -> Endpoint:
    """An endpoint from "address@node", then words: a condition (`_CONDITIONS`), in=a, zone=a,b, node=node-a,node-b.

    It is ready if no word says otherwise, and on no node without "@node".  It is in the zone after "in=".  "zone="
    and "node=" are hints.
    """
    where, *words = text.split()
    address, _, node_name = where.partition("@")
    fields: dict[str, Any] = {"node_name": node_name}
    for word in words:
        what, is_given, names = word.partition("=")
        if what == "in":
            fields["zone"] = names
        else:
            fields |= {f"{what}_hints": tuple(names.split(","))} if is_given else _CONDITIONS[word]
    return Endpoint(address=parse_address(address), **(fields | tweaks))


def slice_of(
    name: str = "shop/web",
    endpoints: Iterable[str | Endpoint] = ("10.1.0.4@node-a", "10.1.1.4@node-b"),
    *,
    ports: Iterable[str] = ("http:8080/tcp",),
    suffix: str = "1",
    family: Family | None = None,
    triggered: float = 0.0,
    weight: int | None = None,
) -> EndpointSlice:
    """An EndpointSlice of the Service `name`, named like it with a suffix.  Its family is its first endpoint's."""
    made = tuple(each if isinstance(each, Endpoint) else endpoint(each) for each in endpoints)
    own = key(name)
    return EndpointSlice(
        key=ObjectKey(own.namespace, f"{own.name}-{suffix}"),
        service=own,
        family=family or (family_of(made[0].address) if made else IPV4),
        ports=tuple(map(endpoint_port, ports)),
        endpoints=Endpoints.of(made),
        triggered=triggered,
        options=PLAIN if weight is None else Options.of({WEIGHT: weight}),
    )


def node(
    name: str = "node-a",
    *,
    zone: str = "a",
    internal_ips: Iterable[str] = ("192.168.0.2", "fd00:c0a8::2"),
    external_ips: Iterable[str] = (),
    pod_cidrs: Iterable[str] = ("10.1.0.0/24", "fd00:1::/64"),
    **tweaks: Any,
) -> Node:
    """This node: node-a in zone a, with an internal address and a pod CIDR of either family."""
    return Node(name, zone, addresses(internal_ips), addresses(external_ips), networks(pod_cidrs), **tweaks)


def service_cidr(*cidrs: str, name: str = "kubernetes") -> ServiceCIDR:
    """A ServiceCIDR, by default the cluster's own two ranges."""
    return ServiceCIDR(name, networks(cidrs or ("10.96.0.0/16", "fd00:96::/112")))


def host_addresses(*texts: str) -> HostAddresses:
    """The addresses of the machine's interfaces."""
    return HostAddresses(frozenset(addresses(texts)))


def node_port_addresses(*given: str) -> NodePortAddresses:
    """The value of nodePortAddresses in a configuration file: CIDRs and words."""
    config, _ = parse_config({**EMPTY_CONFIG, "nodePortAddresses": list(given)}, "a test", ())
    return config.node_port_addresses


DECLARED = {flag_of(field).name.replace("-", "_"): field for field in FIELDS}
"""The fields that extensions declare, by their names in our spelling, such as "service_counts"."""


def config_of(base: Config = Config(), **tweaks: Any) -> Config:  # noqa: B008  # a value
    """A configuration with other values.  `tweaks` are fields of `Config` and `DECLARED`, words perhaps as texts."""
    declared = {DECLARED[name]: _word_of(DECLARED[name], tweaks.pop(name)) for name in DECLARED if name in tweaks}
    return msgspec.structs.replace(base, **tweaks).having(declared)


def _word_of(field: ConfigField[Any], value: Any) -> Any:
    return member_of(field.form, value) if isinstance(field.form, Word) and isinstance(value, str) else value


def full_config(base: Config = Config(), **tweaks: Any) -> Config:  # noqa: B008  # a value
    """A configuration with all declared fields, as the parser makes it.  `tweaks` are those of `config_of`."""
    config = config_of(base, **tweaks)
    return msgspec.structs.replace(config, declared=tuple((field, config[field]) for field in FIELDS))


def settings(*, wide_maps: bool = True, **tweaks: Any) -> Settings:
    """Settings with the cluster's pod CIDRs.  `tweaks` are fields of `Config`, networks and words as texts."""
    fields: dict[str, Any] = {"cluster_cidrs": CLUSTER_CIDRS} | tweaks
    fields["cluster_cidrs"] = networks(fields["cluster_cidrs"])
    if "node_port_addresses" in fields:
        fields["node_port_addresses"] = node_port_addresses(*fields["node_port_addresses"] or ())
    if "detect_local_mode" in fields:
        fields["detect_local_mode"] = DetectLocalMode(fields["detect_local_mode"])
    return Settings(config_of(**fields), Capabilities(wide_maps=wide_maps), INSTALLED)


@functools.cache
def templates() -> Mapping[str, str]:
    """The texts of the project's templates, by name."""
    return template_texts(ALL_TEMPLATES)


@functools.cache
def renderer() -> Renderer:
    """The renderer of the project's templates, which is cached."""
    return Renderer(templates())


def pipeline(
    *objects: ClusterObject | Seen,
    node: Node | None = node(),  # noqa: B008  # a frozen value
    families: Iterable[Family] = Family,
    settings: Settings | None = None,
    renderer: Renderer | None = None,
    **tweaks: Any,
) -> Pipeline:
    """A pipeline on `node` that has seen these objects.  `tweaks` are those of `settings()`.

    With a `node` of None the pipeline is for node-a, but has not seen it yet.
    """
    made = Pipeline(node.name if node else "node-a", settings or _settings(**tweaks), renderer or _renderer(), families)
    made.ingest([Put(each) for each in (*((node,) if node else ()), *objects)])
    return made


_settings, _renderer = settings, renderer  # `pipeline` has parameters of these names


def elements(pipeline: Pipeline, family: Family, container: str) -> dict[str, str]:
    """The elements of a set or map: values by key, "" in a set. Empty if there is none of that name."""
    return {
        element.key: element.value
        for element in pipeline.generations[family].elements()
        if element.container == container
    }


def leads_to_a_chain(element: Element) -> bool:
    """Whether an element leads to a chain for a number of endpoints, which stays once it was needed."""
    return re.search(r"^(nodeport-)?draws$|-timeouts$|^remembering$|^\w+-slots-", element.container) is not None


class Ledger:
    """The tables of a kernel after some transactions.  It reads nft text, and refuses inconsistent statements.

    It is stricter than the kernel: a removal must remove something and an addition add something, a chain that gets its
    rules must be empty, and the target of a reference must be there before.  Of rules it knows the names only.
    Chains are named apart from sets and maps, as in the kernel.
    """

    def __init__(self) -> None:
        self.comments: dict[str, str] = {}
        self.chains: dict[str, dict[str, tuple[str, ...]]] = {}
        self.sets: dict[str, dict[str, tuple[NftKind, tuple[str, ...]]]] = {}
        self.elements: dict[str, dict[str, dict[str, str]]] = {}

    def apply(self, transaction: Transaction) -> None:
        """Follow a transaction.

        Raises:
            AssertionError: a statement makes no sense at its place.
        """
        lines = iter(transaction.text.splitlines())
        for line in lines:
            match line.split(" ", 4):
                case ["table", ip, name, "{"]:
                    self._read_table(f"{ip} {name}", lines)
                case ["delete", "table", ip, name]:
                    for held in (self.comments, self.chains, self.sets, self.elements):
                        del held[f"{ip} {name}"]
                case ["add", "table", ip, name]:
                    self._add_table(f"{ip} {name}")
                case ["add", "chain", ip, name, chain]:
                    self.chains[f"{ip} {name}"].setdefault(chain.partition(" { ")[0], ())
                case ["add" | "delete" as verb, "element", ip, name, rest]:
                    self._change_elements(f"{ip} {name}", verb, *rest.removesuffix(" }").split(" { "))
                case ["flush" | "delete" as verb, kind, ip, name, container]:
                    self._empty(f"{ip} {name}", NftKind(kind), container)
                    if verb == "delete":
                        self._delete(f"{ip} {name}", NftKind(kind), container)
                case _:
                    raise AssertionError(f"no such statement: {line}")

    def installed(self, family: Family) -> Installed | None:
        """The state that reading back a family's table would return."""
        table = family.table
        if table not in self.comments:
            return None
        containers = [Container(NftKind.CHAIN, name) for name in self.chains[table]]
        containers += [Container(kind, name, _is_dynamic(body)) for name, (kind, body) in self.sets[table].items()]
        has_hooks = any(line.startswith("type ") for body in self.chains[table].values() for line in body)
        return Installed(self.comments[table].removeprefix(TABLE).strip(), tuple(containers), has_hooks)

    def compared(self, installed: Installed, generation: Generation) -> Installed:
        """The same with the differences in each set that a generation declares and no packet writes."""
        held = self.held(generation.family)
        wanted = set(generation.elements())
        names = {
            each.name
            for each in installed.containers
            if (each.kind, each.name) in generation.declarations
            and each.kind is not NftKind.CHAIN
            and not each.is_dynamic
        }
        found = {
            name: Difference(
                tuple(sorted(each for each in held - wanted if each.container == name)),
                tuple(sorted(each for each in wanted - held if each.container == name)),
            )
            for name in names
        }
        return msgspec.structs.replace(installed, differences=found)

    def held(self, family: Family) -> set[Element]:
        """Every element of a family's table."""
        return {Element(name, *item) for name, held in self.elements[family.table].items() for item in held.items()}

    def declared(self, family: Family) -> set[tuple[NftKind, str, tuple[str, ...]]]:
        """Every set, map and chain of a family's table, with its body."""
        chains = {(NftKind.CHAIN, name, body) for name, body in self.chains[family.table].items()}
        return chains | {(kind, name, body) for name, (kind, body) in self.sets[family.table].items()}

    def _add_table(self, table: str) -> None:
        self.comments.setdefault(table, "")
        for held in (self.chains, self.sets, self.elements):
            held.setdefault(table, {})

    def _read_table(self, table: str, lines: Iterator[str]) -> None:
        """Read a `table` block, in which chains may refer to each other in any order."""
        self._add_table(table)
        chains, sets = self.chains[table], self.sets[table]
        for line in itertools.takewhile(lambda line: line != "}", lines):
            match line.split():
                case ["comment", *words]:
                    self.comments[table] = " ".join(words).strip('"')
                case ["chain", name, "{"]:
                    assert not chains.get(name), f"chain {name} has rules already"
                    chains[name] = _body(lines)
                case ["set" | "map" as kind, name, "{"]:
                    wanted = NftKind(kind), _body(lines)
                    assert sets.setdefault(name, wanted) == wanted, f"{name} is declared in another way already"
                case _:
                    raise AssertionError(f"no such statement in a table: {line}")
        for body in chains.values():
            self._check_references(table, *body)

    def _check_references(self, table: str, *texts: str) -> None:
        for text in texts:
            for name in re.findall(r"(?:goto|jump) ([\w-]+)", text):
                assert name in self.chains[table], f"chain {name} is not there yet: {text}"
            for name in re.findall(r"@([a-z][\w-]*)", text):
                assert name in self.sets[table], f"set {name} is not there yet: {text}"

    def _empty(self, table: str, kind: NftKind, name: str) -> None:
        if kind is NftKind.CHAIN:
            assert name in self.chains[table], f"chain {name} is not there"
            self.chains[table][name] = ()
        else:
            assert self.sets[table][name][0] is kind, f"{name} is no {kind.value}"
            self.elements[table].pop(name, None)

    def _delete(self, table: str, kind: NftKind, name: str) -> None:
        del (self.chains if kind is NftKind.CHAIN else self.sets)[table][name]
        self._check_references(table, *itertools.chain.from_iterable(self.chains[table].values()))
        for held in self.elements[table].values():
            self._check_references(table, *held.values())

    def _change_elements(self, table: str, verb: str, name: str, listed: str) -> None:
        assert name in self.sets[table], f"{name} is not there yet"
        held = self.elements[table].setdefault(name, {})
        for text in listed.split(", "):
            element, _, value = text.partition(" : ")
            if verb == "delete":
                assert held.pop(element, None) == value, f"{name} does not hold {text}"
            else:
                assert element not in held, f"{name} holds {element} already"
                self._check_references(table, value)
                held[element] = value


def _body(lines: Iterator[str]) -> tuple[str, ...]:
    return tuple(line.strip() for line in itertools.takewhile(lambda line: line.strip() != "}", lines))


def _is_dynamic(body: tuple[str, ...]) -> bool:
    return any(line.startswith("flags") and "dynamic" in line for line in body)
