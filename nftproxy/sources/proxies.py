"""The proxy on the way to a server, by the rules of Go's golang.org/x/net/http/httpproxy, which client-go follows.

`HTTPS_PROXY` (for https URLs) or `HTTP_PROXY` names the proxy, and `NO_PROXY` lists servers without a proxy: addresses,
ranges, domains, each perhaps with a port.  The names may be in lower case.  As with Go, `ALL_PROXY` has no meaning, and
loopback addresses need no proxy.  An entry that can't be read concerns no server, and a domain never means an address.
client-go reads ranges itself, and takes leading zeros in them (apimachinery, util/net/http.go).

With an invalid URL of a proxy, Go connects without any.  Here it is an error if the server needs the proxy.  A SOCKS
proxy whose URL has a password must ask for it, while Go lets the proxy choose.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import idna

from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem

SCHEMES = ("http", "https", "socks5", "socks5h")
"""The proxies that Go knows.  With both SOCKS schemes the proxy looks names up."""
KUBECONFIG = "the kubeconfig's proxy-url"

_RANGE = re.compile(r"[0-9a-f:.]+/[0-9]+")
"""A range in NO_PROXY.  Python would also take a netmask, or a zone."""
_LEADING_ZEROS = re.compile(r"\b0+(?=[0-9])")


class Proxy(NamedTuple):
    """A proxy on the way to the API server."""

    url: str  # without user and password
    named_by: str  # a variable of the environment, or `KUBECONFIG`
    auth: tuple[str, str] | None = None  # user and password

    def __str__(self) -> str:
        return f"the proxy {self.url} ({self.named_by})"


def proxy_for(url: str, configured: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy on the way to a server, None without one.

    Args:
        url: the server's.
        configured: the URL of a proxy in the kubeconfig, which goes before the environment, "" without one.
        environ: the environment.

    Raises:
        BadInput: the proxy's URL is invalid, or can't be trusted.
    """
    if configured:
        return _named(configured, KUBECONFIG)
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    name, text = _variable(f"{parts.scheme}_proxy", environ)
    if not text or not _needs_proxy(parts.hostname or "", port, _variable("no_proxy", environ)[1]):
        return None
    if parts.scheme == "http" and environ.get("REQUEST_METHOD"):
        raise _unusable(name, "is not used in the environment of CGI (REQUEST_METHOD), whose clients may choose it")
    return _named(text, name)


def parse_proxy(text: str, named_by: str) -> Proxy:
    """Parse the URL of a proxy.  Without a scheme it is a proxy by HTTP.

    Raises:
        ValueError: it is no such URL.  The error doesn't show the text, which may have a password.
    """
    with contextlib.suppress(ValueError):  # raised for bad brackets and ports
        parts = urlsplit(text if "://" in text else f"http://{text}")
        place = ascii_name(parts.netloc.rpartition("@")[2])
        if parts.scheme in SCHEMES and parts.hostname and parts.port != 0 and place.isascii() and " " not in place:
            has_auth = parts.username is not None
            auth = (unquote(parts.username or ""), unquote(parts.password or "")) if has_auth else None
            return Proxy(urlunsplit((parts.scheme, place, "", "", "")), named_by, auth)
    raise ValueError("is not a URL of a proxy: http, https or socks5, with a host and a valid port")


def _named(text: str, named_by: str) -> Proxy:
    try:
        return parse_proxy(text, named_by)
    except ValueError as error:
        raise _unusable(named_by, str(error)) from error


def _unusable(named_by: str, reason: str) -> BadInput:
    return BadInput(Problem("", "", named_by, reason, Code.CREDENTIALS_UNUSABLE))


def _variable(name: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return a variable's name, in the case in which it is set, and its value."""
    names = (name.upper(), name)
    return next(((each, environ[each]) for each in names if environ.get(each)), (name.upper(), ""))


def _needs_proxy(host: str, port: int, no_proxy: str) -> bool:
    """Whether a server isn't in NO_PROXY."""
    host = ascii_name(host)
    address = _address(unquote(host).partition("%")[0])  # the zone doesn't count
    if host == "localhost" or (address and address.is_loopback):
        return False
    entries = [entry for each in no_proxy.lower().split(",") if (entry := each.strip())]
    return not any(_matches(entry, host, address, port) for entry in entries)


def _matches(entry: str, host: str, address: _Address | None, port: int) -> bool:
    """Whether an entry of NO_PROXY means a server."""
    if entry == "*":
        return True
    if _RANGE.fullmatch(entry):
        return address is not None and _is_in(address, entry)
    name, entry_port = _split(entry)
    if not name or entry_port not in ("", str(port)):
        return False
    wanted = _address(name)
    if wanted or address:
        return address == wanted
    name = ascii_name(name[1:] if name.startswith("*.") else name)
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


_MAPPED = 96
"""Bits before an IPv4 address in IPv6."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(text: str) -> _Address | None:
    """Return an address, None for any other text and for a zone.  An IPv4 address in IPv6 is the IPv4 address."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(text)
        if isinstance(found, ipaddress.IPv4Address):
            return found
        return None if found.scope_id else found.ipv4_mapped or found
    return None


def _is_in(address: _Address, entry: str) -> bool:
    try:
        network = ipaddress.ip_network(_LEADING_ZEROS.sub("", entry), strict=False)
    except ValueError:
        return False
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    if mapped and network.prefixlen >= _MAPPED:
        network = ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED))
    return address in network


def ascii_name(name: str) -> str:
    """Return a name, perhaps with a port, as DNS has it (RFC 5891).  A name that DNS can't have stays."""
    if name.isascii():
        return name
    host, colon, port = name.partition(":")
    with contextlib.suppress(ValueError):
        labels = (each if each.isascii() else idna.alabel(each).decode() for each in host.split("."))
        return ".".join(labels) + colon + port
    return name


def _split(entry: str) -> tuple[str, str]:
    """Return the host and the port of an entry, "" without a port.  An IPv6 address has brackets only with a port."""
    host, colon, port = entry.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    return (entry, "") if not colon or ":" in host else (host, port)
