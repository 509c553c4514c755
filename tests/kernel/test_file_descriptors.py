"""A process without free file descriptors lives: changes go on, and other calls raise Unavailable."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable

import pytest

from nftproxy.kernel.child_process import in_child
from nftproxy.kernel.conntrack.sweeps import Sweeper
from nftproxy.kernel.drift import CommitListener
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.process_resources import allowed_files, raise_file_limit
from nftproxy.model.addresses import Address
from nftproxy.model.errors import Unavailable
from nftproxy.policy.flows import AddressPort
from nftproxy.rules.transaction import Transaction
from tests.support.factories import IPV4
from tests.support.processes import no_files_left

EMPTY_TABLE = Transaction("table ip nftproxy {\n  set s {\n    type inet_service\n  }\n}\n")


@pytest.mark.usefixtures("namespace")
def test_a_kernel_that_is_prepared_needs_no_more_files() -> None:
    """Changes go on without a free file descriptor."""
    kernel = Kernel()
    kernel.prepare()
    with no_files_left():
        kernel.apply(EMPTY_TABLE)
        for number in range(3):
            kernel.apply(Transaction(f"add element ip nftproxy s {{ {number + 1} }}\n"))
    assert {each.key for each in kernel.elements(IPV4)} == {"1", "2", "3"}


def sweep() -> None:
    """Look for stale entries of connection tracking."""
    with contextlib.closing(Sweeper(lambda _: None)) as sweeper:
        sweeper.sweep({AddressPort(Address("10.96.0.10"), 53): frozenset()})


CALLS: list[Callable[[Kernel], object]] = [
    lambda kernel: kernel.apply(EMPTY_TABLE),
    lambda kernel: kernel.check(EMPTY_TABLE),
    lambda kernel: kernel.generation(),
    lambda kernel: kernel.read_back(IPV4),
    lambda kernel: kernel.client_counts(IPV4),
    lambda kernel: kernel.prepare(),
    lambda kernel: kernel.version(),
    lambda _: in_child(os.getpid),
    lambda _: CommitListener().close(),
    lambda _: sweep(),
]


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("call", CALLS)
def test_without_files_the_kernel_side_is_unavailable(call: Callable[[Kernel], object]) -> None:
    """That is to be retried, and works once there are file descriptors again."""
    kernel = Kernel()
    with no_files_left(), pytest.raises(Unavailable, match="Too many open files"):
        call(kernel)
    call(kernel)


def test_the_limit_is_raised() -> None:
    """A process gets as many file descriptors as its hard limit, which by default is far more than the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        assert allowed_files() == 100
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
