"""The grammar of our transactions, read strictly and without the code that writes them.

`assert_typed` accepts a text only if every word in it is a keyword of ours, a name of ours, or an address, network or
number in its canonical form.  Elements are read word by word.  The lines of declarations must be
lines that a tame cluster has too (`line_forms`), but for their addresses, networks and numbers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator

NAME = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
ELEMENTS = re.compile(rf"(?:add|delete) element ip6? nftproxy {NAME} \{{ (.+) \}}")
COMMANDS = re.compile(
    rf"(?:add|delete) table ip6? nftproxy"
    rf"|(?:add|flush|delete) chain ip6? nftproxy {NAME}|add chain ip6? nftproxy {NAME} \{{ policy accept; \}}"
    rf"|(?:flush|delete) (?:set|map) ip6? nftproxy {NAME}"
)
HEADS = re.compile(
    rf"table ip6? nftproxy \{{|  (?:set|map|chain) {NAME} \{{|  comment \"nftproxy [0-9a-f]{{16}}\"| *\}}"
)
VERDICTS = re.compile(
    r"goto (?:undrawn|remember-(?:tcp|udp|sctp)-[0-9]+"
    r"|(?:nodeport-)?(?:tcp|udp|sctp)-(?:local-)?(?:consistent-)?endpoints-of-[0-9]+"
    r"(?:-by-client(?:-and-port)?|-in-turn-[0-7])?(?:-sticky)?)"
    r"|jump follow-(?:nodeport-)?(?:tcp|udp|sctp)-(?:local-)?(?:consistent-)?endpoints-[0-9]+"
)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_NUMBERS_IN_NAMES = re.compile(r"(?<=-)[0-9]+")
_WORDS = re.compile(r"[^\s{},;]+|[{},;]")


def is_address(word: str) -> bool:
    """Whether this is an address, written as it should be."""
    try:
        return str(ipaddress.ip_address(word)) == word
    except ValueError:
        return False


def is_network(word: str) -> bool:
    """Whether this is a network of several addresses, written as it should be."""
    try:
        return "/" in word and str(ipaddress.ip_network(word)) == word
    except ValueError:
        return False


def is_number(word: str) -> bool:
    """Whether this is a number, written as it should be."""
    return _NUMBER.fullmatch(word) is not None


def line_forms(text: str) -> set[str]:
    """The forms of the lines of all declarations in a text: addresses, networks and numbers left out."""
    return {_form(line) for line in _lines_of_declarations(text)}


def assert_typed(text: str, forms: Iterable[str]) -> int:
    """Assert that a transaction has allowed statements only.  Returns how many elements it has.

    `forms` are the allowed forms of the lines of declarations.
    """
    known, count = set(forms), 0
    for line in _lines_of_declarations(text):
        assert _form(line) in known, line
    for line in text.split("\n")[:-1]:
        if found := ELEMENTS.fullmatch(line):
            for element in found[1].split(", "):
                key, _, value = element.partition(" : ")
                assert all(map(_is_part_of_a_key, key.split(" . "))), element
                assert not value or VERDICTS.fullmatch(value) or _is_datum(value), element
                count += 1
        else:
            assert line.startswith("    ") or COMMANDS.fullmatch(line) or HEADS.fullmatch(line), line
    return count


def _lines_of_declarations(text: str) -> Iterator[str]:
    return (line for line in text.split("\n") if line.startswith("    "))


def _form(line: str) -> str:
    return " ".join(_form_of_word(word) for word in _WORDS.findall(line))


def _form_of_word(word: str) -> str:
    number = word.removesuffix("s").removeprefix("0x")
    if is_address(word) or is_network(word) or number.isdigit() or word.startswith("0x"):
        return "N"
    return _NUMBERS_IN_NAMES.sub("N", word)


def _is_part_of_a_key(word: str) -> bool:
    return word in ("tcp", "udp", "sctp") or is_number(word) or is_address(word) or is_network(word)


def _is_datum(value: str) -> bool:
    """Whether this is where an endpoint is, or an address that stands for their number or for a Service's ranges."""
    address, is_endpoint, port = value.partition(" . ")
    if not is_endpoint:
        return is_address(address)
    return is_address(address) and is_number(port) and 1 <= int(port) <= 65535
