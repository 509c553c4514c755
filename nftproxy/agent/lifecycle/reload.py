"""Reloads of the configuration while the agent runs.

A good configuration ends the agent, and the process executes itself.  A start over existing rules is tested anyway,
takes a single transaction and disturbs no connection, while changing a running agent would be a second way to every
state.  A new process image also frees all memory, and keeps the process number that a supervisor knows.

A bad configuration changes nothing: log, Event, metric and health name its faults until the file is good again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nftproxy.config.configz import changed_fields
from nftproxy.logs import warn, warn_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput
from nftproxy.model.settings import Config
from nftproxy.sources.config_file import ConfigFile

log = logging.getLogger(__name__)


async def until_changed(
    file: ConfigFile, current: Config, check: Callable[[Config], None], report: Callable[[str], None]
) -> None:
    """Return when the file holds a good configuration that differs from the current.

    Args:
        file: the configuration file.
        current: the configuration in force.
        check: raises BadInput for a configuration that the agent couldn't start with.
        report: called after each change with the faults of the configuration, "" for none.
    """
    async for _ in file.changes():
        try:
            config, warnings = file.load()
            check(config)
        except BadInput as error:
            warn(
                Code.CONFIGURATION_NOT_APPLIED,
                "the configuration has changed and can't be used; the previous configuration stays in force: %(error)s",
                level=logging.ERROR,
                error=error,
            )
            report(str(error))
            continue
        report("")
        if config != current:
            for warning in warnings:
                warn_of(warning)
            text = "the configuration has changed: the agent restarts, and its rules stay in force: %(fields)s"
            log.info(text, {"fields": ", ".join(changed_fields(current, config))})
            return
        log.info("the configuration file changed, but no setting did")
