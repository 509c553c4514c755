"""The agent's log: text for people, JSON for machines, messages that name their values, and warnings with codes."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nftproxy import logs
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.logs import TEXT, CodeFilter, JsonFormatter, inform, warn, warn_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import ObjectKey
from nftproxy.model.settings import LogFormat, Logging
from tests.conftest import CHECKOUT


def line(message: str, *args: object, level: int = logging.INFO, error: BaseException | None = None) -> dict[str, Any]:
    """The JSON line of a message."""
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.getLogger("nftproxy").makeRecord("nftproxy", level, "f.py", 1, message, args, info)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found = json.loads(text)
    assert list(found)[:3] == ["ts", "level", "msg"]
    assert found.pop("ts") == record.created
    assert isinstance(found, dict)
    return found


def test_values_are_in_the_message_and_are_fields() -> None:
    """A named value is in the message's text, and in JSON also a field."""
    assert line("set %(path)s to %(value)d", {"path": "/p", "value": 3, "why": None}) == {
        "level": "info",
        "msg": "set /p to 3",
        "path": "/p",
        "value": 3,
        "why": None,
    }


def test_other_values_are_as_the_text_shows_them() -> None:
    """A Service becomes its namespace and name, an error its message.  A list stays a list."""
    found = line(
        "%(service)s %(error)s %(lines)s",
        {"service": ObjectKey("shop", "web"), "error": ValueError("a\nb"), "lines": [ObjectKey("a", "b"), 1]},
        level=logging.ERROR,
    )
    assert (found["level"], found["service"], found["error"], found["lines"]) == (
        "error",
        "shop/web",
        "a\nb",
        ["a/b", 1],
    )


def test_a_message_that_is_one_value_has_its_fields() -> None:
    """A Problem has its file, its object and its field."""
    problem = Problem("f.yaml", "Service shop/web", "spec.ports", "is bad", Code.SERVICE_FIELD)
    assert line("%s", problem, level=logging.WARNING) == {
        "level": "warning",
        "msg": "f.yaml: Service shop/web: spec.ports: is bad",
        "source": "f.yaml",
        "object": "Service shop/web",
        "field": "spec.ports",
        "message": "is bad",
        "code": "NFT204",
    }


def test_no_value_takes_the_place_of_the_message() -> None:
    """A value with the name of a standard field doesn't replace that field."""
    assert line("%(msg)s", {"msg": "x", "level": "y"}) == {"level": "info", "msg": "x"}


def test_a_traceback_is_in_the_line() -> None:
    """An error that comes with a message is a field of the line, line feeds and all."""
    try:
        raise ValueError("no")
    except ValueError as error:
        found = line("failed", error=error)
    assert found["err"].startswith("Traceback")
    assert found["err"].endswith("ValueError: no")


