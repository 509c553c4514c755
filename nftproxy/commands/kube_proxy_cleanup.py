"""Remove kube-proxy's rules from a node: `nftproxy cleanup --kube-proxy MODE`.

kube-proxy's rules stay in force when it ends, and go stale.  They must be removed once the new rules exist.

* No other program's rule is touched.  A chain or a set is kube-proxy's by its name, a jump to such a chain by its
  comment.  A chain that another program's rule leads to (CNI's portmap may use KUBE-MARK-MASQ) is kept and named, and
  so is every chain that it leads to in turn.  The kubelet's chains stay: KUBE-FIREWALL, KUBE-MARK-DROP, its probes.
* Each iptables table has one transaction, made from the output of iptables-save, which happens as a whole or not at
  all.
* A missing tool, kernel feature or rule of kube-proxy's is skipped, so the command is idempotent.  If one iptables
  table fails, the rest are cleaned all the same.

Names are those in kube-proxy's own cleanup (CleanupLeftovers in pkg/proxy/iptables, ipvs, nftables), 1.36 and before.
"""

from __future__ import annotations

import errno
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pyroute2 import IPVS, IPRoute, IPSet, IPVSService, NetlinkError
from pyroute2.netlink.exceptions import IPSetError

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.others import iptables_tools
from nftproxy.kernel.others.ipvs import IPVS_IN_KERNEL
from nftproxy.kernel.others.other_proxies import IPVS_INTERFACE, KUBE_PROXY_TABLE
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import BESIDE_ANOTHER, Transaction

DUMMY_KIND = "dummy"

CHAIN = re.compile(
    "KUBE-(?:SERVICES|EXTERNAL-SERVICES|NODEPORTS|POSTROUTING|MARK-MASQ|FORWARD|PROXY-FIREWALL|PROXY-CANARY"
    "|NODE-PORT|LOAD-BALANCER|FIRE-WALL|SOURCE-RANGES-FIREWALL|IPVS-FILTER|IPVS-OUT-FILTER"  # IPVS mode
    "|(?:SVC|SVL|EXT|SEP|FW|XLB)-[A-Z0-9]+)"  # of a Service port or endpoint
)

COMMENT = re.compile(
    "kubernetes (?:service portals|externally-visible service portals|health check (?:service ports|rules)"
    "|load balancer firewall|forwarding rules|postrouting rules|ipvs access filter)|kube-proxy firewall rules"
)
"""The comments of kube-proxy's jumps from built-in chains."""

SET_NAMES = (
    "LOOP-BACK CLUSTER-IP EXTERNAL-IP EXTERNAL-IP-LOCAL LOAD-BALANCER LOAD-BALANCER-LOCAL LOAD-BALANCER-FW "
    "LOAD-BALANCER-SOURCE-IP LOAD-BALANCER-SOURCE-CIDR NODE-PORT-TCP NODE-PORT-LOCAL-TCP NODE-PORT-UDP "
    "NODE-PORT-LOCAL-UDP NODE-PORT-SCTP-HASH NODE-PORT-LOCAL-SCTP-HASH HEALTH-CHECK-NODE-PORT IPVS-IPS"
).split()
LONGEST_SET_NAME = 31  # ipset's IPSET_MAXNAMELEN without the final 0, to which kube-proxy truncates
SETS = frozenset(f"{prefix}{name}"[:LONGEST_SET_NAME] for prefix in ("KUBE-", "KUBE-6-") for name in SET_NAMES)
NODE_PORT_SET = re.compile("KUBE-(?:6-)?NODE-PORT-(TCP|UDP|SCTP)")
PROTOCOLS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP, "SCTP": socket.IPPROTO_SCTP}

NOT_IN_THIS_KERNEL = frozenset({errno.ENOENT, errno.EINVAL, errno.EPROTONOSUPPORT, errno.EOPNOTSUPP})
Server = dict[str, Any]  # af, addr, protocol and port
INCOMPATIBLE = re.compile("^# Table `([a-z]+)' is incompatible", re.MULTILINE)  # iptables-nft-save, with exit status 0


class Removal(NamedTuple):
    """The removal of kube-proxy's rules from an iptables table, as text for `iptables-restore --noflush`.

    `removed` counts chains.  `kept` are chains that stay, as other programs' rules lead to them.
    """

    table: str
    text: str
    removed: int
    kept: tuple[str, ...]


