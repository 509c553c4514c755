"""`nftproxy run`: the proxy itself, with the command line of kube-proxy's binary.

A DaemonSet or a unit that runs kube-proxy runs nftproxy with the same arguments.  So booleans are in Go's form
(`--masquerade-all` and `--masquerade-all=true`), underscores in a flag's name stand for dashes, and the flags with
which kube-proxy does another task and exits do the same here: --version, --write-config-to, --cleanup, --init-only.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import logging
import os
import platform
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from nftproxy import logs
from nftproxy.agent.lifecycle.shutdown import asked_to_end
from nftproxy.build import this_build
from nftproxy.commands.options import CONFIG, TEMPLATES, Decorator, options
from nftproxy.commands.standard_streams import unblock_errors
from nftproxy.commands.table_removal import remove_tables
from nftproxy.config.configz import configz
from nftproxy.config.flags import FLAGS, OTHER_FLAGS, OWN_FLAGS, Flag, flag_of, truth
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel import sysctl
from nftproxy.kernel.agent_lock import INHERITED
from nftproxy.kernel.capabilities import machine_lacks, probe
from nftproxy.kernel.child_process import forked_ahead, in_child
from nftproxy.kernel.in_two import in_two
from nftproxy.kernel.killed import name_process
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.process_resources import (
    allowed_files,
    collect_garbage_rarely,
    raise_file_limit,
    share_a_heap,
    take_short_turns,
)
from nftproxy.logs import warn, warn_of
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.model.settings import Config
from nftproxy.policy.extension import Settings
from nftproxy.sources.config_documents import write_config
from nftproxy.sources.config_file import HANDED_OVER, ConfigFile
from nftproxy.templates_dir import template_texts
from nftproxy.version import __version__

log = logging.getLogger("nftproxy")

NAME = "nftproxy"
VERSION_TEXT = f"{NAME} v{__version__}"
"""The output of --version: a name and a version, as in "Kubernetes v1.36.2"."""

CHILDREN = 4
"""Calls in child processes at the start: the probe of libnftables, the templates, the missing features, and the first
load's check."""

_OWN_FLAGS = sorted((*OWN_FLAGS, *map(flag_of, FIELDS)))


def _as_option(flag: Flag) -> Decorator:
    """Return the option of a flag.  Its text is judged like the field of the file."""
    names = [f"--{flag.name}", *(["-v"] if flag.name == "v" else [])]
    whose = "Of nftproxy alone" if flag in _OWN_FLAGS else "As kube-proxy's"
    purpose = f"{whose}: {flag.path}. {flag.help}" if flag.path else f"Without effect: {flag.help}."
    if flag.is_boolean:
        return _boolean(flag.name, purpose)
    return click.option(*names, flag.name.replace("-", "_"), multiple=flag.is_list, help=purpose, metavar="TEXT")


def _boolean(name: str, purpose: str) -> Decorator:
    return click.option(f"--{name}", is_flag=False, flag_value="true", help=purpose, metavar="[=BOOL]")


class _RunCommand(click.Command):
    """The command, whose errors never wait for a reader."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """Return the context of a command line."""
        unblock_errors()
        return super().make_context(*given, **more)


@click.command("run", cls=_RunCommand, context_settings={"token_normalize_func": lambda name: name.replace("_", "-")})
@CONFIG
@TEMPLATES
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Follow the manifests in this directory instead of the API server.",
    metavar="DIR",
)
@click.option(
    "--api-server",
    "--master",
    "api_servers",
    multiple=True,
    help="Another address of the API server, for a node on which its ClusterIP is not served yet.",
    metavar="URL",
)
@_boolean("init-only", "Set the sysctls that the configuration asks for, and end.")
@_boolean("cleanup", "Remove this proxy's tables, and end: `nftproxy cleanup`.")
@click.option(
    "--write-config-to",
    type=click.Path(path_type=Path),
    help="Write the configuration that file and flags make to a file, and end.",
    metavar="FILE",
)
@_boolean("version", "Print the version, and end.  --version=raw prints more of it.")
@options(*map(_as_option, (*FLAGS, *OTHER_FLAGS, *_OWN_FLAGS)))
def run_command(
    config_file: Path | None,
    templates: Path | None,
    source: Path | None,
    api_servers: tuple[str, ...],
    init_only: str | None,
    cleanup: str | None,
    write_config_to: Path | None,
    version: str | None,
    **flags: str | tuple[str, ...] | None,
) -> None:
    """Keep this node's rules up to date, until stopped.

    The rules stay when it ends.  The objects come from the API server (clientConnection.kubeconfig, or a pod's service
    account), or from the manifests in a directory.
    """
    if version and truth(version) is not False:
        click.echo(_version_text(version))
        return
    given = _texts(flags)
    file = ConfigFile(config_file, FIELDS, given)
    config, warnings = file.load()
    logs.set_up(config.logging)
    for warning in warnings:
        warn_of(warning)
    if write_config_to:
        _write(config, write_config_to)
    elif _is_true(cleanup, "cleanup"):
        remove_tables()
    elif _is_true(init_only, "init-only"):
        sysctl.set_up_node(config)
    else:
        name_process()
        _run(config, file, templates, source, api_servers)


def _texts(flags: dict[str, str | tuple[str, ...] | None]) -> dict[str, str]:
    """Return the texts of the given flags, by kube-proxy's names.  Texts of a repeated flag are joined."""
    return {
        name.replace("_", "-"): ",".join(text) if isinstance(text, tuple) else text
        for name, text in flags.items()
        if text not in (None, ())
    }


