"""How `run` writes its log: lines for people, or JSON for machines (logging.format, --logging-format).

A message names its values once, `log.info("set %(path)s to %(value)d", {"path": path, "value": value})`, as the
standard library allows: in a line of text they stand where they are named, in one of JSON they are fields as well.

A message that is one value and nothing else, `log.warning("%s", problem)`, has the fields of that value.

A warning has a code (model/codes.py): before the message, or as the field `code`.

A JSON line has what those of Kubernetes' components have (`ts` in seconds since the epoch, `msg`, `err`), and `level`:
{"ts":1580306777.04,"level":"info","msg":"set /proc/sys/net/... to 1","path":"/proc/sys/net/...","value":1}
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

import msgspec

from nftproxy.agent.coding import coding
from nftproxy.model.settings import LogFormat, Logging

TEXT = "%(asctime)s %(levelname)s %(before)s%(message)s"

DEBUG_FROM, REQUESTS_FROM, ALL_FROM = 4, 6, 8
"""The verbosities from which on each step is logged, each request to the API, and all that libraries say.

client-go logs requests at 6, and what is in them at 8."""


class JsonFormatter(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, without a line feed within it."""
        line: dict[str, object] = {"ts": record.created, "level": record.levelname.lower(), "msg": record.getMessage()}
        line |= {"code": str(code)} if (code := getattr(record, "code", "")) else {}
        line = {name: _plain(value) for name, value in _fields(record.args).items()} | line
        if record.exc_info:
            line["err"] = self.formatException(record.exc_info)
        ordered = {key: line[key] for key in ("ts", "level", "msg")} | line
        return msgspec.json.encode(ordered).decode()


def _fields(args: object) -> Mapping[str, object]:
    """What a message names."""
    match args:
        case Mapping():
            return args
        case (msgspec.Struct() as value,):
            return msgspec.structs.asdict(value)
        case _:
            return {}


def _plain(value: object) -> object:
    """A value as JSON has it: what isn't a number, a text or a list of these is as the text shows it."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if value is None or type(value) in (str, bool, int, float) else str(value)


def set_up(wanted: Logging) -> None:
    """Write the log to standard error as the configuration says, from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(coding)
    handler.setFormatter(JsonFormatter() if wanted.format is LogFormat.JSON else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=_level_of_libraries(wanted.verbosity), force=True)
    own = logging.DEBUG if wanted.verbosity >= DEBUG_FROM else logging.INFO
    logging.getLogger("nftproxy").setLevel(own)


def _level_of_libraries(verbosity: int) -> int:
    if verbosity >= ALL_FROM:
        return logging.DEBUG
    return logging.INFO if verbosity >= REQUESTS_FROM else logging.WARNING
