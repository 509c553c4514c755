"""Running tests in forks of a process that has imported everything except nftproxy and its tests.

Each parallel process has its own copy of the checkout, and only these copies are ever damaged.  So if a test starts a
process, which reads the files anew, that process has the same fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import coverage
import hypothesis
import pytest

from tools.mutation.killers import CHECKOUT, Stage
from tools.mutation.mutant import Mutant

COPIED = ("nftproxy", "templates", "tests", "tools", "examples", "docs", ".ci")
PRELOADED = (
    "click", "hypothesis.strategies", "jinja2.debug", "jinja2.ext", "msgspec", "nftables", "pyroute2", "pytest_timeout",
    "yaml",
)  # fmt: skip
"""Third-party modules that tests import, loaded once for all forks."""

PR_SET_PDEATHSIG = 1  # linux/prctl.h: a child process ends with this process

MEMORY = 4 << 30
"""The limit of a trial's address space in bytes, as a mutant that never ends may fill the memory."""

TOO_BUSY = "the machine was too busy"
"""A part of the lab's error when it has lost packets itself, so that the mutant's result is unknown."""


class Result(NamedTuple):
    """The result of a run of tests.

    `status` is "passed", "failed", "timed out", or "unknown" if the run must be repeated.  `killer` is the failed test.
    """

    status: str
    killer: str = ""

    @property
    def is_kill(self) -> bool:
        """Whether a test has noticed the mutant."""
        return self.status in ("failed", "timed out")


class Measured(NamedTuple):
    """Measurements of a stage's tests on undamaged code.

    `seconds` has the time of each test, in the order in which they ran.  `runs` has the tests that run a line, by file
    and line.  A line that runs only during the import of its module has an empty list.  A line that never runs has no
    entry.
    """

    seconds: dict[str, float]
    runs: dict[str, dict[int, list[str]]]


def preload() -> None:
    """Import the modules that all trials need."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the garbage collector of a fork skips these objects


class Tree:
    """A copy of the checkout that may be damaged."""

    def __init__(self, root: Path, original: Path) -> None:
        self.root = root
        root.mkdir()
        for path in original.iterdir():
            if path.name in COPIED:
                shutil.copytree(path, root / path.name)
            elif path.is_file() and not path.name.startswith("."):
                shutil.copy2(path, root)

    @contextlib.contextmanager
    def damaged(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant for a while.  The bytecode is removed, as its timestamp has a resolution of a second."""
        path = self.root / mutant.identity.file
        source = path.read_bytes()
        if path.suffix == ".py":
            Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
        path.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            path.write_bytes(source)


def run(tree: Tree, tests: Sequence[str], limit: float) -> Result:
    """Run some tests in their order in a fork, on a tree, for `limit` seconds at most, and return the result."""
    report = tree.root / "trial.json"
    report.unlink(missing_ok=True)
    pid = _fork(lambda: _run_tests(tree.root, report, tests))
    descriptor = os.pidfd_open(pid)
    has_ended, _, _ = select.select([descriptor], [], [], limit)
    os.close(descriptor)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # it, if it is late, and processes that it may have left behind
    _, status = os.waitpid(pid, 0)
    return _read(report, os.waitstatus_to_exitcode(status)) if has_ended else Result("timed out")


def _read(report: Path, status: int) -> Result:
    if status == pytest.ExitCode.OK:
        return Result("passed")
    if report.exists():
        return Result(**json.loads(report.read_text()))
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"no tests were run: {report.with_name('trial.log').read_text()}")
    return Result("failed", "a crash")


