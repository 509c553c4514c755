"""Load a ruleset where it does no harm: in a network namespace of its own."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import msgspec

from nftproxy.kernel.child_process import ChildDied, in_scratch_namespace
from nftproxy.kernel.libnftables import Kernel, TooLarge
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Refused
from nftproxy.rules.ruleset import NftKind
from nftproxy.rules.transaction import Transaction

ELEMENTS_PER_PIECE = 1000  # a fifth of a user namespace's limit for a transaction, as tried
_ELEMENTS = r"^ *elements = \{\n(.*?)^ *\}\n"
ELEMENTS = re.compile(_ELEMENTS, re.MULTILINE | re.DOTALL)
_CONTAINERS = re.compile(rf"^table (\S+ \S+) \{{$|^ *(?:set|map) (\S+) \{{$|{_ELEMENTS}", re.MULTILINE | re.DOTALL)


class CheckResult(msgspec.Struct, frozen=True):
    """The result of loading a ruleset.

    `message` and `statement` name the refused statement, "" if none was refused.  The counts are of our tables, and
    `elements` counts sets and maps that packets don't write.  `seconds` is the time of the first load.
    """

    ok: bool
    message: str = ""
    statement: str = ""
    sets: int = 0
    maps: int = 0
    chains: int = 0
    elements: int = 0
    seconds: float = 0.0
    kernel: str = ""
    libnftables: str = ""

    def __str__(self) -> str:
        by = f"libnftables {self.libnftables} on Linux {self.kernel}"
        if not self.ok:
            return f"{Code.RULES_REFUSED}: refused by {by}: {Refused(self.message, self.statement)}"
        counts = f"{self.sets} sets, {self.maps} maps, {self.chains} chains, {self.elements} elements"
        return f"loaded in {self.seconds:.2f} s by {by}: {counts}"


def check_ruleset(text: str) -> CheckResult:
    """Load nft text into an empty network namespace twice, and return the result on this machine.

    The second load is needed because nft 1.0.6 accepts some maps when they are new and refuses every later rule that
    uses them.  Users without root can do this if they may make namespaces.  Blocks: an asynchronous caller uses a
    thread.

    Raises:
        Unavailable: there is no libnftables, or no way to make a namespace.
    """
    try:
        return in_scratch_namespace(load, text)
    except ChildDied as error:
        version = in_scratch_namespace(libnftables_version)
        return CheckResult(ok=False, message=str(error), kernel=os.uname().release, libnftables=version)


def libnftables_version() -> str:
    """Return the version of the library, in the namespace that this runs in.

    Raises:
        Unavailable: there is no libnftables, or no permission.
    """
    return Kernel().version()


def load(text: str) -> CheckResult:
    """Load nft text twice into the network namespace that this runs in, which should be empty.

    Raises:
        Unavailable: there is no libnftables, or no permission.
    """
    kernel = Kernel()
    result = CheckResult(ok=False, kernel=os.uname().release, libnftables=libnftables_version())
    try:
        started = time.perf_counter()
        _apply(kernel, text)
        seconds = time.perf_counter() - started
        found = _counted(kernel, result)
    except Refused as error:
        return msgspec.structs.replace(result, message=error.message, statement=error.statement)
    try:
        _apply(kernel, text)
    except Refused as error:
        message = f"loaded, but not a second time: {error.message}"
        return msgspec.structs.replace(found, message=message, statement=error.statement, seconds=seconds)
    return msgspec.structs.replace(found, ok=True, seconds=seconds)


def _apply(kernel: Kernel, text: str) -> None:
    """Apply the text in one transaction, or in several if users may send only small transactions."""
    try:
        kernel.apply(Transaction(text))
    except TooLarge:
        for piece in pieces(text):
            kernel.apply(Transaction(piece))


def pieces(text: str) -> Iterator[str]:
    """Yield the text in small parts: first all statements but elements, then the elements, some at a time.

    Elements are found where `render` writes them, each on its own line between `elements = {` and `}`.
    """
    yield ELEMENTS.sub("", text)
    table = container = ""
    for opened_table, opened_container, elements in _CONTAINERS.findall(text):
        table, container = opened_table or table, opened_container or container
        lines = elements.splitlines(keepends=True)
        for start in range(0, len(lines), ELEMENTS_PER_PIECE):
            some = "".join(lines[start : start + ELEMENTS_PER_PIECE])
            yield f"add element {table} {container} {{\n{some}}}\n"


def _counted(kernel: Kernel, result: CheckResult) -> CheckResult:
    installed = [found for family in Family if (found := kernel.read_back(family))]
    kinds = [container.kind for each in installed for container in each.containers]
    return msgspec.structs.replace(
        result,
        sets=kinds.count(NftKind.SET),
        maps=kinds.count(NftKind.MAP),
        chains=kinds.count(NftKind.CHAIN),
        elements=sum(len(kernel.elements(family)) for family in Family),
    )
