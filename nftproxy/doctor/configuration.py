"""kube-proxy's configuration as the checks need it: from a file, a ConfigMap, or what it shows at /configz.

At /configz it shows its internal values, whose fields have Go's names (`NodePortAddresses`, `Linux.Conntrack`, as of
1.31): so names are compared without regard to capitals, and conntrack is looked for in both places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nftproxy.api.config import API_VERSION, parse_config
from nftproxy.api.flags import FLAGS, other_warnings, override
from nftproxy.doctor.facts import KubeProxy
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput

CONFIGZ = API_VERSION.partition("/")[0]
"""The name under which it is at /configz."""
DEFAULT_MODE = "iptables"
"""kube-proxy's on Linux, where mode is empty."""


def read_configuration(document: Mapping[str, object], source: str, flags: Mapping[str, str]) -> KubeProxy:
    """What a KubeProxyConfiguration says, with flags' texts by their names laid over it."""
    laid = override(document, {name: text for name, text in flags.items() if name != "config"})
    try:
        _, problems = parse_config(laid, source)
        faults: Iterable[object] = ()
    except BadInput as error:
        problems, faults = [], error.problems
    others = (each for each in problems if each.code is not Code.MODE_AS_NFTABLES)  # findings of their own say more
    return _facts(laid, source, map(str, (*others, *other_warnings(flags))), faults)


def read_configz(document: object) -> Mapping[str, object] | None:
    """kube-proxy's own values in an answer of /configz; None if it isn't kube-proxy that has answered."""
    values = document.get(CONFIGZ) if isinstance(document, Mapping) else None
    return values if isinstance(values, Mapping) and "nftproxy" not in values else None


def of_configz(values: Mapping[str, object], source: str) -> KubeProxy:
    """What kube-proxy shows of itself; what nftproxy would say of it isn't known, as it is no file."""
    return _facts(values, source, (), ())


def flags_of(arguments: Iterable[str]) -> dict[str, str]:
    """The flags of a command line of kube-proxy's, by their names."""
    booleans = {flag.name for flag in FLAGS if flag.is_boolean}
    found: dict[str, str] = {}
    waiting = ""
    for word in arguments:
        if word.startswith("--"):
            name, equals, text = word.removeprefix("--").partition("=")
            name = name.replace("_", "-")
            waiting = "" if equals or name in booleans else name
            found[name] = text if equals else "true"
        elif waiting:
            found[waiting], waiting = word, ""
    return found


def _facts(given: Mapping[str, object], source: str, problems: Iterable[str], faults: Iterable[object]) -> KubeProxy:
    addresses = _at(given, "nodeportaddresses")
    liberal = _at(given, "conntrack.tcpbeliberal") or _at(given, "linux.conntrack.tcpbeliberal")
    return KubeProxy(
        source=source,
        mode=str(_at(given, "mode") or DEFAULT_MODE),
        node_port_addresses=tuple(map(str, addresses)) if isinstance(addresses, list) else (),
        tcp_be_liberal=liberal is True,
        localhost_node_ports=_at(given, "iptables.localhostnodeports") is not False,
        scheduler=str(_at(given, "ipvs.scheduler") or ""),
        problems=tuple(problems),
        faults=tuple(map(str, faults)),
    )


def _at(given: object, path: str) -> object:
    """The value at a path of names without capitals; None if there is none."""
    for step in path.split("."):
        values = given if isinstance(given, Mapping) else {}
        given = next((value for name, value in values.items() if str(name).lower() == step), None)
    return given
