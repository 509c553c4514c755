"""The agent's log: lines for people, or JSON for machines (logging.format, --logging-format).

A message names its values once, `log.info("set %(path)s to %(value)d", {"path": path, "value": value})`, as the
standard library allows.  In text the values stand in the message.  In JSON they are also fields of the line.

If the message is a single value, as in `warn_of(problem)`, the fields of that value are the fields of the line.

A warning has a code (model/codes.py), which stands before the message or in the field `code`.  Warnings are counted by
code.  So code calls `warn`, which takes the code first, and never a logger's own methods for warnings, as
tests/test_codes.py checks.  Libraries have no codes, so their warnings have `Code.LIBRARY_WARNING`.

A JSON line has the fields of Kubernetes' own components (`ts` in seconds since the epoch, `msg`, `err`), and `level`:
{"ts":1580306777.04,"level":"info","msg":"set /proc/sys/net/... to 1","path":"/proc/sys/net/...","value":1}

A line whose number tenants or clients decide names its namespace (`of`), and `LineFilter` leaves out such lines beyond
a budget.  tests/test_log_budget.py lists the warnings that need none.

The log never waits for its reader.  A runtime that no longer reads standard error would else stop the agent in a write.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nftproxy.model.codes import AnyCode, Code
from nftproxy.model.errors import Problem
from nftproxy.model.fairness import LineBudget
from nftproxy.model.settings import LogFormat, Logging

log = logging.getLogger("nftproxy")

TEXT = "%(asctime)s %(levelname)s %(before)s%(message)s"

DEBUG_FROM, REQUESTS_FROM, ALL_FROM = 4, 6, 8
"""The lowest verbosity that logs each step, each request to the API, and every message of a library.

client-go logs requests from 6 on, and their content from 8 on."""


def warn(
    code: AnyCode,
    text: str,
    /,
    *,
    of: str | None = None,
    level: int = logging.WARNING,
    exc_info: BaseException | None = None,
    **fields: object,
) -> None:
    """Log a warning, or an error if `level` says so, with its code.  `text` names the fields: "%(path)s is gone".

    `of` is the namespace whose tenant decides how many such lines there are.  It is "" if clients do, or if the line is
    about several namespaces, and None if the number is bounded anyway.
    """
    log.log(level, text, *filter(None, [fields]), exc_info=exc_info, extra={"code": code, "of": of}, stacklevel=2)


def inform(text: str, /, *, of: str, **fields: object) -> None:
    """Log a line without a code.  It counts for a namespace, `of`, as tenants decide how many such lines there are."""
    log.info(text, *filter(None, [fields]), extra={"of": of}, stacklevel=2)


def warn_of(problem: Problem, *, of: str | None = None) -> None:
    """Log a fault of the input with the fault's own code.  `of` is as in `warn`."""
    log.warning("%s", problem, extra={"code": problem.code, "of": of}, stacklevel=2)


class CodeFilter(logging.Filter):
    """Adds its code to each record, "" below WARNING, and counts the warnings of each code."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counter[AnyCode]()

    def counts(self) -> dict[str, int]:
        """The number of warnings of each code since the process began, sorted by code."""
        return {str(code): count for code, count in sorted(self._counts.copy().items())}  # threads log meanwhile

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        code = getattr(record, "code", Code.LIBRARY_WARNING)
        is_warning = record.levelno >= logging.WARNING
        record.code, record.before = (code, f"{code}: ") if is_warning else ("", "")
        self._counts.update([code] if is_warning else ())
        return True


code_filter = CodeFilter()
"""The filter of this process's only log."""


class LineFilter(logging.Filter):
    """Leaves out lines with a namespace beyond the budget.  `CodeFilter` counts them before."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._budget = LineBudget()
        self._now = now

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        of = getattr(record, "of", None)
        return of is None or self._budget.admit(of, self._now())

    def report_left_out(self) -> None:
        """Log how many lines were left out, if any, unless that was logged a short while ago."""
        if note := self._budget.note("lines", self._now()):
            warn(Code.MORE_PROBLEMS, "%(note)s", note=note)


line_filter = LineFilter()
"""The filter of this process's only log."""


class JsonFormatter(logging.Formatter):
    """Formats each record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a single line."""
        line: dict[str, object] = {"ts": record.created, "level": record.levelname.lower(), "msg": record.getMessage()}
        line |= {"code": str(code)} if (code := getattr(record, "code", "")) else {}
        line = {name: _plain(value) for name, value in _fields(record.args).items()} | line
        if record.exc_info:
            line["err"] = self.formatException(record.exc_info)
        ordered = {key: line[key] for key in ("ts", "level", "msg")} | line
        return msgspec.json.encode(ordered).decode()


