"""The directories of nftproxy's templates, and the texts of the rule templates."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def deploy_templates_dir() -> Path:
    """Return the directory of the manifest templates.  It is in the package, as users don't edit them."""
    return _PACKAGE / "deploy"


def templates_dir() -> Path:
    """Return the directory of the rule templates.

    In a checkout (and so in an editable install) this is `templates/` beside the package, where people edit
    it.  An installed wheel has a copy inside the package.
    """
    packaged = _PACKAGE / "templates"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "templates"


def template_texts(directory: Path | None = None) -> dict[str, str]:
    """Read the rule templates of a directory, by default nftproxy's own.  Return the texts by name."""
    return {each.name: each.read_text() for each in sorted((directory or templates_dir()).glob("*.nft.j2"))}