@pytest.fixture
def restored() -> Iterator[None]:
    """Loggers are afterwards as they were."""
    root, own = logging.getLogger(), logging.getLogger("nftproxy")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = before[0], before[1], before[2]
    root.setLevel(before[1])
    own.setLevel(before[2])


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("verbosity", "own", "libraries"),
    [
        (0, logging.INFO, logging.WARNING),
        (3, logging.INFO, logging.WARNING),
        (4, logging.DEBUG, logging.WARNING),
        (6, logging.DEBUG, logging.INFO),
        (8, logging.DEBUG, logging.DEBUG),
        (100, logging.DEBUG, logging.DEBUG),
    ],
)
def test_verbosity(verbosity: int, own: int, libraries: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Each step is logged from 4 on, each request from 6 on, and all that libraries say from 8 on."""
    logs.set_up(Logging(LogFormat.TEXT, verbosity))
    assert logging.getLogger("nftproxy.agent.loop").getEffectiveLevel() == own
    assert logging.getLogger("httpx").getEffectiveLevel() == libraries
    logging.getLogger("nftproxy").warning("so %(it)s", {"it": "is"})
    assert capfd.readouterr().err.endswith(" WARNING NFT015: so is\n")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe with two pages of memory."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 8192)
    yield ends
    for each in ends:
        with contextlib.suppress(OSError):
            os.close(each)


def unblocked(descriptor: int) -> tuple[logs.UnblockedHandler, Callable[[str], object]]:
    """A handler, and a function that logs a text to it."""
    handler = logs.UnblockedHandler(descriptor)
    return handler, lambda text: handler.handle(logging.LogRecord("nftproxy", logging.INFO, "f", 1, text, None, None))


def test_lines_that_nobody_reads_are_dropped(pipe: tuple[int, int]) -> None:
    """A full pipe takes no line, no write waits, and once it is read the log says how many lines are missing."""
    handler, log = unblocked(pipe[1])
    log("first")
    for _ in range(5000):
        log("x" * 99)
    kept = os.read(pipe[0], 1 << 20).decode().splitlines()
    assert kept == ["first"] + ["x" * 99] * (len(kept) - 1)
    assert handler.dropped == 5001 - len(kept)
    log("last")
    log("very last")
    missing = f"dropped {handler.dropped} lines of the log, which nobody read in time"
    assert os.read(pipe[0], 1 << 20).decode().splitlines() == [missing, "last", "very last"]


@pytest.mark.usefixtures("restored")
def test_a_log_that_is_read_again_says_what_is_missing(pipe: tuple[int, int]) -> None:
    """The number of dropped lines comes without a next line, once."""
    handler, log = unblocked(pipe[1])
    logging.getLogger().handlers[:] = [handler]
    log("a" * 9000)
    os.read(pipe[0], 1 << 20)
    logs.report_dropped()
    logs.report_dropped()
    assert os.read(pipe[0], 1 << 20) == b"\ndropped 1 lines of the log, which nobody read in time\n"


def test_a_line_that_is_cut_ends_its_line(pipe: tuple[int, int]) -> None:
    """If a line doesn't fit into the pipe, its rest is dropped, and the next line begins anew."""
    handler, log = unblocked(pipe[1])
    log("a" * 9000)
    assert handler.dropped == 1
    assert os.read(pipe[0], 1 << 20) == b"a" * 8192
    log("b")
    assert os.read(pipe[0], 1 << 20).decode().splitlines() == [
        "",
        "dropped 1 lines of the log, which nobody read in time",
        "b",
    ]


def test_a_log_without_a_reader(pipe: tuple[int, int]) -> None:
    """Lines after the reader's end are dropped, and raise nothing."""
    os.close(pipe[0])
    handler, log = unblocked(pipe[1])
    log("a")
    assert handler.dropped == 1


def test_a_text_without_its_values(pipe: tuple[int, int]) -> None:
    """A log call with the wrong values has its text in the log, and raises nothing."""
    handler, _ = unblocked(pipe[1])
    handler.handle(logging.LogRecord("nftproxy", logging.INFO, "f", 1, "%d", ("a",), None))
    assert os.read(pipe[0], 4096).startswith(b"'%d' has no values for its text: TypeError(")


def logged(codes: CodeFilter, formatter: logging.Formatter) -> list[str]:
    """The lines of a log to which something of each sort is written."""
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.addFilter(codes)
    handler.setFormatter(formatter)
    log = logging.getLogger("nftproxy")
    log.addHandler(handler)
    log.info("all is %(it)s", {"it": "well"})
    warn(Code.CONFLICT_TAKEN, "%(it)s is lost", it="one")
    warn(Code.CONFLICT_TAKEN, "worse", level=logging.ERROR)
    log.warning("from a library")
    warn(Code.API_UNREACHABLE, "tried again", level=logging.INFO)
    warn_of(Problem("", "Node a", "", "is bad", Code.CONFLICT_TAKEN))
    log.removeHandler(handler)
    return lines.getvalue().splitlines()


@pytest.fixture
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    """Everything from INFO on is logged."""
    caplog.set_level(logging.INFO, "nftproxy")


@pytest.mark.usefixtures("at_info")
def test_a_warning_has_its_code_once() -> None:
    """In text the code stands before the message.  A library's warning has its own code, and other lines have none."""
    lines = [line.partition(" ")[2].partition(" ")[2] for line in logged(CodeFilter(), logging.Formatter(TEXT))]
    assert lines == [
        "INFO all is well",
        "WARNING NFT301: one is lost",
        "ERROR NFT301: worse",
        "WARNING NFT015: from a library",
        "INFO tried again",
        "WARNING NFT301: Node a: is bad",
    ]


@pytest.mark.usefixtures("at_info")
def test_in_json_the_code_is_a_field() -> None:
    """The field is there if there is a code, and the message doesn't repeat it."""
    lines = [json.loads(line) for line in logged(CodeFilter(), JsonFormatter())]
    assert [(line.get("code"), line["msg"]) for line in lines] == [
        (None, "all is well"),
        ("NFT301", "one is lost"),
        ("NFT301", "worse"),
        ("NFT015", "from a library"),
        (None, "tried again"),
        ("NFT301", "Node a: is bad"),
    ]


@pytest.mark.parametrize("warnings", [{}, {"NFT015": 1, "NFT301": 3}])
def test_warnings_are_counted_by_code(warnings: dict[str, int]) -> None:
    """The metric has a series for each code that was logged, and no other series."""
    codes = CodeFilter()
    if warnings:
        logged(codes, logging.Formatter(TEXT))
    assert list(codes.counts().items()) == list(warnings.items())
    metrics = Metrics(lambda metrics: metrics.set_each("nftproxy_warnings_total", codes.counts()))
    text = metrics.exposition().decode()
    lines = [line for line in text.splitlines() if line.startswith("nftproxy_warnings_total")]
    assert lines == [f'nftproxy_warnings_total{{code="{code}"}} {count}.0' for code, count in warnings.items()]


def messages(tree: ast.AST) -> Iterator[tuple[int, list[ast.expr]]]:
    """The lines and arguments, from the message on, of calls that log something: methods of `log`, and `warn`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=name)) if name != "getChild":
                yield node.lineno, node.args[1:] if name == "log" else node.args
            case ast.Call(func=ast.Name(id="warn")):
                yield node.lineno, node.args[1:]


@pytest.mark.style
def test_messages_name_their_values() -> None:
    """Every value of a message has a name, unless the message is that value and nothing else."""
    found, bad = 0, []
    for path in sorted((CHECKOUT / "nftproxy").rglob("*.py")):
        for line, (text, *values) in messages(ast.parse(path.read_text())):
            found += 1
            is_whole = isinstance(text, ast.Constant) and text.value == "%s"
            is_nameless = isinstance(text, ast.Constant) and "%s" in str(text.value) and not is_whole
            if (len(values) > 1 or is_nameless) and path.stem != "logs":
                bad.append(f"{path.relative_to(CHECKOUT)}:{line}")
    assert bad == []
    assert found > 20


def test_a_line_without_values(caplog: pytest.LogCaptureFixture) -> None:
    """A line whose text has no values is logged as it stands."""
    with caplog.at_level(logging.INFO):
        inform("there are file descriptors again", of="")
    assert caplog.messages == ["there are file descriptors again"]
