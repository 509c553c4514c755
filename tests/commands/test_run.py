"""The start of `nftproxy run`, before it follows the cluster."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn

import pytest

from nftproxy import logs
from nftproxy.commands import run
from nftproxy.commands.cli import commands
from nftproxy.kernel.capabilities import Probe
from nftproxy.model.errors import Unavailable
from nftproxy.model.settings import Capabilities
from nftproxy.policy.extension import Settings
from nftproxy.rules.renderer import Renderer
from tests.rules.test_renderer import PORT, TABLE
from tests.support import factories

LONG = 60.0  # seconds: both take a tenth of a second


class _Ready(Exception):
    """Everything is there that the rules are made with."""


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process as it is, and end before there are rules."""

    def pipeline(_node: str, settings: Settings, renderer: Renderer, *_: object) -> NoReturn:
        assert settings.capabilities.wide_maps
        assert renderer.port(PORT, TABLE) == factories.renderer().port(PORT, TABLE)
        raise _Ready

    monkeypatch.setattr("nftproxy.pipeline.Pipeline", pipeline)
    monkeypatch.setattr(run, "forked_ahead", contextlib.nullcontext)
    monkeypatch.setattr(run, "raise_file_limit", lambda: None)
    monkeypatch.setattr(run, "collect_garbage_rarely", lambda: None)
    monkeypatch.setattr(run, "share_a_heap", lambda: None)
    monkeypatch.setattr(run, "take_short_turns", lambda: None)
    monkeypatch.setattr(logs, "set_up", lambda _: None)


def _begin() -> None:
    with pytest.raises(_Ready):
        commands()["run"].main([], standalone_mode=False)


def test_a_process_tries_libnftables_while_another_compiles_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are probed and templates compiled at the same time, and both are known before rules are made."""
    both = threading.Barrier(2, timeout=LONG)

    def probe() -> Probe:
        both.wait()
        return Probe(Capabilities(wide_maps=True))

    def in_child(function: Callable[[Mapping[str, str]], object], texts: Mapping[str, str]) -> object:
        both.wait()
        return function(texts)

    monkeypatch.setattr(run, "probe", probe)
    monkeypatch.setattr(run, "in_child", in_child)
    _begin()
    assert not both.broken


def test_templates_are_compiled_here_if_no_process_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a child process the agent compiles its templates itself."""

    def in_child(*_: object) -> NoReturn:
        raise Unavailable("no process can be started")

    monkeypatch.setattr(run, "probe", lambda: Probe(Capabilities(wide_maps=True)))
    monkeypatch.setattr(run, "in_child", in_child)
    _begin()
