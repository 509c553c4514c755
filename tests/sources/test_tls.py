"""The verification of a server by the certificates in an authority's file.  kubectl 1.32.4 takes the same files."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nftproxy.sources.credentials import Credentials
from nftproxy.sources.tls import tls_context

NAME = "localhost"
DAY = 86_400.0


@cache
def key(name: str) -> ec.EllipticCurvePrivateKey:  # noqa: ARG001  # a key for each name
    """The key of a name."""
    return ec.generate_private_key(ec.SECP256R1())


def certificate(name: str, issuer: str, *, days: float = 400, is_named_in_subject_alone: bool = False) -> bytes:
    """A certificate in PEM that began 400 days ago, and expires in so many days.  `NAME` is the server's."""

    def subject(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    public = key(name).public_key()
    made = x509.CertificateBuilder(subject(issuer), subject(name), public, x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(400)).not_valid_after(now + datetime.timedelta(days))
    made = made.add_extension(x509.BasicConstraints(ca=name != NAME, path_length=None), critical=True)
    if name == NAME and not is_named_in_subject_alone:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
    return made.sign(key(issuer), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


ROOT, OTHER = certificate("root", "root"), certificate("other", "other")
INTERMEDIATE, CROSS = certificate("intermediate", "root"), certificate("root", "other")
SERVER = certificate(NAME, "intermediate")
OLD_ROOT, OLD_CROSS = certificate("root", "root", days=-1), certificate("root", "other", days=-1)
OLD_INTERMEDIATE = certificate("intermediate", "root", days=-1)


@pytest.fixture
def shake_hands(tmp_path: Path) -> Callable[[bytes, bytes], None]:
    """Returns a function that verifies a server, which has a chain, by an authority's file."""

    def verify(authority: bytes, chain: bytes) -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        (tmp_path / "key").write_bytes(key(NAME).private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
        (tmp_path / "chain").write_bytes(chain)
        server.load_cert_chain(tmp_path / "chain", tmp_path / "key")
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = tls_context(Credentials("https://localhost", authority=authority))
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
        pytest.param(OLD_ROOT + ROOT, SERVER + INTERMEDIATE, id="a root that was renewed"),
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
    first = tls_context(credentials, lambda: began)
    assert tls_context(credentials, lambda: began + DAY) is first
    later = tls_context(credentials, lambda: began + 3 * DAY)
    assert [len(each.get_ca_certs()) for each in (first, later)] == [2, 1]
