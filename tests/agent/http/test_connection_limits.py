"""The rates at which clients may open connections."""

from __future__ import annotations

from nftproxy.agent.http.connection_limits import BURST, MOST_CLIENTS, RATE, ClientRates


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The present time."""
        return self.now


def admitted(rates: ClientRates, address: str, count: int, listener: str = "health") -> int:
    """The number of admitted connections, of `count` that a client opens."""
    return sum(rates.admit(listener, address) for _ in range(count))


def test_a_client_has_a_burst_and_a_rate() -> None:
    """A client may open its burst at once, and then its rate, and never more than the burst after a pause."""
    clock = Clock()
    rates = ClientRates(clock)
    assert admitted(rates, "10.1.0.9", 1000) == BURST
    clock.now += 2
    assert admitted(rates, "10.1.0.9", 1000) == 2 * RATE
    clock.now += 3600
    assert admitted(rates, "10.1.0.9", 1000) == BURST


def test_limits_count_for_each_client_and_listener() -> None:
    """A client that has opened too many leaves any other client its burst, and has its own at any other listener."""
    rates = ClientRates(Clock())
    assert admitted(rates, "10.1.0.9", 1000) == BURST
    assert admitted(rates, "10.1.0.10", 1000) == BURST
    assert admitted(rates, "10.1.0.9", 1000, "metrics") == BURST


def test_addresses_of_one_client_count_together() -> None:
    """A client has a subnet of IPv6, and a program of the node any loopback address but the usual one."""
    rates = ClientRates(Clock())
    assert sum(admitted(rates, f"fd00:1::{number:x}", 1) for number in range(1000)) == BURST
    assert sum(admitted(rates, f"127.0.{number // 250}.{number % 250 + 2}", 1) for number in range(1000)) == BURST
    assert sum(admitted(rates, f"fe80::{number:x}%eth0", 1) for number in range(1000)) == BURST
    assert admitted(rates, "fd00:2::1", 10) == admitted(rates, "127.0.0.1", 10) == admitted(rates, "::1", 10) == 10


def test_memory_is_bounded() -> None:
    """The clients that were seen last are remembered."""
    rates = ClientRates(Clock())
    assert admitted(rates, "10.2.0.1", 1000) == BURST
    for number in range(MOST_CLIENTS - 1):
        assert rates.admit("health", f"10.1.{number // 250}.{number % 250}")
    assert not rates.admit("health", "10.2.0.1")
    assert rates.admit("health", "10.3.0.1")
    assert len(rates) == MOST_CLIENTS
    assert not rates.admit("health", "10.2.0.1")