def _fork(work: Callable[[], int]) -> int:
    """Run `work` in a new process, in a new process group with the same number.  Return the number."""
    faulthandler.cancel_dump_traceback_later()  # under pytest it has a thread, and a fork would wait for it in vain
    pid = os.fork()
    if not pid:
        _work_and_exit(work)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def _work_and_exit(work: Callable[[], int]) -> NoReturn:
    status = 70
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        die_with_parent()
        status = work()
    except BaseException:  # noqa: BLE001 -- nothing may get out of here, into the code of the other process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prepare(root: Path) -> None:
    """Forget the project's imported modules, so that this process imports them from `root`."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "nftproxy")]:
        del sys.modules[name]
    os.chdir(root)
    sys.path[:] = [str(root), *(each for each in sys.path if each not in ("", str(CHECKOUT)))]
    os.environ["PYTHONPATH"] = str(root)
    os.environ.pop("NFTPROXY_TESTS", None)
    output = os.open(root / "trial.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    hypothesis.settings.register_profile(
        "mutation",
        database=None,
        derandomize=True,
        deadline=None,  # the machine is busy
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # one failure is enough, however large
    )
    hypothesis.settings.load_profile("mutation")


PYTEST = (
    "-x", "--tb=native", "--assert=plain", "-p", "no:cacheprovider",
    "--disable-plugin-autoload", "-p", "pytest_timeout", "-m", "slow or not slow",
)  # fmt: skip
"""Options of all runs.  The first failure ends a run, and its report has no readers."""


LONGEST_TRIED, LONGEST_MEASURED = 60, 900
"""Limits of a test in seconds: in a trial, where a mutant may hang, and in a measurement on a busy machine."""


def _pytest(files: Sequence[str], plugin: object, longest: int) -> int:
    return int(pytest.main([*PYTEST, "-o", f"timeout={longest}", *files], plugins=[plugin]))


def _run_tests(root: Path, report: Path, tests: Sequence[str]) -> int:
    _prepare(root)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return _pytest(list(dict.fromkeys(map(file_of, tests))), _Selection(report, tests), LONGEST_TRIED)


class _Selection:
    """A plugin that selects the requested tests in the requested order, and notes a failure."""

    def __init__(self, report: Path, tests: Sequence[str]) -> None:
        self._report = report
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = self._places
        items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note(report.nodeid, report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(f"import of {report.nodeid}", report.longreprtext)

    def _note(self, killer: str, text: str) -> None:
        status = "unknown" if TOO_BUSY in text else "timed out" if "Timeout (>" in text else "failed"
        self._report.write_text(json.dumps({"status": status, "killer": killer}))


# measuring


def measure(tree: Tree, stages: Sequence[Stage], files: Collection[str]) -> dict[str, Measured]:
    """Run all tests of some stages on an undamaged tree, in parallel.

    Raises:
        RuntimeError: a test fails where nothing is damaged.
    """
    reports = {stage.name: tree.root / f"{stage.name}.json" for stage in stages}
    pids = {}
    for stage in stages:
        paths = [path for path in stage.paths if (tree.root / path).exists()]
        pids[_fork(lambda paths=paths, stage=stage: _measure(tree.root, reports[stage.name], paths, files))] = stage  # type: ignore[misc]
    for pid, stage in pids.items():
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status):
            raise RuntimeError(f"stage {stage.name} fails on undamaged code:\n{(tree.root / 'trial.log').read_text()}")
    return {name: _measured(json.loads(report.read_text())) for name, report in reports.items()}


def _measured(found: Mapping[str, Any]) -> Measured:
    runs = {file: {int(line): tests for line, tests in lines.items()} for file, lines in found["runs"].items()}
    return Measured(found["seconds"], runs)


def _measure(root: Path, report: Path, paths: Sequence[str], files: Collection[str]) -> int:
    _prepare(root)
    recorder = _Recorder(root, files)
    status = _pytest(paths, recorder, LONGEST_MEASURED)
    report.write_text(json.dumps({"seconds": recorder.seconds, "runs": recorder.runs()}))
    return status


class _Recorder:
    """A plugin that records the time of each test and the lines that it runs."""

    def __init__(self, root: Path, files: Collection[str]) -> None:
        self._files = {file: str(root / file) for file in files}
        self.seconds: dict[str, float] = {}
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=list(self._files.values()))
        if files:
            self._coverage.start()

    def pytest_collection_finish(self) -> None:
        """Import all of the files before the first test: what runs during an import belongs to no single test."""
        for file in (each for each in self._files if each.endswith(".py")):
            importlib.import_module(file.removesuffix(".py").replace("/", "."))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._switch(item.nodeid)
        before = time.monotonic()
        done = yield
        self.seconds[item.nodeid] = time.monotonic() - before
        self._switch("")
        return done

    def _switch(self, context: str) -> None:
        if self._files:
            self._coverage.switch_context(context)

    def runs(self) -> dict[str, dict[int, list[str]]]:
        """Return the tests that run a line, by file and line."""
        self._coverage.stop()
        data = self._coverage.get_data()
        return {
            file: {
                line: [context for context in contexts if context]
                for line, contexts in data.contexts_by_lineno(path).items()
            }
            for file, path in self._files.items()
        }


# which tests


def selected(mutant: Mutant, stage: Stage, measured: Measured) -> list[str]:
    """Return the tests that may kill a mutant, the fastest first."""
    lines = measured.runs.get(mutant.identity.file)
    if lines is None:  # a template: every test renders it
        return list(measured.seconds)
    first, last = mutant.fault.lines
    run = [lines[line] for line in range(first, last + 1) if line in lines]
    if not run:
        return []
    found = {test for tests in run for test in tests}
    if not found:  # it runs when the module is imported
        found = {test for tests in lines.values() for test in tests}
    if stage.shares_fixtures:
        files = {file_of(test) for test in found}
        return [test for test in measured.seconds if file_of(test) in files]
    return sorted(found, key=measured.seconds.__getitem__)


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]
