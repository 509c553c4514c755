"""The parts of extensions that a change of rules concerns."""

from __future__ import annotations

from typing import ClassVar

from nftproxy.agent.agent_part import NEVER, AgentPart
from nftproxy.agent.followers import PartsOfExtensions


class Always(AgentPart):
    """A part that all changes concern."""


class OfServices(AgentPart):
    """A part that follows the Services of an extension."""

    follows: ClassVar[str] = "failover"
    look = NEVER

    def next_look(self) -> float:
        """The time of the next look."""
        return self.look


def test_a_part_is_called_only_while_its_extension_is_asked_for() -> None:
    """All parts are called at first.  A part whose extension nobody asks for is called once more, and then never."""
    always, some = Always(), OfServices()
    parts = PartsOfExtensions([always, some])
    asked: list[set[str]] = [set(), set(), {"failover"}, {"failover"}, set(), set(), {"counts"}]
    calls = [list(parts.concerned(each)) for each in asked]
    assert [some in each for each in calls] == [True, False, True, True, True, False, False]
    assert all(always in each for each in calls)


def test_a_part_that_wants_another_look_is_called_until_it_has_looked() -> None:
    """A part with a time of its next look is called even if nobody asks for its extension any more."""
    some = OfServices()
    parts = PartsOfExtensions([some])
    some.look = 1.0
    assert [list(parts.concerned(set())) for _ in range(3)] == [[some]] * 3
    some.look = NEVER
    assert [list(parts.concerned(set())) for _ in range(2)] == [[some], []]
