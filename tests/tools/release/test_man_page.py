"""The manual page of the Debian package."""

from __future__ import annotations

import shutil
import subprocess

import click
import pytest

from nftproxy.commands.cli import commands
from tools.release.deb_package import FILES
from tools.release.man_page import man_page

PAGE = man_page((FILES / "nftproxy.8").read_text())


@pytest.mark.parametrize("name", sorted(commands()))
def test_each_command_and_option_is_on_the_page(name: str) -> None:
    """The page has a section for each command, with all of its options."""
    section = PAGE.partition(f".SS nftproxy {name} ")[2].partition(".SS ")[0]
    options = [each for each in commands()[name].params if isinstance(each, click.Option) and not each.hidden]
    assert section
    assert [flag for each in options for flag in each.opts if flag.replace("-", "\\-") not in section] == []


def test_roff_has_nothing_to_say() -> None:
    """Groff formats the page without a warning."""
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    command = ["groff", "-man", "-ww", "-Tutf8", "-K", "utf8"]
    done = subprocess.run(command, input=PAGE, capture_output=True, text=True, check=True)
    assert done.stderr == ""
