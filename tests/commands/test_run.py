"""The start of `nftproxy run`, before it follows the cluster."""

from __future__ import annotations

import contextlib
import threading
from typing import NoReturn

import pytest

from nftproxy import library, logs
from nftproxy.commands import run
from nftproxy.commands.cli import commands
from nftproxy.kernel.capabilities import Probe
from nftproxy.library import renderer
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.rules.renderer import Renderer

LONG = 60.0  # seconds: compiling eight templates takes a tenth of a second


class _Ready(Exception):
    """Everything is there that the rules are made with."""


def test_nothing_waits_while_another_process_tries_libnftables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libnftables' features are probed while templates are compiled, and known before rules are made."""
    is_compiled = threading.Event()

    def compile_templates(templates: None) -> Renderer:
        made = renderer(templates)
        is_compiled.set()
        return made

    def probe() -> Probe:
        assert is_compiled.wait(LONG), "the templates wait for this"
        return Probe(Capabilities(wide_maps=True))

    def pipeline(_node: str, settings: Settings, *_: object) -> NoReturn:
        assert settings.capabilities.wide_maps
        raise _Ready

    monkeypatch.setattr(library, "renderer", compile_templates)
    monkeypatch.setattr(run, "probe", probe)
    monkeypatch.setattr("nftproxy.pipeline.Pipeline", pipeline)
    monkeypatch.setattr(run, "forked_ahead", contextlib.nullcontext)
    monkeypatch.setattr(run, "raise_file_limit", lambda: None)
    monkeypatch.setattr(run, "collect_garbage_rarely", lambda: None)
    monkeypatch.setattr(run, "share_a_heap", lambda: None)
    monkeypatch.setattr(run, "take_short_turns", lambda: None)
    monkeypatch.setattr(logs, "set_up", lambda _: None)
    with pytest.raises(_Ready):
        commands()["run"].main([], standalone_mode=False)
