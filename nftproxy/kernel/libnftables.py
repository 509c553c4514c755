"""The kernel's side of a transaction: the only module that uses libnftables.

Few calls, values in and values out, so that all of this can move into a child process that may die.

Invariants:

* A transaction is one call, so it happens as a whole or not at all.  It is handed over as a file in memory and not as a
  buffer, since only then does libnftables report the line: of a buffer it shows the first line, whichever was wrong.
* A transaction of elements alone doesn't need the library (element_batch.py), unless the kernel refuses it.
* Only our own table is ever named.  The kernel itself is asked what the table holds (nftables_netlink.py says why).
* libnftables opens its netlink socket when its context is made, in the namespace of the thread that makes it, and the
  context stays there.  So the threads that share a `Kernel` must be in one network namespace, and stay in it.
* One context serves one caller at a time (a lock), and the interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec

from nftproxy.kernel import memory, nftables_netlink
from nftproxy.kernel.comparison import differences
from nftproxy.kernel.diagnostics import explain
from nftproxy.kernel.element_batch import MOST_CHARACTERS, ElementWriter
from nftproxy.kernel.netlink import open_socket
from nftproxy.kernel.netns import ChildDied, in_child
from nftproxy.kernel.read_ahead import ReadAhead
from nftproxy.kernel.worker import Worker
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import NftproxyError, Refused, Unavailable
from nftproxy.rules.ruleset import Element, Generation, Kind
from nftproxy.rules.transaction import Commit, Container, Installed, Transaction

# libnftables takes some 45 bytes per byte of text, and glibc keeps them: 200 MB after 130,000 elements.  Giving them
# back costs 1 ms here and 20 ms after 4 MB, 2 % of what the transaction itself takes.
TRIM_CHARACTERS = 256 * 1024

INET_PROTOCOL = 12  # TYPE_INET_PROTOCOL: nft's number of the type inet_proto
TYPE_BITS = 6  # of each part's type number in a concatenation's
PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}  # IANA's numbers, so that /etc/protocols needn't be there

LIKELY_CAUSE = "libnftables can't read what is in the kernel, most likely a table that a newer nft has made"
"""What the library dies of: 1.0.6 of any set that 1.1.2 or later has declared by `type`, whosever it is."""

BRIEF = 0.005
"""Seconds for which a small transaction may hold up the event loop.  A single change takes a tenth of that, unless
other programs hold the kernel's lock: whoever asks for /healthz doesn't wait for them."""

NO_FILE = -1
"""The number of no file descriptor."""

Nftables = Any  # the binding has no annotations


class TooLarge(Unavailable):
    """More than this process may send in one message; nothing happened.

    Only without CAP_NET_ADMIN in the machine's first user namespace, where net.core.wmem_default is the limit: some
    5,000 elements.
    """


class _Tools:
    """What a transaction needs of the process's file descriptors, all of it opened before.

    `asking` is a socket to ask the kernel by, the context has a socket of its own, and libnftables reads `file`.  It
    opens that once more, so a spare descriptor is closed meanwhile.
    """

    def __init__(self) -> None:
        self._spare = NO_FILE
        with contextlib.ExitStack() as stack:
            self.asking = stack.enter_context(open_socket())
            self.elements = ElementWriter(self.asking)
            self.file = stack.enter_context(os.fdopen(os.memfd_create("nftproxy"), "wb", buffering=0))
            stack.callback(self._close_spare)
            self._spare = _open_spare()
            self._stack = stack.pop_all()
        self._context: Nftables = None

    @property
    def context(self) -> Nftables:
        """The context of libnftables."""
        self._context = self._context or _new_context()
        return self._context

    def close(self) -> None:
        """Close them all."""
        self._stack.close()

    @contextlib.contextmanager
    def one_file_more(self) -> Iterator[None]:
        """Around a call that opens a file and closes it again."""
        self._close_spare()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # somebody else was quicker; next time there may be one
                self._spare = _open_spare()

    def _close_spare(self) -> None:
        if self._spare != NO_FILE:
            os.close(self._spare)
            self._spare = NO_FILE


def _open_spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class Kernel:
    """nftables in the network namespace of the threads that call.

    Whatever the system refuses it, such as a file descriptor, is raised as Unavailable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tools: _Tools | None = None
        self._ahead = ReadAhead()

    def __del__(self) -> None:
        if self._tools is not None:
            self._tools.close()

    def prepare(self) -> None:
        """Open what transactions need, so that it is there whatever else the process opens later.

        Raises:
            Unavailable: there is no libnftables, or no permission.
        """
        with self._lock, _unavailable():
            self._tools = self._tools or _Tools()
            _ = self._tools.context

    def apply(self, transaction: Transaction) -> Commit:
        """Make the transaction happen, as a whole; the generations before and after it.

        Raises:
            Refused: nothing of it happened; the error names the statement at fault.
            TooLarge: nothing of it happened; the machine's own root has no such limit.
            Unavailable: there is no libnftables, no permission, or no way to know whether it happened.
        """
        self._ahead.forget()
        with self._lock, _unavailable():
            # What failed is not used again: answers may be waiting in a socket.
            tools, self._tools = self._tools or _Tools(), None
            try:
                commit = tools.elements.apply(transaction.text) or _through_library(tools, transaction.text)
            except BaseException:
                tools.close()
                raise
            self._tools = tools
        if len(transaction.text) >= TRIM_CHARACTERS:
            memory.give_back()
        return commit

    def generation(self) -> int:
        """The number of the ruleset's generation.

        Raises:
            Unavailable: no permission.
        """
        return nftables_netlink.generation()

    def check(self, transaction: Transaction) -> None:
        """Let libnftables and the kernel try the transaction, and take it back.

        libnftables sends the whole batch but for its last message, so the kernel prepares and validates every command
        and drops them all (tried on 6.18): syntax, types, names, duplicates, loops of chains and missing features are
        found, at the cost of applying.  What it can't foresee is what changes before the transaction is applied.

        Raises:
            Refused: as `apply` would.
            Unavailable: there is no libnftables, or no permission.
        """
        if not transaction:
            return
        with self._lock, _unavailable(), contextlib.closing(_Tools()) as tools:
            tools.context.set_dry_run(True)  # it is its own, so that no later transaction is a dry run by mistake
            _commit(tools.context, tools, transaction.text)

    def read_back(self, family: Family) -> Installed | None:
        """What is there of our table, by name only; None if there is no table.

        Raises:
            Unavailable: no permission.
        """
        comment = nftables_netlink.table_comment(family, TABLE)
        if comment is None:
            return None
        chains = nftables_netlink.chains(family, TABLE)
        containers = [Container(Kind.CHAIN, name) for name in chains]
        containers += [
            Container(_kind(each), each.name, each.is_dynamic) for each in nftables_netlink.sets(family, TABLE)
        ]
        in_order = tuple(sorted(containers, key=lambda c: (c.kind.value, c.name)))
        return Installed(_shape(comment), in_order, any(chains.values()))

    def read_ahead(self, families: Iterable[Family]) -> None:
        """Read what `compare` will need, in as much time as the kernel takes; `apply` ends what it is good for."""
        self._ahead.read(families)

    def compare(self, installed: Installed, generation: Generation) -> Installed:
        """The same table with what its sets and maps differ in from a generation, as far as that can be known.

        It takes a quarter of a second for 130,000 elements that were read ahead, and else a second, in which Python's
        lock is free now and then.
        """
        return msgspec.structs.replace(installed, differences=differences(generation, self._ahead.listings))

    def client_counts(self, family: Family) -> dict[str, int]:
        """How many clients the maps of session affinity have, by name, as far as the kernel reports it.

        Raises:
            Unavailable: no permission.
        """
        found = nftables_netlink.sets(family, TABLE)
        return {each.name: each.count for each in found if each.is_map and each.is_dynamic and each.count is not None}

    def elements(self, family: Family) -> frozenset[Element]:
        """Every element of our table's sets and maps, except dynamic ones, in the text that `Element` has.

        One listing per set, so two sets may be of different generations.  A range that is a prefix, and a prefix that
        is one address, read back as the kernel holds them: as prefix, and as address.  Takes 2 s for 100,000.

        Raises:
            Refused: a set went away meanwhile.
            Unavailable: there is no libnftables, or no permission.
        """
        found: list[Element] = []
        for each in nftables_netlink.sets(family, TABLE):
            if not each.is_dynamic:
                kind = _kind(each).value
                (listed,) = self._listed(f"list {kind} {family.table} {each.name}")
                found += (_element(each, entry) for entry in listed[kind].get("elem", ()))
        memory.give_back()
        return frozenset(found)

    def listing(self, family: Family) -> str:
        """Our whole table as nft prints it, for people and tests.

        Raises:
            Refused: there is no table.
            Unavailable: there is no libnftables, or no permission.
        """
        return self._ask(f"list table {family.table}", as_json=False)

    def listing_of_rules(self, family: Family) -> str:
        """The same without elements, and with a handle behind each rule.

        Raises:
            Refused: there is no table.
            Unavailable: there is no libnftables, or no permission.
        """
        return self._ask(f"list table {family.table}", as_json=False, with_handles=True)

    def version(self) -> str:
        """The version of libnftables, as in "1.0.6".

        Raises:
            Unavailable: there is no libnftables, or no permission.
        """
        metainfo = msgspec.json.decode(self._ask("list chains ip", as_json=True))["nftables"][0]["metainfo"]
        return str(metainfo["version"])

    def _listed(self, command: str) -> Iterator[dict[str, Any]]:
        """The objects of a JSON listing, except the one about libnftables itself."""
        yield from msgspec.json.decode(self._ask(command, as_json=True))["nftables"][1:]

    def _ask(self, command: str, *, as_json: bool, with_handles: bool = False) -> str:
        with self._lock, _unavailable():
            context = _new_context()  # its own, so that no output flag outlives the question
            context.set_json_output(as_json)
            context.set_handle_output(with_handles)
            context.set_terse_output(with_handles)
            context.set_numeric_proto_output(as_json)
            code, output, error = context.cmd(command)
        if code:
            raise Refused(str(error).partition("\n")[0], command)
        return str(output)


