"""The verification of a server by the certificates in an authority's file.  kubectl 1.32.4 takes the same files."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nftproxy.sources.credentials import Credentials
from nftproxy.sources.http_client import http_client
from nftproxy.sources.tls import tls_contexts

NAME = "localhost"
NAMES = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address("::1"))]
DAY = 86_400.0


@cache
def key(name: str) -> ec.EllipticCurvePrivateKey:  # noqa: ARG001  # a key for each name
    """The key of a name."""
    return ec.generate_private_key(ec.SECP256R1())


def certificate(
    name: str, issuer: str, *, began: float = -400, days: float = 400, is_named_in_subject_alone: bool = False
) -> bytes:
    """A certificate in PEM, valid from `began` days after now for so many days.  `NAME` is the server's.

    A digit after a name tells keys apart, and isn't in the certificate.
    """

    def subject(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text.rstrip("0123456789"))])

    now = datetime.datetime.now(datetime.UTC)
    public = key(name).public_key()
    made = x509.CertificateBuilder(subject(issuer), subject(name), public, x509.random_serial_number())
    made = made.not_valid_before(now + datetime.timedelta(began)).not_valid_after(now + datetime.timedelta(days))
    made = made.add_extension(x509.BasicConstraints(ca=name != NAME, path_length=None), critical=True)
    if name == NAME and not is_named_in_subject_alone:
        made = made.add_extension(x509.SubjectAlternativeName(NAMES), critical=False)
    return made.sign(key(issuer), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


ROOT, OTHER = certificate("root", "root"), certificate("other", "other")
INTERMEDIATE, CROSS = certificate("intermediate", "root"), certificate("root", "other")
SERVER = certificate(NAME, "intermediate")
OLD_ROOT, OLD_CROSS = certificate("root", "root", days=-1), certificate("root", "other", days=-1)
OLD_INTERMEDIATE = certificate("intermediate", "root", days=-1)
NEW_INTERMEDIATE = certificate("intermediate", "root", began=1)
ROOT_2 = certificate("root2", "root2")


def server_context(directory: Path, chain: bytes) -> ssl.SSLContext:
    """The context of a server that has a chain."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (directory / "key").write_bytes(key(NAME).private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    (directory / "chain").write_bytes(chain)
    made.load_cert_chain(directory / "chain", directory / "key")
    return made


@pytest.fixture
def shake_hands(tmp_path: Path) -> Callable[[bytes, bytes], None]:
    """Returns a function that verifies a server, which has a chain, by an authority's file."""

    def verify(authority: bytes, chain: bytes) -> None:
        server = server_context(tmp_path, chain)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        (client,) = tls_contexts(Credentials("https://localhost", authority=authority))
        ends = [client.wrap_bio(back, there, server_hostname=NAME), server.wrap_bio(there, back, server_side=True)]
        waiting = list(ends)
        while waiting:
            for end in list(waiting):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    waiting.remove(end)

    return verify


@pytest.mark.parametrize(
    ("authority", "chain"),
    [
        pytest.param(INTERMEDIATE, SERVER, id="the intermediate alone"),
        pytest.param(OLD_INTERMEDIATE + ROOT, SERVER + INTERMEDIATE, id="an intermediate that was renewed"),
        pytest.param(OLD_ROOT + INTERMEDIATE, SERVER + INTERMEDIATE, id="an expired root beside the intermediate"),
        pytest.param(NEW_INTERMEDIATE + ROOT, SERVER + INTERMEDIATE, id="an intermediate that isn't valid yet"),
        pytest.param(OLD_ROOT + ROOT, SERVER + INTERMEDIATE, id="a root that was renewed"),
        pytest.param(ROOT.replace(b"\n", b"\n \r\n"), SERVER + INTERMEDIATE, id="blank lines"),
        pytest.param(OLD_ROOT + OTHER, SERVER + INTERMEDIATE + CROSS, id="an expired root, which another has signed"),
        pytest.param(OLD_CROSS + OTHER, SERVER + INTERMEDIATE + CROSS, id="an expired signature by another root"),
        pytest.param(ROOT, SERVER + INTERMEDIATE + OLD_CROSS, id="a server that sends an expired signature"),
        pytest.param(ROOT[:200] + b"\n" + ROOT, SERVER + INTERMEDIATE, id="half a certificate before a whole one"),
        pytest.param(
            b"\xef\xbb\xbf# \xc3\x9cber\r\n" + ROOT.replace(b"\n", b"\r\n"), SERVER + INTERMEDIATE, id="CRLF, comments"
        ),
    ],
)
def test_a_chain_to_any_valid_certificate_is_enough(
    shake_hands: Callable[[bytes, bytes], None], authority: bytes, chain: bytes
) -> None:
    """Whatever else is in the file, a server is trusted if a valid chain leads to a valid certificate in it."""
    shake_hands(authority, chain)


