"""What the kernel is asked directly, without libnftables."""

from __future__ import annotations

import errno
import socket

import pytest

from nftproxy.kernel import netlink, nftables_netlink
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.kernel import BaseChain
from nftproxy.rules.transaction import Transaction
from tests.conftest import Run

pytestmark = pytest.mark.usefixtures("namespace")


def test_every_commit_is_a_new_generation() -> None:
    """The generation stays while nothing happens, and changes with each commit."""
    before = nftables_netlink.generation()
    assert nftables_netlink.generation() == before
    Kernel().apply(Transaction("add table ip other\n"))
    assert nftables_netlink.generation() != before


@pytest.mark.parametrize("comment", ["", "x", "nftproxy a1", "zwei Wörter", "c" * 128])
def test_comments_are_read_to_the_letter(comment: str) -> None:
    """A table's comment is read back in any length that nft takes; without one it is "", without a table None."""
    line = f'  comment "{comment}"\n' if comment else ""
    Kernel().apply(Transaction(f"table ip6 t {{\n{line}}}\n"))
    assert nftables_netlink.table_comment(Family.IPV6, "t") == comment
    assert nftables_netlink.table_comment(Family.IPV4, "t") is None


def test_many_names_come_in_many_parts() -> None:
    """A thousand chains and sets, more than one answer holds, are all there."""
    names = [f"a-name-that-is-about-as-long-as-ours-{number}" for number in range(1000)]
    chains = "".join(f"  chain {name} {{\n  }}\n" for name in names)
    sets = "".join(f"  set {name} {{\n    type ipv4_addr\n  }}\n" for name in names)
    Kernel().apply(Transaction(f"table ip t {{\n{sets}{chains}}}\n"))
    assert sorted(nftables_netlink.chains(Family.IPV4, "t")) == sorted(names)
    assert sorted(each.name for each in nftables_netlink.sets(Family.IPV4, "t")) == sorted(names)


def with_flag(data: bytes, flag: int) -> bytes:
    """The first message of an answer with a flag set."""
    length, kind, flags, *rest = netlink.HEADER.unpack_from(data)
    return netlink.HEADER.pack(length, kind, flags | flag, *rest) + data[netlink.HEADER.size :]


def test_an_interrupted_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer during which the ruleset changed is thrown away; if that goes on, the error says so."""
    Kernel().apply(Transaction("table ip t {\n  chain c {\n  }\n}\n"))
    real, asked = netlink.messages_of, []

    def interrupted(data: bytes, *, may_change: bool) -> object:
        asked.append(data)
        return real(with_flag(data, netlink.DUMP_INTERRUPTED) if len(asked) < 3 else data, may_change=may_change)

    monkeypatch.setattr(netlink, "messages_of", interrupted)
    assert nftables_netlink.chains(Family.IPV4, "t") == {"c": False}
    monkeypatch.setattr(nftables_netlink, "ATTEMPTS", 1)
    asked.clear()
    with pytest.raises(Unavailable, match="changed 1 times"):
        nftables_netlink.chains(Family.IPV4, "t")


def test_a_machine_without_nftables(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the socket is told in the system's words."""

    def refuse(*_: object) -> object:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(Unavailable, match="can't be reached: Protocol not supported"):
        nftables_netlink.generation()


def test_families_that_the_kernel_has_and_one_that_it_has_not() -> None:
    """Each is found by asking for a table, which leaves none behind, and makes no commit."""
    before = nftables_netlink.generation()
    decnet = 12  # NFPROTO_DECNET, which nftables has never had
    found = [nftables_netlink.has_family(number) for number in (*netlink.FAMILY_NUMBER.values(), decnet)]
    assert found == [True, True, False]
    assert nftables_netlink.generation() == before
    assert nftables_netlink.table_comment(Family.IPV4, "nftproxy-probe") is None


def test_a_kernel_without_ipv6_in_nftables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the other family is served; without any answer, both are tried."""
    monkeypatch.setitem(netlink.FAMILY_NUMBER, Family.IPV6, 12)
    assert nftables_netlink.families() == [Family.IPV4]
    monkeypatch.setitem(netlink.FAMILY_NUMBER, Family.IPV4, 12)
    assert nftables_netlink.families() == [Family.IPV4, Family.IPV6]


def test_families_without_permission(as_nobody: Run) -> None:
    """What can't be found out counts as there: the load says what is wrong."""
    assert as_nobody("from nftproxy.kernel import nftables_netlink; print(len(nftables_netlink.families()))") == "2\n"


def test_base_chains_of_others() -> None:
    """Every base chain of inet, ip and ip6 is there with its hook and policy; other chains and families are not."""
    hooks = {"a": ("inet", "forward", "drop"), "b": ("ip", "prerouting", "accept"), "c": ("ip6", "postrouting", "drop")}
    for name, (family, hook, policy) in hooks.items():
        base = f"  chain base {{\n    type filter hook {hook} priority 0; policy {policy};\n  }}\n"
        Kernel().apply(Transaction(f"table {family} {name} {{\n  chain plain {{\n  }}\n{base}}}\n"))
    Kernel().apply(Transaction("add table bridge other\n"))
    expected = [
        BaseChain(family, name, "base", hook, policy == "drop") for name, (family, hook, policy) in hooks.items()
    ]
    assert nftables_netlink.base_chains() == expected
    assert nftables_netlink.tables() == ["inet a", "ip b", "ip6 c"]
