"""The proxy on the way to a server.  The cases of NO_PROXY are those of Go (x/net/http/httpproxy, proxy_test.go)."""

from __future__ import annotations

import pytest

from nftproxy.model.errors import BadInput
from nftproxy.sources.proxies import KUBECONFIG, Proxy, proxy_for

NO_PROXY = (
    "foobar.com, .barbaz.net, *.foobaz.net, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, "
    "2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64"
)


@pytest.mark.parametrize(
    ("host", "is_proxied"),
    [
        ("localhost", False),
        ("127.0.0.1", False),
        ("127.0.0.2", False),
        ("[::1]", False),
        ("[::2]", True),
        ("192.168.1.1", False),
        ("192.168.1.2", True),
        ("192.168.1.3", False),
        ("192.168.1.4", True),
        ("10.0.0.2", False),
        ("10.0.0.4", True),
        ("[2001:db8::52:0:1]", False),
        ("[2001:db8::52:0:2]", True),
        ("[2001:db8::52:0:3]", False),
        ("[2002:db8:a::123]", False),
        ("[fe80::424b:c8be:1643:a1b6]", True),
        ("barbaz.net", True),
        ("www.barbaz.net", False),
        ("foobaz.net", True),
        ("www.foobaz.net", False),
        ("foobar.com", False),
        ("www.foobar.com", False),
        ("foofoobar.com", True),
        ("baz.com", True),
        ("localhost.net", True),
        ("local.localhost", True),
        ("barbarbaz.net", True),
    ],
)
def test_no_proxy_as_in_go(host: str, is_proxied: bool) -> None:
    """An address, a range, a domain or a port in NO_PROXY means the servers that it means for Go's programs."""
    found = proxy_for(f"http://{host}", "", {"HTTP_PROXY": "http://proxy", "NO_PROXY": NO_PROXY})
    assert (found is not None) is is_proxied


@pytest.mark.parametrize("entry", ["*", "foo, *", "127.0.0.0/8 , *"])
def test_a_star_means_all_servers(entry: str) -> None:
    """A star alone in NO_PROXY leaves no server to the proxy."""
    assert proxy_for("https://api.example.com", "", {"HTTPS_PROXY": "http://p", "NO_PROXY": entry}) is None


