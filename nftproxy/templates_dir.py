"""Where the files that come with nftproxy, but aren't Python, are found."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def deploy_templates_dir() -> Path:
    """Return the directory of the templates of manifests, which nobody edits: it is in the package."""
    return _PACKAGE / "deploy"


def templates_dir() -> Path:
    """Return the directory of the rule templates.

    In a checkout (and so in an editable install) this is `templates/` beside the package, where people edit
    it; an installed wheel carries a copy inside the package.
    """
    packaged = _PACKAGE / "templates"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "templates"