@pytest.mark.parametrize(
    ("authority", "chain", "error"),
    [
        (OLD_ROOT, SERVER + INTERMEDIATE, "certificate has expired"),
        (OTHER, SERVER + INTERMEDIATE, "unable to get local issuer certificate"),
        (ROOT, certificate(NAME, "root", is_named_in_subject_alone=True), "Hostname mismatch"),
    ],
)
def test_no_other_server_is_trusted(
    shake_hands: Callable[[bytes, bytes], None], authority: bytes, chain: bytes, error: str
) -> None:
    """An expired authority, a stranger's, and a name in the certificate's subject alone are errors."""
    with pytest.raises(ssl.SSLCertVerificationError, match=error):
        shake_hands(authority, chain)


def test_a_certificate_that_expires_is_left_out() -> None:
    """The context of connections is the same until a certificate expires, and from then on has the others."""
    began = datetime.datetime.now(datetime.UTC).timestamp()
    credentials = Credentials("https://a", authority=certificate("soon", "soon", days=2) + ROOT)
    (first,) = tls_contexts(credentials, lambda: began)
    assert tls_contexts(credentials, lambda: began + DAY) == (first,)
    (later,) = tls_contexts(credentials, lambda: began + 3 * DAY)
    assert [len(each.get_ca_certs()) for each in (first, later)] == [2, 1]


@asynccontextmanager
async def answering(directory: Path, chain: bytes, requests: list[bytes]) -> AsyncIterator[str]:
    """A server with a certificate's chain, at a URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context(directory, chain)) as server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("authority", [ROOT + ROOT_2, ROOT_2 + ROOT, ROOT_2 + ROOT + INTERMEDIATE + OTHER])
@pytest.mark.parametrize("server", [certificate(NAME, "root"), certificate(NAME, "root2")])
async def test_a_rotated_authority_of_the_same_name(tmp_path: Path, authority: bytes, server: bytes) -> None:
    """While an authority's old and new key are in the file under a name, servers of both keys are trusted."""
    requests: list[bytes] = []
    async with answering(tmp_path, server, requests) as url:
        credentials = Credentials(url, authority=authority)
        async with http_client(credentials, url, None) as client:
            for _ in range(2):
                assert (await client.get("/")).status_code == 200
    assert len(requests) == 2


async def test_a_stranger_of_the_same_name(tmp_path: Path) -> None:
    """A server by an authority whose name is twice in the file, with other keys, gets no request."""
    requests: list[bytes] = []
    async with answering(tmp_path, certificate(NAME, "root3"), requests) as url:
        credentials = Credentials(url, authority=ROOT + ROOT_2)
        async with http_client(credentials, url, None) as client:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await client.get("/")
    assert requests == []


def test_few_sets_of_certificates_are_tried() -> None:
    """However many certificates of the same names a file has, few sets of them are tried."""
    names = [f"{name}{number}" for name in ("a", "b", "c") for number in range(9)]
    authority = b"".join(certificate(name, name) for name in names)
    contexts = tls_contexts(Credentials("https://a", authority=authority))
    assert [len(each.get_ca_certs()) for each in contexts] == [27] + 8 * [3]


@pytest.mark.parametrize("name", ["localhost.", "[::1]"])
async def test_names_as_in_go(tmp_path: Path, name: str) -> None:
    """A tls-server-name may end with a dot, or be an address in brackets."""
    async with answering(tmp_path, certificate(NAME, "root"), []) as url:
        credentials = Credentials(url, authority=ROOT, tls_server_name=name)
        async with http_client(credentials, url, None) as client:
            assert (await client.get("/")).status_code == 200
