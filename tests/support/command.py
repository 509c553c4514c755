"""The command line, run in this process."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from nftproxy.commands import cli


class Done(NamedTuple):
    """The exit status of a command, and its output."""

    status: int
    out: str
    err: str


def nftproxy(*arguments: str | Path, stdin: str = "") -> Done:
    """Run a command in this process."""
    return _run(cli.main, arguments, stdin)


def kubectl_nftproxy(*arguments: str | Path) -> Done:
    """Run a command of kubectl's plugin in this process."""
    return _run(cli.plugin, arguments, "")


def _run(main: Callable[[], object], arguments: Sequence[str | Path], stdin: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["nftproxy", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            gc.enable()  # offline commands do without
    return Done(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
