"""The kernel's side of a transaction: the only module that uses libnftables.

It has few functions, values in and values out, so that all of it can run in a child process that may die.

Invariants:

* A transaction is one call, so it happens as a whole or not at all.  It is passed as a file in memory and not as a
  buffer: libnftables reports the line of a file, but of a buffer it shows the first line, whichever was wrong.
* A transaction of elements alone doesn't need the library (element_batch.py), unless the kernel refuses it.  Of a large
  transaction the library compiles only the declarations (large_batch.py).
* Only our own table is ever named.  The kernel itself is asked for the table's contents (nft_queries.py says why).
* libnftables sees no other program's table (table_view.py), as it might crash on one.
* libnftables opens its netlink socket when its context is made, in the namespace of the calling thread, and the context
  stays there.  So the threads that share a `Kernel` must be in one network namespace, and stay in it.
* A lock admits one caller to a context at a time.  The interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from nftproxy.kernel.diagnostics import explain
from nftproxy.kernel.element_json import element_of
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.comparison import differences
from nftproxy.kernel.nfnetlink.element_batch import ElementWriter
from nftproxy.kernel.nfnetlink.large_batch import LargeBatch, cut
from nftproxy.kernel.nfnetlink.modules import reason
from nftproxy.kernel.nfnetlink.read_ahead import ReadAhead
from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.kernel.nfnetlink.table_view import TableView
from nftproxy.kernel.process_resources import trim_memory
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import NftproxyError, Refused, Unavailable
from nftproxy.rules.pieces import parts_of_declarations
from nftproxy.rules.ruleset import Element, Generation, NftKind
from nftproxy.rules.transaction import Commit, Container, Installed, Transaction

log = logging.getLogger(__name__)

# glibc keeps the memory that a large transaction took.  Giving it back costs 1 ms here and 20 ms after 4 MB, 2 % of the
# transaction's own time.
TRIM_CHARACTERS = 256 * 1024

REFUSAL = "Could not process rule"
"""libnftables' words before the kernel's error."""

EMPTY_RULESET = "flush ruleset\n"
"""The only transaction for which libnftables reads no table."""


class TooLarge(Unavailable):
    """A part of a transaction, or a dry run, is larger than this process may send in one message.

    This happens only without CAP_NET_ADMIN in the machine's first user namespace, where net.core.wmem_max is the limit:
    some 5,000 elements with the default of kernels before 6.18.
    """


class _Session:
    """Executes transactions with file descriptors that are all open before the first transaction.

    `_asking` is a socket for requests to the kernel, the context has a socket of its own, and libnftables reads
    `_file`. libnftables opens that file again, so a spare descriptor is closed meanwhile.
    """

    def __init__(self) -> None:
        self._spare: int | None = None
        with contextlib.ExitStack() as stack:
            self._asking = stack.enter_context(open_socket())
            self._elements = ElementWriter(self._asking)
            self._file = stack.enter_context(os.fdopen(os.memfd_create("nftproxy"), "wb", buffering=0))
            stack.callback(self._close_spare)
            self._open_spare()
            self._stack = stack.pop_all()
        self._view: TableView | None = None

    @property
    def view(self) -> TableView:
        """The context of libnftables, made at the first use."""
        if self._view is None:
            self._view = self._stack.enter_context(_new_view())
        return self._view

    def apply(self, text: str) -> Commit:
        """Execute a transaction, without the library if it is about elements alone."""
        return self._elements.apply(text) or self._apply_by_library(text)

    def _apply_by_library(self, text: str) -> Commit:
        self._elements.invalidate()
        before = nft_queries.generation_by(self._asking)
        commits = self.run(text) if text else 0
        after = nft_queries.generation_by(self._asking)
        return Commit(before, after, commits if after != before else 0)  # emptying an empty set is no commit

    def run(self, text: str, *, is_trial: bool = False) -> int:
        """Execute a text, and return how many commits that takes.  Raises the exceptions of `_error`."""
        batch = self._batch(text)
        if batch:
            return self._send(batch, is_trial=is_trial)
        self._run_by_library(text, is_trial=is_trial)
        return 1

    def _batch(self, text: str) -> LargeBatch | None:
        """Return a transaction with long commands as a batch, None if libnftables must execute all of it."""
        transaction = cut(text)
        if not transaction.commands:
            return None
        try:
            return LargeBatch(transaction, self._compile, partial(nft_queries.declaration_of, self._asking))
        except Unavailable as error:
            if isinstance(error, TooLarge) and self.view.is_limited:
                raise  # libnftables can't send it either
            log.debug("libnftables executes all of a large transaction: %(error)s", {"error": error})
            return None

    def _compile(self, text: str) -> bytes:
        """Return the messages that libnftables would send.  Raises the exceptions of `_error`."""
        with self._as_file(text) as path:
            (code, _, error), messages = self.view.compile(lambda context: context.cmd_from_file(path))
        if code:
            raise _error(*explain(text, path, error))
        return messages

    def _send(self, batch: LargeBatch, *, is_trial: bool) -> int:
        commits, failure = batch.send(self.view.kernel, is_trial=is_trial)
        if failure and not failure.statement and not commits:
            self._run_by_library(batch.rest, is_trial=True)  # it names the statement, if that is refused by itself
        if failure:
            raise _error(f"{REFUSAL}: {os.strerror(failure.code)}", failure.statement)
        return commits

    def _run_by_library(self, text: str, *, is_trial: bool) -> None:
        view = self.view
        view.context.set_dry_run(is_trial)
        with self._as_file(text) as path:
            reads = text != EMPTY_RULESET
            code, _, error = view.run(lambda context: context.cmd_from_file(path), reads_tables=reads)
        if code:
            raise _error(*explain(text, path, error))

    @contextlib.contextmanager
    def _as_file(self, text: str) -> Iterator[str]:
        """Let libnftables read a text as a file, and yield its path."""
        self._fill(text)
        self._close_spare()
        try:
            yield f"/proc/self/fd/{self._file.fileno()}"
        finally:
            with contextlib.suppress(OSError):  # another thread took the descriptor
                self._open_spare()
            self._fill("")

    def _fill(self, text: str) -> None:
        """Replace the contents of the file."""
        self._file.seek(0)
        self._file.truncate()
        rest = memoryview(text.encode())
        while rest:
            rest = rest[self._file.write(rest) or 0 :]

    def _open_spare(self) -> None:
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def close(self) -> None:
        """Close all descriptors."""
        self._stack.close()


class Kernel:
    """nftables in the network namespace of the calling threads.

    Errors of the system, such as too many open files, are raised as Unavailable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._ahead: ReadAhead | None = None

    def __del__(self) -> None:
        # At the interpreter's end the session's thread runs no more, so waiting for it would last forever.
        if self._session is not None and not sys.is_finalizing():
            self._session.close()

    def prepare(self) -> None:
        """Open the descriptors for transactions, before the process uses up its limit.

        Raises:
            Unavailable: there is no libnftables, or no permission.
        """
        with self._lock, _unavailable():
            self._session = self._session or _Session()
            _ = self._session.view

    def apply(self, transaction: Transaction) -> Commit:
        """Execute the transaction as a whole, and return the generations before and after it.

        In a user namespace a transaction that is too large for a message goes in parts, which `Commit.count` counts.

        Raises:
            Refused: nothing of it happened, or in a user namespace some parts.  The error names the statement at fault.
            TooLarge: nothing of it happened, or some parts: a part is too large.  The machine's own root has no limit.
            Unavailable: there is no libnftables, no permission, or the outcome is unknown.
        """
        self._ahead = None
        with self._lock, _unavailable():
            try:
                commit = self._apply(transaction)
            except TooLarge:
                parts = parts_of_declarations(transaction)
                if len(parts) == 1:
                    raise
                commit = Commit.of_several([self._apply(part) for part in parts])
        if len(transaction.text) >= TRIM_CHARACTERS:
            trim_memory()
        return commit

    def _apply(self, transaction: Transaction) -> Commit:
        # A session is not used again after a failure: unread answers may be in its sockets.
        session, self._session = self._session or _Session(), None
        try:
            commit = session.apply(transaction.text)
        except BaseException:
            session.close()
            raise
        self._session = session
        return commit

    def generation(self) -> int:
        """Return the number of the ruleset's generation.

        Raises:
            Unavailable: no permission.
        """
        return nft_queries.generation()

    def check(self, transaction: Transaction) -> None:
        """Have libnftables and the kernel try the transaction, and roll it back.

        libnftables sends the whole batch but its last message, so the kernel prepares and validates every command and
        drops them all (tried on 6.18).  The check finds errors of syntax, types and names, duplicates, loops of chains
        and missing features, at the cost of applying.  It can't foresee changes before the transaction is applied.

        Raises:
            Refused: as `apply` would.
            Unavailable: there is no libnftables, or no permission.
        """
        if not transaction:
            return
        with self._lock, _unavailable(), contextlib.closing(_Session()) as session:
            session.run(transaction.text, is_trial=True)

    def read_back(self, family: Family) -> Installed | None:
        """Return the contents of our table by name only, or None if there is no table.

        Raises:
            Unavailable: no permission.
        """
        comment = nft_queries.table_comment(family, TABLE)
        if comment is None:
            return None
        chains = nft_queries.chains(family, TABLE)
        containers = [Container(NftKind.CHAIN, name) for name in chains]
        containers += [Container(each.kind, each.name, each.is_dynamic) for each in nft_queries.sets(family)]
        in_order = tuple(sorted(containers, key=lambda c: (c.kind.value, c.name)))
        return Installed(_shape(comment), in_order, any(chains.values()))

    def read_ahead(self, families: Iterable[Family]) -> None:
        """Read the elements that `compare` will need.  Blocks meanwhile.  `apply` invalidates them."""
        self._ahead = ReadAhead()
        self._ahead.read(families)

    def compare(self, installed: Installed, generation: Generation) -> Installed:
        """Return `installed` with the differences of its sets and maps from a generation, as far as they are known.

        This takes a quarter of a second for 130,000 elements that were read ahead, and otherwise a second, in which
        Python's lock is free now and then.
        """
        ahead = self._ahead or ReadAhead()
        return msgspec.structs.replace(installed, differences=differences(generation, ahead.listings))

    def client_counts(self, family: Family) -> dict[str, int]:
        """Return the number of clients in each map of session affinity, by name, if the kernel reports it.

        Raises:
            Unavailable: no permission.
        """
        found = nft_queries.sets(family)
        return {each.name: each.count for each in found if each.is_map and each.is_dynamic and each.count is not None}

    def elements(self, family: Family) -> frozenset[Element]:
        """Return every element of our table's sets and maps, except dynamic ones, in the text of `Element`.

        Each set is listed by itself, so two sets may be of different generations.  A range that
        forms a prefix comes as a prefix, and a prefix of a single address as an address.  This takes 2 s for 100,000
        elements.

        Raises:
            Refused: a set was deleted meanwhile.
            Unavailable: there is no libnftables, or no permission.
        """
        found: list[Element] = []
        for each in nft_queries.sets(family):
            if not each.is_dynamic:
                kind = each.kind.value
                answer = self._ask(f"list {kind} {family.table} {each.name}", as_json=True)
                listed = msgspec.json.decode(answer)["nftables"][1][kind]
                found += (element_of(each, entry) for entry in listed.get("elem", ()))
        trim_memory()
        return frozenset(found)

    def listing(self, family: Family) -> str:
        """Return our whole table as nft prints it.

        Raises:
            Refused: there is no table.
            Unavailable: there is no libnftables, or no permission.
        """
        return self._ask(f"list table {family.table}", as_json=False)

    def listing_of_rules(self, family: Family) -> str:
        """Return our whole table as nft prints it, without elements, and with a handle behind each rule.

        Raises:
            Refused: there is no table.
            Unavailable: there is no libnftables, or no permission.
        """
        return self._ask(f"list table {family.table}", as_json=False, with_handles=True)

    def version(self) -> str:
        """Return the version of libnftables, as in "1.0.6".

        Raises:
            Unavailable: there is no libnftables, or no permission.
        """
        metainfo = msgspec.json.decode(self._ask("list chains ip", as_json=True))["nftables"][0]["metainfo"]
        return str(metainfo["version"])

    def _ask(self, command: str, *, as_json: bool, with_handles: bool = False) -> str:
        # A context of its own, so that no output flag outlives the listing.
        with self._lock, _unavailable(), _new_view() as view:
            view.context.set_json_output(as_json)
            view.context.set_handle_output(with_handles)
            view.context.set_terse_output(with_handles)
            view.context.set_numeric_proto_output(as_json)
            code, output, error = view.run(lambda context: context.cmd(command))
        if code:
            raise Refused(str(error).partition("\n")[0], command)
        return str(output)