def remove_leftovers(mode: str) -> Iterator[str]:
    """Remove kube-proxy's rules of a mode of `MODES`, and yield a line about each as it is removed or kept.

    Raises:
        Unavailable: a permission is missing, or a tool failed, or our table is a canary's.  A canary leaves most
            Services to kube-proxy, so nothing was removed.
        Refused: the kernel refuses to delete an nftables table.
    """
    try:
        _expect_no_canary()
        for step in _STEPS[mode]:
            yield from step()
    except (NetlinkError, OSError) as error:
        raise Unavailable(str(error)) from error


def _expect_no_canary() -> None:
    for family in Family:
        if (nft_queries.table_comment(family, TABLE) or "").endswith(BESIDE_ANOTHER):
            raise Unavailable(
                f"nothing was removed: nftproxy serves just some Services on this node (the table {family.table} says "
                "so), and kube-proxy the others; if that has ended, remove this table first: nftproxy cleanup"
            )


def removals(saved: str) -> list[Removal]:
    """Return the removals for the output of iptables-save.  Tables without kube-proxy's rules have none."""
    tables = (part.partition("\n") for part in re.split(r"^\*", saved, flags=re.MULTILINE)[1:])
    return [found for name, _, body in tables if (found := _removal(name, body.splitlines())) is not None]


def _removal(table: str, lines: list[str]) -> Removal | None:
    policies = dict(line[1:].split()[:2] for line in lines if line.startswith(":"))
    ours = dict.fromkeys(chain for chain in policies if CHAIN.fullmatch(chain))
    jumps, wanted = [], set()
    for line in lines:
        if line.startswith("-A ") and not CHAIN.fullmatch(chain := line.split(" ", 2)[1]):
            target, comment = _target(line)
            if target in ours and COMMENT.fullmatch(comment) and policies[chain] != "-":
                jumps.append(f"-D{line.removeprefix('-A')}")
            elif target in ours:
                wanted.add(target)
    kept = _led_to(wanted, lines)
    doomed = [chain for chain in ours if chain not in kept]
    if not doomed and not jumps:
        return None
    flushes = [f":{chain} - [0:0]" for chain in doomed]  # first, so that no deleted chain is in use
    deletions = [f"-X {chain}" for chain in doomed]
    text = "\n".join([f"*{table}", *flushes, *jumps, *deletions, "COMMIT", ""])
    return Removal(table, text, len(doomed), tuple(sorted(kept)))


def _target(rule: str) -> tuple[str, str]:
    """The target of a rule, and its comment, each "" if it has none."""
    words = iter(shlex.split(rule))
    target = comment = ""
    for word in words:
        if word == "--comment":
            comment = next(words, "")
        elif word in ("-j", "-g"):
            target = next(words, "")
    return target, comment


def _led_to(wanted: set[str], lines: Iterable[str]) -> set[str]:
    """These chains of kube-proxy's, and all of its chains that they lead to, directly or not."""
    rules = [line for line in lines if line.startswith("-A KUBE-")] if wanted else []
    found: set[str] = set()
    while wanted:
        found |= wanted
        targets = {_target(rule)[0] for rule in rules if rule.split(" ", 2)[1] in wanted}
        wanted = {target for target in targets - found if CHAIN.fullmatch(target)}
    return found


def _iptables() -> Iterator[str]:
    faults = []
    for tool in iptables_tools.tools():
        try:
            saved = iptables_tools.save(tool)
            _expect_readable(saved, tool)
            found = removals(saved)
        except Unavailable as error:
            faults.append(str(error))
            continue
        for removal in found:
            try:
                yield from _removed(tool, removal)
            except Unavailable as error:
                faults.append(f"table {removal.table}: {error}")
    if faults:
        raise Unavailable("\n".join(faults))


def _removed(tool: iptables_tools.IptablesTool, removal: Removal) -> Iterator[str]:
    iptables_tools.restore(tool, removal.text)
    where = f"the table {removal.table} of {tool.name}"
    yield f"removed kube-proxy's chains ({removal.removed}) from {where}"
    for chain in removal.kept:
        yield f"kept the chain {chain} in {where}: other programs' rules use it"


