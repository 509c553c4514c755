"""What becomes of a configuration that changes while the agent runs.

A good one ends the agent, and the process executes itself: a start over the rules that are there is tried anyway, takes
one transaction and disturbs no connection, while changing a running agent would be a second way to every state.  A new
process image also gives back all memory, and keeps what a supervisor knows the process by, its number.

A bad one changes nothing: log, Event, metric and health say what is wrong with it, until the file is good again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput
from nftproxy.model.settings import Config
from nftproxy.sources.config_file import ConfigFile

log = logging.getLogger(__name__)


async def until_changed(
    file: ConfigFile, current: Config, check: Callable[[Config], None], report: Callable[[str], None]
) -> None:
    """Return when the file has come to hold a good configuration that isn't the current one.

    Args:
        file: the configuration's.
        current: what is in force.
        check: raises BadInput for a configuration that the agent couldn't start with.
        report: called with what is wrong after each change, "" for nothing.
    """
    async for _ in file.changes():
        try:
            config, warnings = file.load()
            check(config)
        except BadInput as error:
            log.error(
                "the configuration has changed and can't be used, the old one stays in force: %(error)s",
                {"error": error},
                extra={"code": Code.CONFIGURATION_NOT_APPLIED},
            )
            report(str(error))
            continue
        report("")
        if config != current:
            for warning in warnings:
                log.warning("%s", warning, extra={"code": warning.code})
            log.info("the configuration has changed: starting anew over the rules that are there")
            return
        log.info("the configuration's file has changed, its meaning has not")
