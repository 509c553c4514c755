"""Modules that a library imports for unused features are imported at their first use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from nftproxy.sources.import_later import call_later, import_later
from tests.support.processes import CHECKOUT


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library, `library_later`, that imports `heavy_later` in both ways."""
    (tmp_path / "library_later.py").write_text(
        "import heavy_later\nfrom whole_later import inner\n"
        "def use(): return heavy_later.VALUE\n"
        "def use_inner(): return inner.VALUE\n"
    )
    (tmp_path / "heavy_later.py").write_text("VALUE = 1\nprint('loaded')\n")
    (tmp_path / "whole_later").mkdir()
    (tmp_path / "whole_later" / "__init__.py").write_text("")
    (tmp_path / "whole_later" / "inner.py").write_text("VALUE = 2\nprint('loaded inner')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("library_later", "heavy_later", "whole_later", "whole_later.inner"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("package")
def test_a_module_is_imported_when_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """The library's import brings nothing.  Its use brings the whole module, once."""
    import_later("heavy_later", "whole_later.inner")
    library = __import__("library_later")
    assert capsys.readouterr().out == ""
    assert [library.use(), library.use(), library.use_inner()] == [1, 1, 2]
    assert capsys.readouterr().out == "loaded\nloaded inner\n"


@pytest.mark.usefixtures("package")
def test_what_is_not_there_is_named() -> None:
    """A missing attribute, or a module that isn't installed, raises the usual error."""
    import_later("heavy_later", "missing_later")
    library = __import__("library_later")
    with pytest.raises(AttributeError, match="heavy_later"):
        library.heavy_later.NOTHING  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="missing_later"):
        sys.modules["missing_later"].anything  # noqa: B018
    sys.modules.pop("missing_later", None)


@pytest.mark.usefixtures("package")
def test_a_module_inside_is_imported_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """The import of a submodule imports the package too."""
    import_later("whole_later")
    inner = importlib.import_module("whole_later.inner")
    assert (inner.VALUE, sys.modules["whole_later"].inner, capsys.readouterr().out) == (2, inner, "loaded inner\n")


@pytest.mark.usefixtures("package")
def test_a_class_is_imported_when_it_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Importing it by name brings nothing.  Each call is a call of the real class, and its module stays."""
    (tmp_path / "heavy_later.py").write_text("print('loaded')\nclass Heavy(list):\n    pass\n")
    call_later("heavy_later", "Heavy")
    stand_in = sys.modules["heavy_later"].Heavy
    assert capsys.readouterr().out == ""
    made = [stand_in((1, 2)), stand_in()]
    assert made == [[1, 2], []]
    assert {type(each) for each in made} == {sys.modules["heavy_later"].Heavy}
    assert capsys.readouterr().out == "loaded\n"


def test_what_is_imported_stays() -> None:
    """A module that is there already is not replaced."""
    import_later("pathlib")
    assert sys.modules["pathlib"].Path is Path


def test_events_need_no_class_box(tmp_path: Path) -> None:
    """Each agent sends an Event at its start.  To send one doesn't load Box, which kr8s' objects are made of."""
    program = """
import asyncio, sys
from nftproxy.model.errors import Unavailable
from nftproxy.sources.api_client import ApiClient

async def send() -> None:
    client = ApiClient(sys.argv[1])
    for name in ("", "web.1"):
        try:
            await client.send_event("shop", {"metadata": {}}, name)
        except Unavailable:
            print("asked")
    await client.aclose()

asyncio.run(send())
print("box.box" in sys.modules)
"""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        """
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: lab, context: {cluster: lab, user: ""}}]
current-context: lab
"""
    )
    command = [sys.executable, "-c", program, str(kubeconfig)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["asked", "asked", "False"], "")