def _expect_readable(saved: str, tool: iptables_tools.IptablesTool) -> None:
    """Raise Unavailable if iptables-save can't print a table that has chains of kube-proxy's.

    It can't print tables into which another program wrote rules that iptables doesn't have.
    """
    for table in INCOMPATIBLE.findall(saved):
        if any(CHAIN.fullmatch(chain) for chain in nft_queries.chains(tool.family, table)):
            raise Unavailable(f"{tool.name} can't read the table {table}: another program wrote nft rules into it")


def is_kube_proxys(server: Server, addresses: frozenset[str], node_ports: frozenset[tuple[int, int]]) -> bool:
    """True if kube-proxy made a virtual server: its address is on the dummy interface, or it is at a node port.

    `node_ports` are (protocol, port).
    """
    return server["addr"] in addresses or (server["protocol"], server["port"]) in node_ports


def _virtual_servers() -> Iterator[str]:
    if not IPVS_IN_KERNEL.exists():
        return
    addresses, node_ports = _dummy_addresses(), _node_ports()
    with IPVS() as ipvs:
        for server in [server_of(message) for message in ipvs.service("dump")]:
            if is_kube_proxys(server, addresses, node_ports):
                ipvs.service("del", service=IPVSService(**server))
                yield f"removed the virtual server {server['addr']} port {server['port']}"


def server_of(message: Any) -> Server:
    """Return the key of the virtual server in a netlink message, with None for fields that it lacks."""
    attributes = message.get_attr("IPVS_CMD_ATTR_SERVICE")
    return {name: attributes.get_attr(f"IPVS_SVC_ATTR_{name.upper()}") for name in ("af", "addr", "protocol", "port")}


def _dummy_addresses() -> frozenset[str]:
    with IPRoute() as interfaces:
        return frozenset(
            message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            for index in interfaces.link_lookup(ifname=IPVS_INTERFACE)
            for message in interfaces.get_addr(index=index)
        )


def _node_ports() -> frozenset[tuple[int, int]]:
    """The (protocol, port) in kube-proxy's sets of node ports."""
    found = set()
    for message in _listed_sets():
        if kind := NODE_PORT_SET.match(message.get_attr("IPSET_ATTR_SETNAME")):
            entries = message.get_attr("IPSET_ATTR_ADT").get_attrs("IPSET_ATTR_DATA")
            found |= {(int(PROTOCOLS[kind[1]]), entry.get_attr("IPSET_ATTR_PORT_FROM")) for entry in entries}
    return frozenset(found)


def _dummy() -> Iterator[str]:
    with IPRoute() as interfaces:
        for index in interfaces.link_lookup(ifname=IPVS_INTERFACE, kind=DUMMY_KIND):
            interfaces.link("del", index=index)
            yield f"removed the interface {IPVS_INTERFACE}"


def _ipsets() -> Iterator[str]:
    names = {message.get_attr("IPSET_ATTR_SETNAME") for message in _listed_sets()}
    for name in sorted(names & SETS):
        try:
            with IPSet() as sets:
                sets.destroy(name)
            yield f"removed the set {name}"
        except IPSetError as error:
            yield f"kept the set {name}: {error}"


def _listed_sets() -> list[Any]:
    try:
        with IPSet() as sets:
            return list(sets.list())
    except (NetlinkError, OSError) as error:
        if (getattr(error, "code", None) or getattr(error, "errno", None)) in NOT_IN_THIS_KERNEL:
            return []
        raise


def _nftables() -> Iterator[str]:
    there = [family.value for family in Family if nft_queries.table_comment(family, KUBE_PROXY_TABLE) is not None]
    # "add" first, as another program may have deleted it meanwhile
    Kernel().apply(
        Transaction(
            "".join(f"add table {each} {KUBE_PROXY_TABLE}\ndelete table {each} {KUBE_PROXY_TABLE}\n" for each in there)
        )
    )
    yield from (f"removed the table {each} {KUBE_PROXY_TABLE}" for each in there)


Step = Callable[[], Iterator[str]]

_STEPS: dict[str, tuple[Step, ...]] = {
    "iptables": (_iptables,),
    # The virtual servers first: the interface and the sets say which are kube-proxy's.  The sets last: chains use them.
    "ipvs": (_virtual_servers, _dummy, _iptables, _ipsets),
    "nftables": (_nftables,),
}
MODES = tuple(_STEPS)
