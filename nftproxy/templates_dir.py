"""The directories of nftproxy's templates, and the texts of the rule templates."""

from collections.abc import Iterable
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


def template_texts(names: Iterable[str], directory: Path | None = None) -> dict[str, str]:
    """Read these templates in a directory, by default in nftproxy's own.  Return the texts of the templates that exist.

    Other files there are left alone: a name such as `.#table.nft.j2` may be an editor's lock.
    """
    where = directory or templates_dir()
    return {name: (where / name).read_text() for name in names if (where / name).exists()}