class AsyncKernel:
    """A `Kernel` off the event loop: all calls run one after the other in one thread, which this makes.

    A call that is cancelled has happened or will still happen: what the kernel holds is then unknown.
    """

    def __init__(self) -> None:
        self._kernel = Kernel()
        self._worker = Worker("kernel")

    async def prepare(self) -> None:
        """See `Kernel.prepare`."""
        await self._worker.run(self._kernel.prepare)

    async def apply(self, transaction: Transaction) -> Commit:
        """See `Kernel.apply`."""
        hold_up = BRIEF if len(transaction.text) <= MOST_CHARACTERS else 0.0
        return await self._worker.run(self._kernel.apply, transaction, hold_up=hold_up)

    async def rehearse(self, transaction: Transaction) -> None:
        """Let another process check a transaction, which may die of what libnftables finds in the kernel.

        Raises:
            ChildDied: it did, and so would this process.
            Refused, Unavailable: as `Kernel.check` does, or no process can be started.
        """
        try:
            await self._worker.run(in_child, check_text, transaction.text)
        except ChildDied as error:
            raise ChildDied(f"{error}; {LIKELY_CAUSE}") from error

    async def generation(self) -> int:
        """See `Kernel.generation`."""
        return await self._worker.run(self._kernel.generation)

    async def check(self, transaction: Transaction) -> None:
        """See `Kernel.check`."""
        await self._worker.run(self._kernel.check, transaction)

    async def read_back(self, family: Family) -> Installed | None:
        """See `Kernel.read_back`."""
        return await self._worker.run(self._kernel.read_back, family)

    async def read_ahead(self, families: Collection[Family]) -> None:
        """See `Kernel.read_ahead`."""
        await self._worker.run(self._kernel.read_ahead, families)

    async def compare(self, installed: Installed, generation: Generation) -> Installed:
        """See `Kernel.compare`."""
        return await self._worker.run(self._kernel.compare, installed, generation)

    async def elements(self, family: Family) -> frozenset[Element]:
        """See `Kernel.elements`."""
        return await self._worker.run(self._kernel.elements, family)

    def close(self) -> None:
        """End the thread, after the call that it is in."""
        self._worker.close()


