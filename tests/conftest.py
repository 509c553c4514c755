"""Fixtures for many tests: namespaces, labs, real hosts, families and protocols, and a user without rights."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from nftproxy_conformance.lab import Lab, RealNetwork, obstacle

from nftproxy.kernel.capabilities import probe
from tests.support.cluster import IP, IP6, Ip
from tests.support.flowtables import on_fast_path, trying_lab
from tests.support.selection import mark_repetitions

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CHECKOUT = Path(__file__).resolve().parents[1]
NOBODY = 65534

Run = Callable[[str], str]

# In CI too, and while code is damaged on purpose, no example is too slow on a busy machine.
EXAMPLES = {"long": 400, "middle": 100}.get(os.environ.get("NFTPROXY_TESTS", ""), 25)
settings.register_profile(
    "patient",
    settings(),
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests and repetitions, unless `-m` or NFTPROXY_TESTS asks for them.

    Raises:
        pytest.UsageError: the address of an object is part of a name, which each of `make test`'s processes would make
            another.
    """
    if unstable := [item.nodeid for item in items if " object at 0x" in item.nodeid]:
        raise pytest.UsageError(f"give these a name: {', '.join(unstable[:3])}")
    mark_repetitions(items)
    if config.option.markexpr or os.environ.get("NFTPROXY_TESTS"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many connections were on the fast path."""
    if on_fast_path:
        terminalreporter.write_line(f"{sum(on_fast_path):,} connections went on over the fast path")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run a test that is a coroutine to its end, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def namespace() -> Iterator[None]:
    """Put the test into a network namespace of its own, and so every thread and process that it starts."""
    if os.geteuid() != 0:
        pytest.skip("making a network namespace takes root")
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield
        assert libc.setns(before, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(before)


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """A lab for all tests of a module.  Skips them where there can be none."""
    if why := obstacle():
        pytest.skip(why)
    with trying_lab() as made:
        yield made


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    """A lab without rules and without memory."""
    shared_lab.reset()
    return shared_lab


@pytest.fixture
def network() -> Iterator[RealNetwork]:
    """Hosts outside and nodes with real sockets.  Skips the test where there can be none."""
    if why := obstacle():
        pytest.skip(why)
    with RealNetwork() as made:
        yield made


@pytest.fixture(params=[IP, IP6], ids=["ip", "ip6"])
def ip(request: pytest.FixtureRequest) -> Ip:
    """Addresses of each family in turn: a test that takes `ip` runs once with either."""
    chosen: Ip = request.param
    return chosen


@pytest.fixture(params=[IP, IP6], ids=["ip", "ip6"])
def remembered(request: pytest.FixtureRequest) -> Ip:
    """Addresses of each family in which this machine's nft can remember clients."""
    chosen: Ip = request.param
    if chosen.is_ipv6 and not probe().capabilities.wide_maps:
        pytest.skip(probe().reason)
    return chosen


@pytest.fixture(params=["tcp", "udp", "sctp"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Each protocol in turn."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def user_namespaces() -> None:
    """Require that a user without rights can make a user namespace."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user takes root")
    code = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({CLONE_NEWUSER}))"
    tried = subprocess.run(["/usr/bin/python3", "-c", code], user=NOBODY, group=NOBODY, check=False)
    if tried.returncode != 0:
        pytest.skip("users can't make user namespaces here; in a chroot nobody can")


@pytest.fixture
def as_nobody(user_namespaces: None) -> Run:  # noqa: ARG001 -- what such a user does here takes one
    """Give a function that runs Python code as a user without rights, and returns its output."""
    os.seteuid(NOBODY)
    try:
        readable = all(os.access(path, os.R_OK, effective_ids=True) for path in (CHECKOUT, sys.executable))
    finally:
        os.seteuid(0)
    if not readable:
        pytest.skip("nobody may not read this checkout or its Python")
    return _run_as_nobody


def _run_as_nobody(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd=CHECKOUT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
