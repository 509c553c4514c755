"""The verification of a server's certificate, as client-go does it, and the client's own certificate.

Each certificate in the authority's file is trusted for itself, as in Go's pool.  So a file may hold only an
intermediate authority, which OpenSSL by itself takes for an incomplete chain.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import ssl
from pathlib import Path

import httpx

from nftproxy.sources.credentials import Credentials

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of connections by TLS with these credentials.

    Raises:
        ConnectionError: a certificate or key is invalid.
    """
    given = credentials.authority, credentials.certificate, credentials.key
    if credentials.authority or credentials.is_insecure:
        return shared_context(*given, is_insecure=credentials.is_insecure)
    if credentials.certificate:
        return _context(*given, is_insecure=False)
    return system_authorities()


def _context(authority: bytes, certificate: bytes, key: bytes, *, is_insecure: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if is_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif authority:
            _trust(context, authority)
        else:
            _trust_system(context)
        if certificate and key:
            _prove(context, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionError(f"no credentials: a certificate or key is invalid: {error}") from error
    return context


shared_context = functools.lru_cache(maxsize=1)(_context)
"""Returns the context that all connections with these certificates share, as 64 nodes are asked at a time.

It isn't for the system's authorities, which may change while the certificates don't.
"""


@functools.cache
def system_authorities() -> ssl.SSLContext:
    """Return the context with the system's authorities, which all connections share: reading them takes 80 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust_system(context)
    return context


def _trust_system(context: ssl.SSLContext) -> None:
    """Trust the authorities of OpenSSL's paths, or of SSL_CERT_FILE and SSL_CERT_DIR.  Without any, trust httpx's."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())):
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=b"".join(httpx.create_ssl_context().get_ca_certs(binary_form=True)))


def _trust(context: ssl.SSLContext, authority: bytes) -> None:
    """Trust the certificates in PEM.  As with Go, those that can't be read are skipped, if any other can."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    error: Exception = ValueError("the authority's file has no certificate")
    for each in _CERTIFICATE.findall(authority):
        try:
            context.load_verify_locations(cadata=each.decode("ascii"))
        except (ssl.SSLError, ValueError) as failure:
            error = failure
    if not context.cert_store_stats()["x509"]:
        raise error


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