def check_text(text: str) -> None:
    """`Kernel.check` for another process."""
    Kernel().check(Transaction(text))


def _new_context() -> Nftables:
    binding = _binding()
    # First, because libnftables itself prints to standard error without permission and exits without a socket.
    nftables_netlink.generation()
    try:
        context = binding()
    except OSError as error:
        raise Unavailable(f"libnftables can't be loaded: {error}") from error
    if hasattr(context, "set_input_flags"):  # since 1.0.8; before, what is no address is looked up in the DNS
        context.set_input_flags("no-dns")
    return context


def _binding() -> Callable[[], Nftables]:
    """The class of libnftables' contexts; imported here so that rendering needs no library."""
    try:
        from nftables import Nftables as Binding
    except ImportError as error:
        raise Unavailable(
            "Python can't import nftables: install python3-nftables, and make environments with --system-site-packages"
        ) from error
    if not hasattr(Binding, "set_dry_run"):
        raise Unavailable("this nftables module is an old copy (pip-nftables): install python3-nftables instead")
    return Binding  # type: ignore[no-any-return]


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    """Raise Unavailable for what the system refuses."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the system doesn't allow it: {error.strerror or error}") from error


def _through_library(tools: _Tools, text: str) -> Commit:
    tools.elements.forget()
    before = nftables_netlink.generation_by(tools.asking)
    if text:
        _commit(tools.context, tools, text)
    return Commit(before, nftables_netlink.generation_by(tools.asking))


def _commit(context: Nftables, tools: _Tools, text: str) -> None:
    _fill(tools.file, text)
    path = f"/proc/self/fd/{tools.file.fileno()}"
    try:
        with tools.one_file_more():
            code, _, error = context.cmd_from_file(path)
    finally:
        _fill(tools.file, "")
    if code:
        raise _failure(text, path, error)


def _fill(file: io.RawIOBase, text: str) -> None:
    """Have a file contain a text and nothing else."""
    file.seek(0)
    file.truncate()
    rest = memoryview(text.encode())
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _failure(text: str, path: str, error: str) -> NftproxyError:
    """What to raise: refusals have a place, and what has none may be about the machine instead."""
    message, statement = explain(text, path, error)
    if os.strerror(errno.EPERM) in message:
        nftables_netlink.generation()  # raises, unless the permission is there and this table is someone's own
    if os.strerror(errno.EMSGSIZE) in message:
        return TooLarge(f"{message}: in a user namespace, net.core.wmem_default limits a transaction")
    if any(os.strerror(each) in message for each in (errno.EMFILE, errno.ENFILE)):
        return Unavailable(message)
    if os.strerror(errno.ENOBUFS) in message:
        return Unavailable(f"{message}: the kernel's answer was lost, and so whether it happened")
    return Refused(message, statement)


def _kind(named: nftables_netlink.NamedSet) -> Kind:
    return Kind.MAP if named.is_map else Kind.SET


def _shape(comment: str) -> str:
    """The second word of a comment that says "nftproxy SHAPE", else ""."""
    first, _, rest = comment.partition(" ")
    return rest if first == TABLE else ""


def _element(container: nftables_netlink.NamedSet, entry: Any) -> Element:
    key, value = entry if container.is_map else (entry, "")
    if isinstance(key, dict) and "elem" in key:  # with a counter, a timeout or a comment
        key = key["elem"]["val"]
    return Element(container.name, _text(key, container.key_type), _text(value, container.data_type))


def _text(value: Any, kind: int) -> str:
    """A key, datum or verdict of nft's JSON as nft's text; `kind` is its type number."""
    match value:
        case {"concat": parts}:
            last = len(parts) - 1
            kinds = (kind >> TYPE_BITS * (last - index) & (1 << TYPE_BITS) - 1 for index in range(len(parts)))
            return " . ".join(map(_text, parts, kinds))
        case {"prefix": {"addr": address, "len": length}}:
            return f"{_text(address, kind)}/{length}"
        case {"range": [low, high]}:
            return f"{_text(low, kind)}-{_text(high, kind)}"
        case {"goto": {"target": chain}}:
            return f"goto {chain}"
        case {"jump": {"target": chain}}:
            return f"jump {chain}"
        case dict():
            return str(next(iter(value)))  # a verdict without a chain
        case int() if kind == INET_PROTOCOL:
            return PROTOCOLS.get(value, str(value))
        case str() if ":" in value:
            return str(ipaddress.ip_address(value))  # glibc writes ::1.2.3.4 where Python writes ::102:304
        case _:
            return str(value)