def _is_true(text: str | None, name: str) -> bool:
    value = truth(text) if text else False
    if not isinstance(value, bool):
        raise click.BadParameter(f"{text!r} is not true or false", param_hint=f"--{name}")
    return value


def _version_text(wanted: str) -> str:
    if wanted == "raw":
        commit = this_build().label
        return f"{VERSION_TEXT} (Python {platform.python_version()}, libnftables {Kernel().version()}, commit {commit})"
    return VERSION_TEXT


def _write(config: Config, file: Path) -> None:
    write_config(file, configz(config))
    log.info("wrote the configuration to %(file)s", {"file": file})


def _run(
    config: Config, file: ConfigFile, templates: Path | None, source: Path | None, api_servers: Sequence[str]
) -> None:
    with forked_ahead(CHILDREN):
        wants_to_start_anew = _run_agent(config, file, templates, source, api_servers)
    if wants_to_start_anew and not asked_to_end.is_set():
        file.hand_over()
        _execute_again()


def _run_agent(
    config: Config, file: ConfigFile, templates: Path | None, source: Path | None, api_servers: Sequence[str]
) -> bool:
    """Run the agent until it is stopped, and return whether to execute it anew."""
    faulthandler.enable()  # if libnftables crashes, this shows where.  A child's last words are the library's
    collect_garbage_rarely()
    share_a_heap()
    take_short_turns()
    raise_file_limit()
    with ThreadPoolExecutor() as pool:
        # One child process probes libnftables, and another compiles the templates.  Meanwhile this process imports the
        # rest, half of all imports.
        probing = pool.submit(probe)
        from nftproxy.installed import ALL_TEMPLATES, INSTALLED, agent_extensions
        from nftproxy.rules.renderer import Renderer
        from nftproxy.rules.template_code import TemplateCode, compile_templates

        texts = template_texts(ALL_TEMPLATES, templates)
        compiling = pool.submit(in_child, compile_templates, texts)
        from nftproxy.agent.daemon import run_agent
        from nftproxy.pipeline import Pipeline
    found = probing.result()
    if found.reason:
        warn(
            Code.AFFINITY_BY_HASH,
            "session affinity for IPv6 goes by a hash of the client's address: %(reason)s",
            level=logging.INFO,  # Services without affinity, or without IPv6, lose nothing
            reason=found.reason,
        )
    node = config.hostname_override or platform.node().lower()
    families = nft_queries.families()
    for family in set(Family) - set(families):
        warn(
            Code.FAMILY_MISSING,
            "this kernel's nftables has no %(family)s: its Services are not served",
            family=FAMILY_NAMES[family],
        )
    renderer = Renderer(texts, TemplateCode(_code_of(compiling)))
    pipeline = Pipeline(node, Settings(config, found.capabilities, INSTALLED), renderer, families, in_two)
    threading.Thread(target=_report_missing_features, daemon=True).start()  # nothing waits for it
    return asyncio.run(run_agent(pipeline, file, source, api_servers, agent_extensions()))


def _code_of(compiling: Future[dict[str, bytes]]) -> dict[str, bytes]:
    """Return the templates' byte code.  Without a child process there is none, and this process compiles them."""
    try:
        return compiling.result()
    except Unavailable:
        return {}


def _execute_again() -> None:
    """Execute this process anew with its command line.

    Only two open files stay: the agents' lock and the checked content of the configuration file.
    """
    kept = sorted(int(os.environ[name]) for name in (INHERITED, HANDED_OVER) if name in os.environ)
    for before, after in itertools.pairwise([2, *kept, allowed_files()]):
        os.closerange(before + 1, after)
    os.execv(sys.executable, sys.orig_argv)


def _report_missing_features() -> None:
    """Log the features that this machine lacks: the kernel's own error is only "No such file or directory"."""
    for feature in machine_lacks():
        warn(
            Code.FEATURE_MISSING,
            "this machine lacks what the rules need: %(feature)s",
            level=logging.ERROR,
            feature=feature,
        )