def check_text(text: str) -> None:
    """Make a dry run of a transaction's text.  A child process calls this."""
    Kernel().check(Transaction(text))


def _new_view() -> TableView:
    binding = _binding()
    # First, because libnftables itself prints to standard error without permission and exits without a socket.
    nft_queries.generation()
    try:
        view = TableView(binding)
    except OSError as error:
        raise Unavailable(f"libnftables can't be loaded: {error}") from error
    except AttributeError as error:  # a function that the library lacks
        raise Unavailable(f"libnftables is older than the nftables module of Python: {error}") from error
    if hasattr(view.context, "set_input_flags"):  # since 1.0.8. Before, nft looks up host names in the DNS
        view.context.set_input_flags("no-dns")
    return view


def _binding() -> Callable[[], Any]:
    """Return the class of libnftables' contexts.  It is imported here so that rendering needs no library."""
    try:
        from nftables import Nftables as Binding
    except ImportError as error:
        raise Unavailable(
            "Python can't import nftables: install python3-nftables, and make environments with --system-site-packages"
        ) from error
    if not hasattr(Binding, "set_dry_run"):  # since 1.0.3
        raise Unavailable("this nftables module is too old: install nft 1.0.6 or later, and its own python3-nftables")
    return Binding  # type: ignore[no-any-return]


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    """Raise Unavailable for an error of the system."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the system doesn't allow it: {reason(error, 'nf_tables')}") from error


def _error(message: str, statement: str) -> NftproxyError:
    """Return the error to raise.  Without a statement at fault, the machine may be the cause."""
    if os.strerror(errno.EPERM) in message:
        nft_queries.generation()  # raises, unless the permission is there and another program owns the table
    if os.strerror(errno.EMSGSIZE) in message:
        return TooLarge(f"{message}: in a user namespace, net.core.wmem_max limits a transaction")
    if any(os.strerror(each) in message for each in (errno.EMFILE, errno.ENFILE)):
        return Unavailable(message)
    if os.strerror(errno.ENOBUFS) in message:
        return Unavailable(f"{message}: the kernel's answer was lost, so the outcome is unknown")
    return Refused(message, statement)


def _shape(comment: str) -> str:
    """Return the second word of a comment "nftproxy SHAPE", else ""."""
    first, _, rest = comment.partition(" ")
    return rest if first == TABLE else ""
