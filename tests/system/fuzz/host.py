"""A node's nftables to try things on, and everything that our tables hold there.

`Kernel.read_back` and `Kernel.elements` return the facts that a proxy needs.  Here is more: each set, map and chain
as nft prints it.  nft does not print rules as templates write them, so the printed form of a declaration is
learnt by loading it into an empty namespace (`Printed`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import NamedTuple, Self

from nftproxy_conformance.lab.namespace import Namespace

from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Declaration, Element, NftKind
from nftproxy.rules.transaction import Installed, Transaction, join

Identity = tuple[NftKind, str]

_CONTAINER = re.compile(r"^\t(set|map|chain) (\S+) \{(?: # handle \d+)?\n(.*?)^\t\}\n", re.MULTILINE | re.DOTALL)
_ELEMENTS = re.compile(r"^\t\telements = \{ (.*?) \}\n", re.MULTILINE | re.DOTALL)
_BETWEEN = re.compile(r",\s+")
_COUNT = re.compile(r"\s+# count \d+")  # nft 1.1.7 says so of sets that packets write
_COMPATIBLE = re.compile(r"::\d+\.\d+\.\d+\.\d+")  # as nft writes numbers from 65,536 on: glibc does
_LIFETIME = re.compile(r" (?:timeout|expires) \w+")


class Contents(NamedTuple):
    """All contents of one of our tables, as nft prints it.

    `declared` has the text of each set, map and chain, less elements.  `elements` are those of sets and maps that
    packets don't write.  `remembered` are the elements that packets write, less their lifetimes.  `rest` is the
    remaining text: the table's flags and comment, and additions of other programs.
    """

    declared: Mapping[Identity, str]
    elements: frozenset[Element]
    remembered: frozenset[Element]
    rest: str

    @classmethod
    def of(cls, listing: str) -> Self:
        """The contents of a listing."""
        declared: dict[Identity, str] = {}
        elements: list[Element] = []
        remembered: list[Element] = []
        for kind, name, body in _CONTAINER.findall(_COUNT.sub("", listing)):
            declared[NftKind(kind), name] = text = body if kind == "chain" else _ELEMENTS.sub("", body)
            if text is not body and (found := _ELEMENTS.search(body)):
                held = remembered if "flags dynamic" in text else elements
                held += (_element(name, each) for each in _BETWEEN.split(found[1]))
        return cls(declared, frozenset(elements), frozenset(remembered), " ".join(_CONTAINER.sub("", listing).split()))


def _element(container: str, text: str) -> Element:
    key, _, value = _COMPATIBLE.sub(_as_python_writes, _LIFETIME.sub("", text)).partition(" : ")
    return Element(container, key, value)


def _as_python_writes(found: re.Match[str]) -> str:
    return str(IPv6Address(found[0]))


class Host:
    """A network namespace, and the kernel side in it: nothing here ever touches the machine's own rules."""

    def __init__(self) -> None:
        self._namespace = Namespace("fuzz")
        self._kernel = Kernel()

    def close(self) -> None:
        """Give the namespace back."""
        self._namespace.close()

    def apply(self, transaction: Transaction) -> None:
        """See `Kernel.apply`."""
        self._namespace.call(self._kernel.apply, transaction)

    def check(self, transaction: Transaction) -> None:
        """See `Kernel.check`."""
        self._namespace.call(self._kernel.check, transaction)

    def installed(self) -> dict[Family, Installed | None]:
        """The state that a proxy reads before it loads everything."""
        return {family: self._namespace.call(self._kernel.read_back, family) for family in Family}

    def compared(self, made: Pipeline) -> dict[Family, Installed | None]:
        """The same, with the differences in tables that a load leaves in place, as an agent reads them."""
        found = self.installed()
        for family, installed in found.items():
            generation = made.refilled(family, installed)
            if installed and generation:
                found[family] = self._namespace.call(self._kernel.compare, installed, generation)
        return found

    def elements(self, family: Family) -> frozenset[Element]:
        """See `Kernel.elements`."""
        return self._namespace.call(self._kernel.elements, family)

    def contents(self, family: Family) -> Contents:
        """Everything in our table."""
        return Contents.of(self._namespace.call(self._kernel.listing, family))

    def version(self) -> str:
        """The version of libnftables."""
        return self._namespace.call(self._kernel.version)


class Printed:
    """How nft prints declarations and the text around them: learnt by loading them into a namespace of its own."""

    def __init__(self) -> None:
        self._host = Host()
        self._texts: dict[tuple[Family, Declaration], str] = {}

    def close(self) -> None:
        """Give the namespace back."""
        self._host.close()

    def declared(self, pipeline: Pipeline, family: Family) -> dict[Identity, str]:
        """The text of each set, map and chain that a pipeline uses."""
        used = pipeline.generations[family].used_declarations()
        if any((family, each) not in self._texts for each in used.values()):
            self._learn(pipeline)
        return {identity: self._texts[family, each] for identity, each in used.items()}

    def get(self, family: Family, declaration: Declaration) -> str | None:
        """The text of a declaration that was seen before."""
        return self._texts.get((family, declaration))

    def _learn(self, pipeline: Pipeline) -> None:
        empty = Transaction("".join(f"add table {f.table}\ndelete table {f.table}\n" for f in Family))
        self._host.apply(join([empty, pipeline.full_transaction({})]))
        for family, generation in pipeline.generations.items():
            found = self._host.contents(family)
            assert found.declared.keys() == generation.declarations.keys()
            for identity, declaration in generation.declarations.items():
                self._texts[family, declaration] = found.declared[identity]