@pytest.mark.parametrize("entry", ["", ",", "10.0.0.0/99", ":6443", "[", "fd00::/8", "[::1", "::::", "/"])
def test_entries_that_mean_nothing_break_nothing(entry: str) -> None:
    """An entry of NO_PROXY that can't be read, or is for another family, concerns no server."""
    environ = {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": entry}
    assert proxy_for("https://10.0.0.1:6443", "", environ) == Proxy("http://p:3128", "HTTPS_PROXY")
    assert proxy_for("https://10.0.0.1:6443", "", {"NO_PROXY": entry}) is None


@pytest.mark.parametrize(
    ("host", "entry", "is_proxied"),
    [
        ("[fd00::1]:6443", "fd00::1", False),
        ("[fd00::1]:6443", "[fd00::1]:6443", False),
        ("[fd00::1]:6443", "[fd00::1]:443", True),
        ("[fd00::1]:6443", "[fd00::1]", True),
        ("[fd00::1]", "[fd00::1]:443", False),
        ("10.0.0.1", "10.0.0.1:", False),
        ("API.example.com", "EXAMPLE.com:443", False),
        ("myexample.com", "*example.com", True),
        ("api.example.com", "*.example.com:443", False),
        ("api.example.com", "*.example.com:6443", True),
        ("10.1.2.3", "10.9.9.9/8", False),
        ("10.1.2.3:6443", "\t10.0.0.0/8 ,,", False),
        ("10.1.2.3", "10.0.0.0/8 192.168.0.0/16", True),
        ("[fd00::1]", "FD00::/8", False),
        ("[fd00::1]", "[fd00::]/8", True),
    ],
)
def test_ports_and_brackets_as_in_go(host: str, entry: str, is_proxied: bool) -> None:
    """Brackets are for addresses with a port, a port is that of the URL or of its scheme, and case has no meaning."""
    found = proxy_for(f"https://{host}", "", {"HTTPS_PROXY": "http://proxy", "NO_PROXY": entry})
    assert (found is not None) is is_proxied


@pytest.mark.parametrize(
    ("host", "entry", "is_proxied"),
    [
        ("10.1.2.3", ".3", True),
        ("10.1.2.3", "2.3", True),
        ("10.1.2.3", "*.3", True),
        ("[fe80::1%25eth0]", "1%eth0,fe80::1%eth0", True),
        ("[fe80::1%25eth0]", "fe80::1", False),
        ("[fe80::1%25eth0]", "fe80::/64", False),
        ("[fe80::1]", "fe80::%eth0/64", True),
        ("10.1.2.3", "10.0.0.0/255.0.0.0", True),
        ("10.1.2.3", "10.0.0.0/0.255.255.255", True),
        ("10.1.2.3", "::ffff:10.1.2.3", False),
        ("[::ffff:10.1.2.3]", "10.0.0.0/8", False),
        ("[::ffff:127.0.0.1]", "", False),
    ],
)
def test_an_address_is_no_domain(host: str, entry: str, is_proxied: bool) -> None:
    """The end of an address means nothing (CVE-2025-22870), nor a zone or netmask.  IPv4 in IPv6 is IPv4.

    `kubectl` 1.32.4 took each of these cases as they stand here.
    """
    found = proxy_for(f"https://{host}", "", {"HTTPS_PROXY": "http://proxy", "NO_PROXY": entry})
    assert (found is not None) is is_proxied


def test_a_proxy_that_a_client_may_have_chosen() -> None:
    """HTTP_PROXY is not used where REQUEST_METHOD is set, and the error names it.  HTTPS_PROXY is used."""
    environ = {"HTTP_PROXY": "http://p", "HTTPS_PROXY": "http://p", "REQUEST_METHOD": "GET", "NO_PROXY": "b"}
    with pytest.raises(BadInput, match=r"^NFT106: HTTP_PROXY: is not used in the environment of CGI"):
        proxy_for("http://a", "", environ)
    assert proxy_for("http://b", "", environ) is None
    assert proxy_for("https://a", "", environ) == Proxy("http://p", "HTTPS_PROXY")


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://a", {"HTTPS_PROXY": "p:1", "HTTP_PROXY": "q:1"}, Proxy("http://p:1", "HTTPS_PROXY")),
        ("http://a", {"HTTPS_PROXY": "p:1", "HTTP_PROXY": "q:1"}, Proxy("http://q:1", "HTTP_PROXY")),
        ("https://a", {"https_proxy": "p:1"}, Proxy("http://p:1", "https_proxy")),
        ("https://a", {"HTTPS_PROXY": "p:1", "https_proxy": "q:1"}, Proxy("http://p:1", "HTTPS_PROXY")),
        ("https://a", {"HTTPS_PROXY": "p:1", "NO_PROXY": "b", "no_proxy": "a"}, Proxy("http://p:1", "HTTPS_PROXY")),
        ("https://a", {"HTTPS_PROXY": "", "https_proxy": "p:1"}, Proxy("http://p:1", "https_proxy")),
        ("https://a", {"HTTPS_PROXY": "p:1", "no_proxy": "a"}, None),
        ("https://a:6443", {"HTTPS_PROXY": "p:1", "no_proxy": "a:6443"}, None),
        ("https://a:6444", {"HTTPS_PROXY": "p:1", "no_proxy": "a:6443"}, Proxy("http://p:1", "HTTPS_PROXY")),
        ("https://a", {"ALL_PROXY": "socks5://p:1", "HTTP_PROXY": "q:1"}, None),
        ("https://a", {"HTTPS_PROXY": "socks5://u:p%40ss@p:1"}, Proxy("socks5://p:1", "HTTPS_PROXY", ("u", "p@ss"))),
        ("https://a", {"HTTPS_PROXY": "http://[fd00::1]:3128/x"}, Proxy("http://[fd00::1]:3128", "HTTPS_PROXY")),
        ("https://a", {"HTTPS_PROXY": "http://bücher:1"}, Proxy("http://xn--bcher-kva:1", "HTTPS_PROXY")),
    ],
)
def test_variables(url: str, environ: dict[str, str], proxy: Proxy | None) -> None:
    """The scheme of the server's URL chooses the variable, in either case, and ALL_PROXY has no meaning."""
    assert proxy_for(url, "", environ) == proxy


def test_the_kubeconfig_goes_before_the_environment() -> None:
    """A kubeconfig's proxy-url is used for any server, whatever the environment says."""
    environ = {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}
    assert proxy_for("https://127.0.0.1", "socks5://q:1080", environ) == Proxy("socks5://q:1080", KUBECONFIG)


@pytest.mark.parametrize(
    "text",
    [
        "ftp://p",
        "http://",
        "http://p:0",
        "http://p:99999",
        "http://\u0378",
        "http://[::1",
        "socks4://p",
        "http:// :1",
        "p q",
    ],
)
def test_a_url_that_is_no_proxy(text: str) -> None:
    """An invalid URL of a proxy that is needed is an error that names the variable and doesn't show the URL."""
    with pytest.raises(BadInput, match=r"^NFT106: HTTPS_PROXY: is not a URL of a proxy") as caught:
        proxy_for("https://10.0.0.1", "", {"HTTPS_PROXY": text})
    assert text not in str(caught.value)
    assert proxy_for("https://10.0.0.1", "", {"HTTPS_PROXY": text, "NO_PROXY": "10.0.0.1"}) is None


def test_a_password_is_not_shown() -> None:
    """The text of a proxy names its URL and the setting, without user and password."""
    found = proxy_for("https://a", "", {"HTTPS_PROXY": "http://user:secret@p:3128"})
    assert str(found) == "the proxy http://p:3128 (HTTPS_PROXY)"