class UnblockedFile(io.RawIOBase):
    """A pipe, socket or file that drops bytes which would have to wait for a reader.

    Where poll(2) reports room, Linux takes `PIPE_BUF` bytes at once, so bytes are written in pieces of that size.

    Args:
        descriptor: the file descriptor, 2 for standard error.  It stays open.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Return that this file can be written."""
        return True

    def write(self, data: Any, /) -> int:
        """Write what has room, and return the number of all bytes, so that none is written again."""
        self.write_now(bytes(data))
        return len(data)

    def write_now(self, data: bytes) -> int:
        """Write what has room, and return the number of bytes that were written."""
        for start in range(0, len(data), select.PIPE_BUF):
            piece = data[start : start + select.PIPE_BUF]
            written = self._written(piece)
            if written < len(piece):
                return start + written
        return len(data)

    def _written(self, piece: bytes) -> int:
        try:
            has_room = any(events & select.POLLOUT for _, events in self._poll.poll(0))
            return os.write(self._descriptor, piece) if has_room else 0
        except OSError:  # nobody will ever read it, or the disk is full
            return 0


class UnblockedHandler(logging.Handler):
    """Writes lines to a pipe, socket or file, and drops a line that would have to wait for a reader.

    Args:
        descriptor: the file descriptor, 2 for standard error.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0
        """The number of lines that were dropped, the rest of a line included."""
        self._told = 0  # of these, those that a line has reported
        self._file = UnblockedFile(descriptor)
        self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, after a line about the lines dropped before it."""
        self.report_dropped()
        self.dropped += not self._write(self._line(record))

    def report_dropped(self) -> None:
        """Write a line about the lines that were dropped since the last such line, if any.  Any thread may call it."""
        self.acquire()
        try:
            count = self.dropped - self._told
            if count and self._write(self._line(_dropped(count))):
                self._told += count
        finally:
            self.release()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # noqa: BLE001  # a log call of a library may have the wrong values for its text
            return f"{record.msg!r} has no values for its text: {error!r}"

    def _write(self, line: str) -> bool:
        data = ("\n" * self._is_cut + line + "\n").encode(errors="backslashreplace")
        written = self._file.write_now(data)
        is_whole = written == len(data)
        self._is_cut = not is_whole and (self._is_cut or written > 0)
        return is_whole


def _dropped(count: int) -> logging.LogRecord:
    values = {"count": count}
    text = "dropped %(count)d lines of the log, which nobody read in time"
    made = log.makeRecord(log.name, logging.INFO, __file__, 0, text, (values,), None)
    code_filter.filter(made)
    return made


def _fields(args: object) -> Mapping[str, object]:
    """The values that a message names, by name."""
    match args:
        case Mapping():
            return args
        case (msgspec.Struct() as value,):
            return msgspec.structs.asdict(value)
        case _:
            return {}


def _plain(value: object) -> object:
    """The JSON form of a value: numbers, text and lists as they are, any other value as the text form of the log."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if value is None or type(value) in (str, bool, int, float) else str(value)


def dropped_lines() -> int:
    """The number of lines of the log that were dropped since `set_up`."""
    return sum(each.dropped for each in _handlers())


def report_dropped() -> None:
    """Log how many lines were dropped, if the log can be written again and nothing has said so yet."""
    for each in _handlers():
        each.report_dropped()


def _handlers() -> list[UnblockedHandler]:
    return [each for each in logging.getLogger().handlers if isinstance(each, UnblockedHandler)]


def set_up(wanted: Logging) -> None:
    """Write the log to standard error as the configuration says, from now on."""
    handler = UnblockedHandler(sys.stderr.fileno())
    handler.addFilter(code_filter)
    handler.addFilter(line_filter)
    handler.setFormatter(JsonFormatter() if wanted.format is LogFormat.JSON else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=_level_of_libraries(wanted.verbosity), force=True)
    own = logging.DEBUG if wanted.verbosity >= DEBUG_FROM else logging.INFO
    logging.getLogger("nftproxy").setLevel(own)


def _level_of_libraries(verbosity: int) -> int:
    if verbosity >= ALL_FROM:
        return logging.DEBUG
    return logging.INFO if verbosity >= REQUESTS_FROM else logging.WARNING
