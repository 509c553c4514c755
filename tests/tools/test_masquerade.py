"""The tool that counts the losses of masquerading counts right.  Its figures aren't tested."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from nftproxy_conformance.lab import obstacle

from tools.masquerade import client
from tools.masquerade.__main__ import COLUMNS, main
from tools.masquerade.client import Client, Orders, Result, total
from tools.masquerade.scene import DIRECTLY, WAYS, Run, rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "decisions" / "masquerading-ports.md"
SHOWN = re.findall(r"^    .*python -m tools\.masquerade (.*)$", PAGE.read_text(), re.MULTILINE)

needs_root = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def asked(protocol: str, address: tuple[str, int]) -> Result:
    """Return the outcomes of a few questions to a server on this machine."""
    return Client(Orders(protocol, (), (address,), rate=100.0, seconds=0.2)).run()


def words(line: str) -> list[str]:
    """Return the arguments of a command that a page shows."""
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', line)]


@needs_root
@pytest.mark.parametrize("line", SHOWN)
def test_commands_of_the_page_measure(line: str) -> None:
    """Each command on the page prints a row with some connections for each way that it names."""
    arguments = words(line)
    done = CliRunner().invoke(main, [*arguments, "--seconds", "0.5"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    _, _, *rows = (dict(zip(COLUMNS, row[2:-2].split(" | "), strict=True)) for row in done.output.splitlines())
    assert {row["way"] for row in rows} == {word for word in arguments if word in WAYS}
    assert all(int(row["asked"].replace(",", "")) > 0 for row in rows)
    assert all(row["failed"] == "0" for row in rows)


def test_the_page_shows_commands() -> None:
    """docs/decisions/masquerading-ports.md shows the commands that measured its figures."""
    assert SHOWN


@pytest.mark.parametrize("way", [way for way in WAYS if way != DIRECTLY])
def test_each_way_is_one_for_all_protocols(way: str) -> None:
    """The measured rules have the statement of the way, and no other statement that masquerades."""
    text = rules(Run("node", 1, "tcp", 1.0, way), ["10.1.0.4"])
    statements = re.findall(r"\bmasquerade(?: fully-random| random)?(?= comment)", text)
    assert set(statements) == {way}


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_refused_question_counts_as_failed(protocol: str) -> None:
    """A refused question counts as failed, and neither as answered nor as lost."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        address = end.getsockname()
        if protocol == "udp":
            end.close()
        result = asked(protocol, address)
    assert result.asked > 0
    assert (result.failed, result.answered, result.lost) == (result.asked, 0, 0)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_no_answer_is_a_loss(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question without an answer is lost at the end of the client's patience."""
    monkeypatch.setattr(client, "PATIENCE", 0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        if protocol == "tcp":
            end.listen(1024)
        result = asked(protocol, end.getsockname())
    assert result.asked > 0
    assert (result.lost, result.answered, result.failed) == (result.asked, 0, 0)


def test_clients_are_added_up() -> None:
    """The total of several clients has the sums of their questions, and the longest time."""
    assert total([Result(5, 1, 1, 1, 2, 3.0), Result(7, 6, 0, 0, 1, 2.0)]) == Result(12, 7, 1, 1, 3, 3.0)
