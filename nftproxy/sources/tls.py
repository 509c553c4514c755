"""The verification of a server's certificate, as client-go does it, and the client's own certificate.

Each certificate in the authority's file is trusted for itself, as in Go's pool.  So a file may hold only an
intermediate authority, which OpenSSL by itself takes for an incomplete chain.

Go tries every chain to a certificate in the pool.  OpenSSL tries only the chain to the first trusted certificate that
it finds, even if that has expired.  So expired certificates are left out.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from nftproxy.sources.credentials import Credentials

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(?:(?!-----BEGIN).)+?-----END CERTIFICATE-----", re.DOTALL)
"""A certificate in PEM.  The rest of an incomplete one before it is none of it."""


def tls_context(credentials: Credentials, now: Callable[[], float] = time.time) -> ssl.SSLContext:
    """Return the context of connections by TLS with these credentials.

    Args:
        credentials: those of the server.
        now: the clock, in seconds since the epoch.

    Raises:
        ConnectionError: a certificate or key is invalid.
    """
    try:
        own = credentials.certificate, credentials.key
        if credentials.is_insecure:
            return shared_context("", *own, is_insecure=True)
        if credentials.authority:
            return shared_context(_unexpired(credentials.authority, now()), *own)
        return _context("", *own) if credentials.certificate else system_authorities()
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionError(f"no credentials: a certificate or key is invalid: {error}") from error


def _context(authorities: str, certificate: bytes, key: bytes, *, is_insecure: bool = False) -> ssl.SSLContext:
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


shared_context = functools.lru_cache(maxsize=1)(_context)
"""Returns the context that all connections with these certificates share, as 64 nodes are asked at a time.

It isn't for the system's authorities, which may change while the certificates don't.
"""


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


def _unexpired(authority: bytes, now: float) -> str:
    """Return the certificates in PEM that are still valid.  If none is, return all, so that an error says why."""
    ends = _expiry(authority)
    return "\n".join([text for text, end in ends.items() if end > now] or ends)


@functools.lru_cache(maxsize=1)
def _expiry(authority: bytes) -> Mapping[str, float]:
    """Return when each certificate in PEM expires, in seconds since the epoch.

    As with Go, certificates that can't be read are skipped, if any other can.
    """
    error: Exception = ValueError("the authority's file has no certificate")
    found: dict[str, float] = {}
    for each in _CERTIFICATE.findall(authority):
        try:
            text = each.decode("ascii")
            found[text] = _end(text)
        except (ssl.SSLError, ValueError) as failure:
            error = failure
    if not found:
        raise error
    return found


def _end(text: str) -> float:
    """Return when a certificate expires, in seconds since the epoch, if it is an authority's, and else infinity."""
    alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    alone.load_verify_locations(cadata=text)
    ends = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in alone.get_ca_certs()]
    return min(ends, default=math.inf)


def _prove(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Have a client certificate.  OpenSSL reads it from files, which are in memory here: no key is left behind."""
    with contextlib.ExitStack() as files:
        paths: list[str] = []
        for content in (certificate, key):
            file = files.enter_context(os.fdopen(os.memfd_create("nftproxy"), "wb", buffering=0))
            file.write(content)
            paths.append(f"/proc/self/fd/{file.fileno()}")
        context.load_cert_chain(
            paths[0], paths[1], password=""
        )  # a key with a password is an error, and no terminal is asked
