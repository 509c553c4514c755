"""The manners that all commands share: YAML, times, short targets, near names, completion, the version, colours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from nftproxy.commands.cli import commands
from nftproxy.commands.output import painted, rfc3339, structured, with_times
from nftproxy.explanation.question import in_namespace, parse_to
from nftproxy.model.errors import BadInput
from nftproxy.sources.context_namespace import context_namespace
from tests.support.command import nftproxy
from tests.support.fleet import CHECKOUT, agent_state

EXAMPLE = (CHECKOUT / "examples" / "cluster-ip" / "manifests", "--node", "node-a")


def test_yaml_is_what_json_is() -> None:
    """-o yaml prints the values of -o json."""
    given = ("explain", "10.96.0.10:80", *EXAMPLE)
    found = yaml.safe_load(nftproxy(*given, "-o", "yaml").out)
    assert found == json.loads(nftproxy(*given, "-o", "json").out)
    assert found["to"] == "10.96.0.10:80/TCP"


def test_each_command_with_json_has_yaml() -> None:
    """Each option that offers JSON offers YAML, too, but for `run`, whose log has kube-proxy's formats."""
    types = [(name, each.type) for name, command in commands().items() for each in command.params]
    choices = [(name, set(each.choices)) for name, each in types if isinstance(each, click.Choice)]
    assert {name for name, words in choices if "json" in words and "yaml" not in words} <= {"run"}
    assert {name for name, words in choices if {"json", "yaml"} <= words} == {
        *"conformance doctor explain list status top".split()
    }


def test_times_are_rfc_3339() -> None:
    """Times of an agent's state are texts, durations stay numbers of seconds, and null stays null."""
    found = json.loads(structured(with_times(agent_state("node-a")), "json"))
    assert (found["started"], found["now"]) == ("1970-01-12T13:46:40.000Z", "1970-01-12T13:47:40.000Z")
    (family,) = found["families"]
    assert (family["lastUpdated"], family["asOf"], family["waiting"]) == ("1970-01-12T13:47:30.000Z", None, 0.0)
    assert (rfc3339(1.25), rfc3339(1)) == ("1970-01-01T00:00:01.250Z", "1970-01-01T00:00:01Z")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("svc/web", "svc/shop/web"),
        ("service/web:53/UDP", "svc/shop/web:53/UDP"),
        ("services/blog/web:http", "svc/blog/web:http"),
        ("10.96.0.10:80/UDP", "10.96.0.10:80/UDP"),
        ("node:30080", "node:30080"),
        ("svc", "svc"),
    ],
)
def test_a_service_without_a_namespace_gets_one(text: str, whole: str) -> None:
    """svc/web is a Service of the namespace in question, and other destinations stay as they are."""
    assert in_namespace(text, "shop") == whole


def test_kubectls_words_for_a_service() -> None:
    """service/shop/web is svc/shop/web, and a name alone is no destination for an agent."""
    assert parse_to("service/shop/web:http") == parse_to("svc/shop/web:http")
    with pytest.raises(BadInput):
        parse_to("svc/web")


KUBECONFIG = """
contexts:
- {name: a, context: {namespace: shop}}
- {name: b, context: {}}
current-context: a
"""


def test_the_namespace_is_that_of_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace is that of the named or the current context, of the first file that has it, and else "default"."""
    file, broken = tmp_path / "config", tmp_path / "broken"
    file.write_text(KUBECONFIG)
    broken.write_text("contexts: [")
    assert [context_namespace(file), context_namespace(file, "b"), context_namespace(file, "c")] == [
        "shop",
        "default",
        "default",
    ]
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{broken}:{file}")
    assert context_namespace() == "shop"
    done = nftproxy("explain", "svc/web", *EXAMPLE)
    assert (done.status, done.out.splitlines()[0]) == (0, "svc/shop/web, on node node-a")
    assert nftproxy("explain", "svc/web", "-n", "blog", *EXAMPLE).status == 1
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    assert context_namespace() == "default"


def test_a_mistyped_command_gets_the_nearest() -> None:
    """An unknown command's error has the nearest names, if there are any."""
    assert nftproxy("statu").err.splitlines()[-1] == "Error: No such command 'statu'.  Did you mean status?"
    assert nftproxy("xyz").err.splitlines()[-1] == "Error: No such command 'xyz'."


def test_the_version_is_a_command() -> None:
    """`nftproxy version` prints what --version prints, with the commit."""
    assert nftproxy("version").out == nftproxy("--version").out
    assert re.fullmatch(r"nftproxy, version \S+ \(.*(commit|checkout).*\)\n", nftproxy("version").out)


def test_bash_completes_commands(tmp_path: Path) -> None:
    """The printed script has bash complete a command's name."""
    program = tmp_path / "nftproxy"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nftproxy "$@"\n')
    program.chmod(0o755)
    script = nftproxy("completion", "bash").out
    words = "COMP_WORDS=(nftproxy sta) COMP_CWORD=1"
    text = f'{script}\n{words}\n_nftproxy_completion nftproxy\necho "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["status"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str) -> None:
    """Zsh and fish get a script that asks nftproxy for completions."""
    assert f"_NFTPROXY_COMPLETE={shell}_complete" in nftproxy("completion", shell).out


def test_colours_are_for_terminals() -> None:
    """A pipe gets no colours, and with NO_COLOR neither does a terminal."""
    assert painted("fine", "green") == "\x1b[32mfine\x1b[0m"
    status = [sys.executable, "-m", "nftproxy", "status", "--agent-socket", "/nonexistent"]
    for no_color, has_colours in (("", True), ("1", False)):
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "NO_COLOR": no_color, "TERM": "xterm"}
        terminal, end = os.openpty()
        subprocess.run(status, env=environment, stdout=end, stderr=end, check=False)
        os.close(end)
        shown = b""
        while b"Versions:" not in shown:
            shown += os.read(terminal, 4096)
        os.close(terminal)
        assert (b"\x1b[31m" in shown) is has_colours
    assert "\x1b" not in nftproxy("status", "--agent-socket", "/nonexistent").out
