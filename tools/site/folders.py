"""A hook of mkdocs: links of the repository's pages also lead somewhere in the site, and its tables fit into windows.

A link whose text is the name of a page has the page's title instead.  A link to a folder leads to its README.  An
example without a README gets a page with its files, so that its manifests stand beside its rules.  A link to any other
file, which the site doesn't have, becomes its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nftproxy.version import __version__
from tools import project
from tools.site.tables import labelled

if TYPE_CHECKING:  # only the environment that builds the site has it
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = project.CHECKOUT
LANGUAGES = {".nft": "text", ".txt": "text", ".yaml": "yaml", ".rules": "text"}
"""The files that a folder's page shows, by suffix, and how they are highlighted.  It only names others."""
EXAMPLES = "examples/"
_PAGE_NAME = re.compile(r"`?(?:[\w./-]*/)?[\w-]+\.md`?")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^()#:\s]+)(#[^()\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version below each page, and once the project has an address, let pages lead to their sources."""
    config.copyright = f"nftproxy {__version__}"
    if project.IS_KNOWN:
        config.repo_url, config.edit_uri = project.URL, "edit/main/"
        config.theme["features"].append("content.action.edit")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each example that the pages link to."""
    from mkdocs.structure.files import File

    pages = [ROOT / file.src_uri for file in files.documentation_pages()]
    links = {(page.parent / link).resolve() for page in pages for _, link, _ in _LINK.findall(page.read_text())}
    for folder in sorted(links):
        if _is_example(folder):
            files.append(File.generated(config, f"{folder.relative_to(ROOT)}/index.md", content=folder_page(folder)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_others: object) -> str:
    """Let links lead to the pages of folders, and remove links to files that the site lacks."""
    here = (ROOT / page.file.src_uri).parent

    def led(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        target = (here / link).resolve()
        if not target.exists():
            return match[0]  # the build reports it
        if target.is_dir():
            name = "index.md" if _is_example(target) else "README.md"
            target, link = target / name, f"{link.rstrip('/')}/{name}"
        file = files.get_file_from_path(str(target.relative_to(ROOT)))
        if not (file and file.inclusion.is_included()):
            return text
        return f"[{title_of(target) if _PAGE_NAME.fullmatch(text) else text}]({link}{anchor})"

    return _LINK.sub(led, markdown)


def on_page_content(html: str, **_others: object) -> str:
    """Write the names of columns into the cells of tables."""
    return labelled(html)


def title_of(page: Path) -> str:
    """The first heading of a page."""
    heading = re.search(r"^# (.*)", page.read_text(), re.MULTILINE)
    return heading[1] if heading else page.name


def folder_page(folder: Path) -> str:
    """The page of a folder, as Markdown: its files, with the text of those in LANGUAGES."""
    parts = [f"# {folder.name}\n"]
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        parts.append(f"## {path.relative_to(folder)}\n")
        if language := LANGUAGES.get(path.suffix):
            parts.append(f"````{language}\n{path.read_text()}\n````\n")
    return "\n".join(parts)


def _is_example(folder: Path) -> bool:
    is_inside = folder.is_relative_to(ROOT / EXAMPLES) and folder.is_dir()
    return is_inside and not (folder / "README.md").exists()
