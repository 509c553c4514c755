"""Advice on modules that a node lacks and loads none of on demand."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nftproxy.kernel.capabilities import FEATURES, declare
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import modules
from nftproxy.kernel.nfnetlink.modules import advice, advice_on
from nftproxy.model.errors import Refused
from nftproxy.rules.transaction import Transaction

NUMGEN = (
    ": unless the kernel has nft_numgen built in, run `modprobe nft_numgen` on the node, and write the line nft_numgen "
    "into /etc/modules-load.d/nftproxy.conf for each boot"
)


@pytest.fixture(autouse=True)
def present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of loaded modules, of which there are none."""
    monkeypatch.setattr(modules, "_PRESENT", tmp_path)
    return tmp_path


def needed(statement: str) -> list[str]:
    """The modules that the advice on a statement names."""
    return advice_on(statement).partition("run `modprobe ")[2].partition("`")[0].replace("--all ", "").split()


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("chain c { type nat hook prerouting priority -100", ["nft_chain_nat"]),
        ("chain c { type filter hook forward priority 0", []),
        ("chain c { numgen random mod 2 0 drop", ["nft_numgen"]),
        ("map m { typeof ip daddr : ip daddr", []),
        ("chain c { dnat ip addr . port to ip daddr map @m", ["nft_nat"]),
        ("chain c { meta mark set 1 masquerade fully-random", ["nft_masq"]),
        ("chain c { snat to 192.0.2.1", ["nft_nat"]),
        ("chain c { fib daddr type local goto d", ["nft_fib_ipv4"]),
        ("chain c { ct status dnat reject with tcp reset", ["nft_reject_ipv4", "nft_ct"]),
        ("chain c { update @s { ip saddr limit rate over 5/second } drop", ["nft_limit"]),
        ("chain c { add @s { ip saddr ct count over 5 } drop", ["nft_connlimit"]),
        ("chain c { flow add @f", ["nft_flow_offload"]),
        ('chain c { drop comment "rejects: ct count, fib"', []),
    ],
)
def test_the_words_of_a_statement_name_its_modules(rule: str, names: list[str]) -> None:
    """Each kind of expression, of statement and of chain that our rules have leads to the module that has it."""
    assert sorted(needed(f"table ip nftproxy {{ {rule}")) == sorted(names)


def test_modules_of_a_family_are_named() -> None:
    """A statement of IPv6 has IPv6's modules, and a statement without a table those of both families."""
    assert needed("table ip6 nftproxy { chain c { fib saddr type local drop") == ["nft_fib_ipv6"]
    assert needed("fib saddr type local drop") == ["nft_fib_ipv4", "nft_fib_ipv6"]
    assert needed("table inet fast { flowtable established {") == ["nf_flow_table_inet"]


def test_loaded_modules_are_not_named(present: Path) -> None:
    """The advice names only modules that aren't loaded, and there is none if all are."""
    statement = "table ip nftproxy { chain c { ct state new numgen random mod 2 0 drop"
    (present / "nft_ct").mkdir()
    assert advice_on(statement) == NUMGEN
    (present / "nft_numgen").mkdir()
    assert advice_on(statement) == ""


def test_several_modules_are_loaded_by_one_command() -> None:
    """The command for two modules, and the lines for each boot, name both."""
    assert advice_on("table ip6 t { chain c { masquerade ct count over 2") == (
        ": unless the kernel has nft_masq and nft_connlimit built in, run `modprobe --all nft_masq nft_connlimit` on "
        "the node, and write the lines nft_masq and nft_connlimit into /etc/modules-load.d/nftproxy.conf for each boot"
    )


def test_only_an_error_about_a_missing_subsystem_has_advice() -> None:
    """An error of permission has no advice."""
    assert advice(OSError(errno.EINVAL, ""), "nft_numgen") == NUMGEN
    assert advice(OSError(errno.EPERM, ""), "nft_numgen") == ""


@pytest.mark.usefixtures("namespace")
def test_a_refusal_says_which_module_to_load() -> None:
    """A rule that the kernel refuses with "No such file or directory" leads to its module, another refusal to none."""
    with pytest.raises(Refused) as caught:
        Kernel().check(Transaction("table ip t {\n  chain c {\n    numgen random mod 2 0 jump nowhere\n  }\n}\n"))
    assert caught.value.message == f"Could not process rule: No such file or directory{NUMGEN}"
    far = "ip saddr != 192.0.2.1 " * 20 + 'numgen random mod 2 0 jump nowhere comment "ct"'
    with pytest.raises(Refused) as caught:
        Kernel().check(Transaction(f"table ip t {{\n  chain c {{\n    {far}\n  }}\n}}\n"))
    assert caught.value.message == f"Could not process rule: No such file or directory{NUMGEN}"
    with pytest.raises(Refused) as caught:
        Kernel().check(Transaction("table ip t {\n  chain c {\n    numgen random mod 0 0 drop\n  }\n}\n"))
    assert "modprobe" not in caught.value.message


def test_each_feature_that_is_a_module_has_advice() -> None:
    """The features that are tried at the start, and are modules, lead to these."""
    found = {each.name: needed(f"table ip probe {{\n{each.text}") for each in FEATURES}
    assert {name for name, names in found.items() if not names} == {
        "filter chains",
        "verdict maps",
        "maps that packets write",
        "concatenations with ranges",
    }
    assert declare("chain c", "numgen random mod 2 0 drop") in {each.text for each in FEATURES}
