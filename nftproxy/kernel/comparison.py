"""What sets and maps in the kernel have beyond a generation, and a generation beyond them.

A load over rules that are in force sends this difference instead of everything: 10,000 Services with ten endpoints each
are 130,000 elements: a transaction of 17 kB instead of 5.8 MB, and two thirds of the processor time.

* What the kernel has is read ahead, while the cluster is being listed (read_ahead.py).
* Elements are compared as bytes, the kernel's with those that ours are (element_layout.py), and only what differs
  becomes text.  So whatever somebody added to an element, such as a comment, makes it another element.
* Of a set about which anything is odd nothing is returned: it is emptied and filled anew.  So are sets of ranges.
* The kernel lists a set in parts, and counts elements from its start to find where the next part begins.  If it orders
  the set anew meanwhile, an element may be missing; another one is there twice then, as all places are listed.
* That costs the square of the number of elements: 0.5 s of processor time for 100,000.  So what isn't ours
  ends the listing early, however much of it there is.
* What others change meanwhile may be seen or not.  Whoever uses the difference must know that nobody did (drift.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from nftproxy.kernel import nftables_netlink as nft
from nftproxy.kernel.element_layout import Layout
from nftproxy.kernel.elements import value_text
from nftproxy.kernel.netlink import ATTRIBUTE, attributes_of, number_of
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


Reading = Callable[[Family, str, str], Iterable[bytes]]
"""What lists a set of a table, in parts: as `set_elements.listings` does."""


def differences(generation: Generation, reading: Reading) -> dict[str, Difference]:
    """The difference of each set and map of a table of ours, by name, as far as it can be known.

    Those that packets write are left out, and so is whatever the generation doesn't declare.
    """
    found = {}
    try:
        for declared in nft.declarations(generation.family, TABLE):
            each = nft.named_set(declared)
            wanted = generation.declarations.get((Kind.MAP if each.is_map else Kind.SET, each.name))
            if wanted and not wanted.is_dynamic and nft.is_comparable(declared):
                difference = _difference(generation, each.name, declared, reading)
                if difference is not None:
                    found[each.name] = difference
    except Unavailable as error:
        log.debug("the kernel's elements can't be read, loading all of them: %(error)s", {"error": error})
    return found


def _difference(generation: Generation, name: str, declared: nft.Attributes, reading: Reading) -> Difference | None:
    ours = generation.values(name)
    try:
        layout = Layout(declared, FROM_KERNEL)
        unseen, surplus = _compared(reading(generation.family, TABLE, name), layout, ours)
        found = tuple(_element(name, each, layout, declared) for each in surplus)
        if any(ours.get(each.key) == each.value for each in found):
            raise _Odd("an element is listed twice")
        return Difference(found, tuple(Element(name, key, ours[key]) for key in unseen))
    except (Unavailable, _Odd) as error:
        log.debug("%(name)s will be filled anew: %(error)s", {"name": name, "error": error})
        return None


def _compared(
    listed: Iterable[bytes], layout: Layout, ours: Mapping[str, str]
) -> tuple[Iterable[str], Iterable[bytes]]:
    """The keys of ours that the kernel doesn't have, and its elements that aren't ours or are listed again.

    Raises:
        _Odd: one that isn't ours comes twice, or too many aren't ours.
        Unavailable: the kernel doesn't answer, or a type or an element isn't known here.
    """
    unseen = {layout.element(key, value): key for key, value in ours.items()}
    take, surplus = unseen.pop, set[bytes]()
    most = max(FEW, len(ours) // 2)
    for part in listed:
        others = [element for element in layout.elements_of(part) if take(element, None) is None]
        known = len(surplus)
        surplus.update(others)
        if len(surplus) != known + len(others):
            raise _Odd("an element is listed twice")
        if len(surplus) > most:
            raise _Odd("most of it isn't ours")
    if any(ATTRIBUTE.unpack_from(each) != (len(each), nft.LIST_ELEMENT) for each in surplus):
        raise _Odd("an element has something else, so that what follows begins in its middle")
    return unseen.values(), sorted(surplus)


def _element(name: str, whole: bytes, layout: Layout, declared: nft.Attributes) -> Element:
    """One of the kernel's elements as text; raises _Odd if that doesn't say all of it, and Unavailable."""
    parts = dict(attributes_of(whole, ATTRIBUTE.size))
    if nft.ELEMENT_KEY not in parts:
        raise _Odd("an element has no key")  # that which stands for all others
    packed = dict(attributes_of(parts[nft.ELEMENT_KEY])).get(nft.DATA_VALUE, b"")
    key = " . ".join(decoded(packed, types_of(number_of(declared[nft.SET_KEY_TYPE]))))
    element = Element(name, key, value_text(parts, declared))
    if layout.element(element.key, element.value) != whole:
        raise _Odd(f"{element.text} has something else")
    return element
