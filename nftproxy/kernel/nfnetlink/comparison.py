"""The difference between the elements in the kernel and those of a generation.

A load over rules that are in force sends this difference instead of everything. 10,000 Services with ten endpoints each
are 130,000 elements: the transaction shrinks from 5.8 MB to 17 kB, and the load takes a third of the processor time.

* The kernel's elements are read ahead, while the cluster is being listed (read_ahead.py).
* Elements are compared as bytes (element_codec.py), and only the difference becomes text. So an element with an
  addition of another program, such as a comment, is a different element.
* Of our own elements only Python's hash is kept, which has 64 bits and a secret key: two elements of 600,000 share one
  in 100 million restarts. The bytes took 10 MB more for 130,000 elements.
* For a set with anything unexpected, no difference is returned: the set is emptied and filled anew. So are sets of
  intervals.
* The kernel lists a set in parts, and counts elements from its start to find where the next part begins. If it rehashes
  the set meanwhile, an element may be missing. Then another element is listed twice, as all places are listed.
* The listing costs the square of the number of elements: 0.5 s of processor time for 100,000. So foreign elements end
  the listing early, however many there are.
* Changes of other programs meanwhile may be seen or not. The caller must know that there were none (drift.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.element_codec import ElementLayout, decoded, types_of, value_bytes, value_text
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import ATTRIBUTE, Attributes, attribute_map, number_of
from nftproxy.rules.ruleset import Element, Generation, Line
from nftproxy.rules.transaction import Difference

log = logging.getLogger(__name__)

FEW = 1_000
"""Foreign elements are deleted one by one up to this number, or up to half the size of our set if that is larger."""

FROM_KERNEL = 0
"""The mark in the kernel's listings, which don't mark attributes that hold attributes."""


class _NotComparable(Exception):
    """A set has contents that our sets never have."""


ListSet = Callable[[Family, str], Iterable[bytes]]
"""Lists a set of our table in parts, as `elements.listings` does."""


def differences(generation: Generation, reading: ListSet) -> dict[str, Difference]:
    """Return the difference of each set and map of our table, by name, as far as it can be known.

    Sets that packets write are left out, and so are sets that the generation doesn't declare.
    """
    found = {}
    try:
        for declared in nft_queries.comparable_sets(generation.family):
            each = nft_queries.named_set(declared)
            wanted = generation.declarations.get((each.kind, each.name))
            if wanted and not wanted.is_dynamic:
                difference = _difference(generation, each.name, declared, reading)
                if difference is not None:
                    found[each.name] = difference
    except Unavailable as error:
        log.debug("the kernel's elements can't be read, loading all of them: %(error)s", {"error": error})
    return found


def _difference(generation: Generation, name: str, declared: Attributes, reading: ListSet) -> Difference | None:
    ours = generation.lines_of(name)
    try:
        layout = ElementLayout(declared, FROM_KERNEL)
        unseen, surplus = _compared(reading(generation.family, name), layout, ours)
        found = tuple(_element(name, each, layout, declared) for each in surplus)
        if any(each.line in ours for each in found):
            raise _NotComparable("an element is listed twice")
        return Difference(found, tuple(map(Element.of, unseen)))
    except (Unavailable, _NotComparable) as error:
        log.debug("%(name)s will be filled anew: %(error)s", {"name": name, "error": error})
        return None


def _compared(
    listed: Iterable[bytes], layout: ElementLayout, ours: Collection[Line]
) -> tuple[Iterable[Line], Iterable[bytes]]:
    """Return our elements that the kernel lacks, and the kernel's elements that are foreign or listed again.

    Raises:
        _NotComparable: a foreign element is listed twice, or too many are foreign.
        Unavailable: the kernel doesn't answer, or a type or an element is unknown.
    """
    unseen = {hash(_packed(line, layout)): line for line in ours}
    take, surplus = unseen.pop, set[bytes]()
    most = max(FEW, len(ours) // 2)
    for part in listed:
        others = [element for element in layout.elements_of(part) if take(hash(element), None) is None]
        known = len(surplus)
        surplus.update(others)
        if len(surplus) != known + len(others):
            raise _NotComparable("an element is listed twice")
        if len(surplus) > most:
            raise _NotComparable("most of it isn't ours")
    if any(ATTRIBUTE.unpack_from(each) != (len(each), nft.LIST_ELEMENT) for each in surplus):
        raise _NotComparable("an element is longer than ours")
    return unseen.values(), sorted(surplus)


def _packed(line: Line, layout: ElementLayout) -> bytes:
    key, _, value = line.partition(" ")[2].partition(" : ")
    return layout.element(key, value)


def _element(name: str, whole: bytes, layout: ElementLayout, declared: Attributes) -> Element:
    """Return an element of the kernel as text.

    Raises:
        _NotComparable: the element has a part that our text can't express.
        Unavailable: its type is unknown.
    """
    parts = attribute_map(whole, ATTRIBUTE.size)
    if nft.ELEMENT_KEY not in parts:
        raise _NotComparable("an element has no key")  # the catch-all element
    key_types = types_of(number_of(declared[nft.SET_KEY_TYPE]))
    key = " . ".join(decoded(value_bytes(parts[nft.ELEMENT_KEY]), key_types))
    element = Element(name, key, value_text(parts, declared))
    if layout.element(element.key, element.value) != whole:
        raise _NotComparable(f"{element.text} differs from its text")
    return element
