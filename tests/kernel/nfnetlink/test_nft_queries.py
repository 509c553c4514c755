"""Questions to the kernel's nftables, without libnftables."""

from __future__ import annotations

import re
import subprocess

import pytest

from nftproxy.kernel.nfnetlink import nft_queries, sockets
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.base_chains import BaseChain
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import codec, nf_tables
from nftproxy.netlink.codec import FAMILY_NUMBER
from tests.conftest import Run
from tests.kernel.ruleset import execute
from tests.support.factories import IPV4, IPV6

pytestmark = pytest.mark.usefixtures("namespace")

UNKNOWN_PROTOCOL = 31  # netlink's protocols end at 22
UNKNOWN_SUBSYSTEM = 0x7F  # nfnetlink's end at 12
UNREACHABLE = "the kernel's nftables can't be reached"
DECNET = 12  # NFPROTO_DECNET, which nftables has never had


def test_every_commit_is_a_new_generation() -> None:
    """The generation stays while nothing happens, and changes with each commit."""
    before = nft_queries.generation()
    assert nft_queries.generation() == before
    execute("add table ip other")
    assert nft_queries.generation() != before


@pytest.mark.parametrize("comment", ["", "x", "nftproxy a1", "zwei Wörter", "c" * 128])
def test_comments_are_read_to_the_letter(comment: str) -> None:
    """A table's comment is read back in any length.  Without a comment it is "", without a table None."""
    line = f'comment "{comment}";' if comment else ""
    execute(f"table ip6 t {{ {line} }}")
    assert nft_queries.table_comment(IPV6, "t") == comment
    assert nft_queries.table_comment(IPV4, "t") is None


def test_many_names_come_in_many_parts() -> None:
    """A thousand chains and sets, more than an answer holds, are all listed."""
    names = [f"a-name-that-is-about-as-long-as-ours-{number}" for number in range(1000)]
    declared = "".join(f"set {name} {{ type ipv4_addr; }}; chain {name} {{ }};" for name in names)
    execute(f"table ip nftproxy {{ {declared} }}")
    assert sorted(nft_queries.chains(IPV4, "nftproxy")) == sorted(names)
    assert sorted(each.name for each in nft_queries.sets(IPV4)) == sorted(names)


def test_objects_larger_than_the_first_message_are_read() -> None:
    """A chain at 250 interfaces, whose names alone take 5 KB, is read, and so is another chain after it."""
    names = [f"interface-{number:03}" for number in range(250)]
    pairs = zip(names[::2], names[1::2], strict=True)
    lines = "".join(f"link add {name} type veth peer name {peer}\n" for name, peer in pairs)
    subprocess.run(["ip", "-batch", "-"], input=lines, check=True, text=True)
    hook = f"type filter hook ingress devices = {{ {', '.join(names)} }} priority 0;"
    execute(f"table netdev large {{ chain c {{ {hook} }}; }}\ntable netdev other {{ chain c {{ {hook} }}; }}")
    assert [each.table for each in nft_queries.base_chains()] == ["large", "other"]


def with_flag(data: bytes, flag: int) -> bytes:
    """The first message of an answer with a flag set."""
    length, kind, flags, *rest = codec.HEADER.unpack_from(data)
    return codec.HEADER.pack(length, kind, flags | flag, *rest) + data[codec.HEADER.size :]


