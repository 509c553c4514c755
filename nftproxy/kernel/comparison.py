"""What sets and maps in the kernel have beyond a generation, and a generation beyond them.

A load over rules that are in force sends this difference instead of everything: 10,000 Services with ten endpoints each
are 130,000 elements: a transaction of 17 kB instead of 5.8 MB, and two thirds of the processor time.

* Elements are compared as bytes, the kernel's with those that ours are (element_layout.py), and only what differs
  becomes text.  So whatever somebody added to an element, such as a comment, makes it another element.
* Of a set about which anything is odd nothing is returned: it is emptied and filled anew.  So are sets of ranges.
* The kernel lists a set in parts, and counts elements from its start to find where the next part begins.  If it orders
  the set anew meanwhile, an element may be missing; another one is there twice then, as all places are listed.
* That costs the square of the number of elements, a little: 0.4 s of processor time for 100,000.  So what isn't ours
  ends the listing early, however much of it there is.
* What others change meanwhile may be seen or not.  Whoever uses the difference must know that nobody did (drift.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from nftproxy.kernel import nftables_netlink as nft
from nftproxy.kernel.element_layout import Layout
from nftproxy.kernel.elements import value_text
from nftproxy.kernel.netlink import ATTRIBUTE, attributes_of, number_of
from nftproxy.kernel.set_elements import items
from nftproxy.kernel.set_keys import decoded, types_of
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.ruleset import Element, Generation, Kind
from nftproxy.rules.transaction import Difference

log = logging.getLogger(__name__)

FEW = 1_000
"""Elements of the kernel's that aren't ours, up to which they are worth deleting one by one; in a larger set of ours,
up to half as many as it has."""

FROM_KERNEL = 0
"""How the kernel marks attributes that hold others: not at all."""


class _Odd(Exception):
    """A set isn't as ours are."""


def differences(generation: Generation) -> dict[str, Difference]:
    """The difference of each set and map of a table of ours, by name, as far as it can be known.

    Those that packets write are left out, and so is whatever the generation doesn't declare.
    """
    found = {}
    try:
        for declared in nft.declarations(generation.family, TABLE):
            each = nft.named_set(declared)
            wanted = generation.declarations.get((Kind.MAP if each.is_map else Kind.SET, each.name))
            if wanted and not wanted.is_dynamic and not each.is_dynamic:
                difference = _difference(generation, each.name, declared)
                if difference is not None:
                    found[each.name] = difference
    except Unavailable as error:
        log.debug("the kernel's elements can't be read, loading all of them: %(error)s", {"error": error})
    return found


def _difference(generation: Generation, name: str, declared: nft.Attributes) -> Difference | None:
    ours = generation.values(name)
    try:
        layout = Layout(declared, FROM_KERNEL)
        unseen, surplus = _compared(generation.family, name, layout, ours)
        missing = tuple(Element(name, key, ours[key]) for key in unseen)
        return Difference(tuple(_element(name, each, layout, declared) for each in surplus), missing)
    except (Unavailable, _Odd) as error:
        log.debug("%(name)s will be filled anew: %(error)s", {"name": name, "error": error})
        return None


def _compared(family: Family, name: str, layout: Layout, ours: Mapping[str, str]) -> tuple[Iterator[str], list[bytes]]:
    """The keys of ours that the kernel doesn't have, and its elements that aren't ours.

    Raises:
        _Odd: one comes twice, or too many aren't ours.
        Unavailable: the kernel doesn't answer, or a type isn't known here.
    """
    wanted: dict[bytes, str | None] = {layout.element(key, value)[ATTRIBUTE.size :]: key for key, value in ours.items()}
    surplus = set[bytes]()
    most = max(FEW, len(ours) // 2)
    for part in items(family, TABLE, name):
        for item in part:
            if wanted.get(item) is not None:
                wanted[item] = None
            elif item in wanted or item in surplus:
                raise _Odd("an element is listed twice")
            else:
                surplus.add(item)
        if len(surplus) > most:
            raise _Odd("most of it isn't ours")
    return (key for key in wanted.values() if key is not None), sorted(surplus)


def _element(name: str, item: bytes, layout: Layout, declared: nft.Attributes) -> Element:
    """One of the kernel's elements as text; raises _Odd if that doesn't say all of it, and Unavailable."""
    parts = dict(attributes_of(item))
    if nft.ELEMENT_KEY not in parts:
        raise _Odd("an element has no key")  # that which stands for all others
    packed = dict(attributes_of(parts[nft.ELEMENT_KEY])).get(nft.DATA_VALUE, b"")
    key = " . ".join(decoded(packed, types_of(number_of(declared[nft.SET_KEY_TYPE]))))
    element = Element(name, key, value_text(parts, declared))
    if layout.element(element.key, element.value)[ATTRIBUTE.size :] != item:
        raise _Odd(f"{element.text} has something else")
    return element
