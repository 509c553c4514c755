"""The verification of a server's certificate, as client-go does it, and the client's own certificate.

Each certificate in the authority's file is trusted for itself, as in Go's pool.  So a file may hold only an
intermediate authority, which OpenSSL by itself takes for an incomplete chain.

Go tries every chain to a certificate in the pool.  OpenSSL tries a single chain.  It takes the first trusted
certificate with the issuer's name, even if that isn't valid at present, or has another key, as after the rotation of an
authority without key identifiers.  So certificates that aren't valid at present are left out.  If several have a name,
a server that isn't trusted is tried again with each of them alone.

OpenSSL is stricter about keys (RSA below 2,048 bits), about the purposes in certificates (a server's keyUsage, and
anyExtendedKeyUsage), about key identifiers that don't match, and about a server that sends several certificates of a
name.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import os
import re
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from nftproxy.sources.credentials import Credentials

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----((?:(?!-----BEGIN).)+?)-----END CERTIFICATE-----", re.DOTALL)
"""A certificate in PEM.  The rest of an incomplete one before it is none of it."""
_BLANK_LINES = re.compile(rb"\n[ \t\r]*(?=\n)")
"""Go's PEM may have blank lines, OpenSSL's not."""
_MOST_POOLS = 9
"""Sets of trusted certificates to try.  Each is another connection to a server that isn't trusted."""


def tls_contexts(credentials: Credentials, now: Callable[[], float] = time.time) -> tuple[ssl.SSLContext, ...]:
    """Return the contexts of connections by TLS with these credentials.  The first nearly always does.

    Each further context is for a server that no context before it trusts.

    Args:
        credentials: those of the server.
        now: the clock, in seconds since the epoch.

    Raises:
        ConnectionError: a certificate or key is invalid.
    """
    try:
        own = credentials.certificate, credentials.key
        if credentials.is_insecure:
            return shared_contexts((b"",), *own, is_insecure=True)
        if credentials.authority:
            return shared_contexts(_pools(credentials.authority, now()), *own)
        return (_context(b"", *own) if credentials.certificate else system_authorities(),)
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionError(f"no credentials: a certificate or key is invalid: {error}") from error


def _context(authorities: bytes, certificate: bytes, key: bytes, *, is_insecure: bool = False) -> ssl.SSLContext:
    """Return a context that trusts authorities (DER in a row), by default the system's."""
    context = _verifying()
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authorities:
        context.load_verify_locations(cadata=authorities)
    else:
        _trust_system(context)
    if certificate and key:
        _prove(context, certificate, key)
    return context


@functools.lru_cache(maxsize=1)
def shared_contexts(
    pools: Sequence[bytes], certificate: bytes, key: bytes, *, is_insecure: bool = False
) -> tuple[ssl.SSLContext, ...]:
    """Return the contexts that all connections with these certificates share, as 64 nodes are asked at a time.

    They aren't for the system's authorities, which may change while the certificates don't.
    """
    return tuple(_context(each, certificate, key, is_insecure=is_insecure) for each in pools)


@functools.cache
def system_authorities() -> ssl.SSLContext:
    """Return the context with the system's authorities, which all connections share: reading them takes 80 ms."""
    context = _verifying()
    _trust_system(context)
    return context


def _verifying() -> ssl.SSLContext:
    """Return a context without authorities.  As with Go, a server's names are not in the subject of its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.hostname_checks_common_name = False
    return context


def _trust_system(context: ssl.SSLContext) -> None:
    """Trust the authorities of OpenSSL's paths, or of SSL_CERT_FILE and SSL_CERT_DIR.  Without any, trust httpx's."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())):
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=b"".join(httpx.create_ssl_context().get_ca_certs(binary_form=True)))


class _Authority(NamedTuple):
    """A trusted certificate."""

    der: bytes
    name: object = None  # its subject
    begins: float = 0.0  # seconds since the epoch
    ends: float = float("inf")


def _pools(authority: bytes, now: float) -> tuple[bytes, ...]:
    """Return the sets of trusted certificates to try, each in DER: all, and then a single one of each name.

    Only certificates that are valid at present count.  If none is, all count, so that an error says why.
    """
    known = _authorities(authority)
    valid = [each for each in known if each.begins <= now < each.ends] or list(known)
    named = defaultdict[object, dict[bytes, None]](dict)
    for each in valid:
        named[each.name or each.der][each.der] = None
    choices = itertools.islice(itertools.product(*named.values()), _MOST_POOLS - 1)
    alone = [_joined(each) for each in choices] if any(len(each) > 1 for each in named.values()) else []
    return _joined(each.der for each in valid), *alone


def _joined(certificates: Iterable[bytes]) -> bytes:
    return b"".join(certificates)


@functools.lru_cache(maxsize=1)
def _authorities(authority: bytes) -> Sequence[_Authority]:
    """Return the certificates in PEM.

    As with Go, certificates that can't be read are skipped, if any other can.
    """
    error: Exception = ValueError("the authority's file has no certificate")
    found: dict[_Authority, None] = {}
    for each in _CERTIFICATE.findall(authority):
        try:
            found[_authority(base64.b64decode(b"".join(each.split()), validate=True))] = None
        except (ssl.SSLError, ValueError) as failure:
            error = failure
    if not found:
        raise error
    return tuple(found)


def _authority(der: bytes) -> _Authority:
    """Return a certificate with its name and times, unless it isn't an authority's, which OpenSSL doesn't show."""
    alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    alone.load_verify_locations(cadata=der)
    for shown in alone.get_ca_certs():
        begins, ends = (ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))
        return _Authority(der, shown["subject"], begins, ends)
    return _Authority(der)


def _prove(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Have a client certificate.  OpenSSL reads it from files, which are in memory here: no key is left behind."""
    with contextlib.ExitStack() as files:
        paths: list[str] = []
        for content in (certificate, key):
            file = files.enter_context(os.fdopen(os.memfd_create("nftproxy"), "wb", buffering=0))
            file.write(_BLANK_LINES.sub(b"", content))
            paths.append(f"/proc/self/fd/{file.fileno()}")
        context.load_cert_chain(
            paths[0], paths[1], password=""
        )  # a key with a password is an error, and no terminal is asked