def test_an_interrupted_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer during which the ruleset changed is discarded.  After too many, the error says so."""
    execute("table ip t { chain c { }; }")
    real, asked = codec.messages_of, []

    def interrupted(data: bytes, *, may_change: bool) -> object:
        asked.append(data)
        return real(with_flag(data, codec.DUMP_INTERRUPTED) if len(asked) < 3 else data, may_change=may_change)

    monkeypatch.setattr(sockets, "messages_of", interrupted)
    assert nft_queries.chains(IPV4, "t") == {"c": False}
    monkeypatch.setattr(nft_queries, "ATTEMPTS", 1)
    asked.clear()
    with pytest.raises(Unavailable, match="changed 1 times"):
        nft_queries.chains(IPV4, "t")


LOADING = (
    ": unless the kernel has nf_tables built in, run `modprobe nf_tables` on the node, and write the line nf_tables "
    "into /etc/modules-load.d/nftproxy.conf for each boot"
)


def test_a_kernel_without_nfnetlink(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the socket has the system's message, the missing module, and how to load it."""
    monkeypatch.setattr(sockets, "NETLINK_NETFILTER", UNKNOWN_PROTOCOL)
    with pytest.raises(Unavailable, match="^" + re.escape(f"{UNREACHABLE}: Protocol not supported{LOADING}") + "$"):
        nft_queries.generation()


def test_a_kernel_without_nf_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subsystem that nfnetlink lacks has the same advice, for requests and for batches."""
    monkeypatch.setattr(nf_tables, "SUBSYSTEM", UNKNOWN_SUBSYSTEM)
    with pytest.raises(Unavailable, match="^" + re.escape(f"{UNREACHABLE}: Invalid argument{LOADING}") + "$"):
        nft_queries.generation()


def test_families_that_the_kernel_has_and_one_that_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is found by asking for a table, which leaves none behind, and makes no commit."""
    before = nft_queries.generation()
    assert [nft_queries.has_family(family) for family in Family] == [True, True]
    monkeypatch.setitem(FAMILY_NUMBER, IPV6, DECNET)
    assert [nft_queries.has_family(family) for family in Family] == [True, False]
    assert nft_queries.generation() == before
    assert nft_queries.table_comment(IPV4, "nftproxy-probe") is None


def test_a_kernel_without_ipv6_in_nftables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the other family is served.  Without any answer, both are tried."""
    monkeypatch.setitem(FAMILY_NUMBER, IPV6, DECNET)
    assert nft_queries.families() == [IPV4]
    monkeypatch.setitem(FAMILY_NUMBER, IPV4, DECNET)
    assert nft_queries.families() == [IPV4, IPV6]


def test_families_without_permission(as_nobody: Run) -> None:
    """Families that can't be asked for count as present, so that the load reports the error."""
    assert as_nobody("from nftproxy.kernel.nfnetlink import nft_queries; print(len(nft_queries.families()))") == "2\n"


def test_base_chains_of_others() -> None:
    """Every base chain of inet, ip, ip6 and netdev is listed with its hook, policy and priority.  Other chains and
    families are not.
    """
    hooks = {
        "a": ("inet", "forward", "drop"),
        "b": ("ip", "prerouting", "accept"),
        "c": ("ip6", "postrouting", "drop"),
        "d": ("netdev", "ingress", "accept"),
    }
    for name, (family, hook, policy) in hooks.items():
        device = "device lo " * (family == "netdev")
        base = f"chain base {{ type filter hook {hook} {device}priority -7; policy {policy}; }};"
        execute(f"table {family} {name} {{ chain plain {{ }}; {base} }}")
    execute("add table bridge other")
    expected = [
        BaseChain(family, name, "base", hook, policy == "drop", -7) for name, (family, hook, policy) in hooks.items()
    ]
    assert nft_queries.base_chains() == expected
    assert nft_queries.tables() == ["inet a", "ip b", "ip6 c"]


def test_chains_to_which_packets_come() -> None:
    """Our base chains are listed, and none of a dormant table, or without a table."""
    assert nft_queries.hooked_chains(IPV4) == frozenset()
    base = "chain base { type filter hook forward priority 0; };"
    execute(f"table ip {TABLE} {{ chain plain {{ }}; {base} }}; table ip other {{ {base.replace('base', 'more')} }}")
    assert nft_queries.hooked_chains(IPV4) == {"base"}
    execute(f"table ip {TABLE} {{ flags dormant; }}")
    assert nft_queries.hooked_chains(IPV4) == frozenset()
