"""The code of each warning in the log, and how many there have been of each.

A call names its code, `log.warning(..., extra={"code": Code.X})`, and tests/test_codes.py sees to it that each does.
Libraries have no codes, so what they warn of goes by one that says so.
"""

from __future__ import annotations

import logging
from collections import Counter

from nftproxy.model.codes import Code


class Coding(logging.Filter):
    """Gives each record its code, "" below WARNING, and counts those that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[Code]()
        """How many warnings of each code there have been since the process began."""

    def logged(self) -> dict[str, int]:
        """The counts as they are now, in the order of the numbers; another thread may log meanwhile."""
        return {str(code): count for code, count in sorted(self.counts.copy().items())}

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        code = getattr(record, "code", Code.LIBRARY_WARNING)
        is_warning = record.levelno >= logging.WARNING
        record.code, record.before = (code, f"{code}: ") if is_warning else ("", "")
        self.counts.update([code] if is_warning else ())
        return True


coding = Coding()
"""That of this process's log: there is one log."""
