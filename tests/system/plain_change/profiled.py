"""`nftproxy` with a profile hook, which records the functions of ours that each change of an EndpointSlice enters.

`python -m tests.system.plain_change.profiled` is otherwise the usual program.  It appends a line of JSON to the file
that `RECORDS` names for each change: the functions before the commit, and those after it.

A change begins where the reflector gets its bytes, and includes the `NEAR` turns of the event loop before that, in
which the bytes came from the socket.  Its commit is over as soon as the agent reports it.  The change is over
as soon as the followers have caught up and the event loop is idle.
"""

import json
import os
import sys
import threading
from collections import deque
from pathlib import Path
from types import CodeType, FrameType

RECORDS = "NFTPROXY_RECORDS"
NEAR = 3
"""Turns of the event loop in which bytes go from the socket to the reflector, at most."""

PACKAGE = f"{Path(__file__).resolve().parents[3] / 'nftproxy'}/"
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
Function = tuple[str, str]
"""A module's path in the package, and the qualified name of a function of it."""


class Recorder:
    """Follows the changes one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[CodeType, Function | None] = {}
        self._earlier: deque[set[Function]] = deque(maxlen=NEAR)
        self._begin()

    def _begin(self) -> None:
        """Wait for the next change."""
        self._before: set[Function] = set()
        self._after: set[Function] | None = None
        self._is_changing = self._is_followed = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call.  Python calls this for all calls and returns."""
        if event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = _function(code)
        if found := self._names[code]:
            self._note(found, frame)
        elif code.co_qualname == "EpollSelector.select":
            self._end_turn(is_idle=frame.f_locals["timeout"] != 0)

    def _note(self, found: Function, frame: FrameType) -> None:
        match found[1]:
            case "Reflector.receive_data" if b'"EndpointSlice"' in frame.f_locals["data"]:
                self._is_changing = True
            case "SyncReporter.applied" if self._is_changing and self._after is None:
                self._after = set()
            case "Followers.catch_up" if self._after is not None:
                self._is_followed = True
        (self._before if self._after is None else self._after).add(found)

    def _end_turn(self, *, is_idle: bool) -> None:
        """Take note that the event loop waits for something to happen."""
        if not self._is_changing:
            self._earlier.append(self._before)
            self._before = set()
        elif self._is_followed and is_idle:
            record = self._before.union(*self._earlier), self._after or ()
            self._begin()
            with self._path.open("a") as file:
                file.write(json.dumps([*map(sorted, record)]) + "\n")


def _function(code: CodeType) -> Function | None:
    """The function of ours that has a code, None for comprehensions and for the functions of others."""
    if not code.co_filename.startswith(PACKAGE) or code.co_name in (
        "<listcomp>",
        "<genexpr>",
        "<dictcomp>",
        "<setcomp>",
    ):
        return None
    return code.co_filename.removeprefix(PACKAGE), code.co_qualname


if __name__ == "__main__":
    from nftproxy.commands import cli

    recorder = Recorder(Path(os.environ[RECORDS]))
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    cli.main()
