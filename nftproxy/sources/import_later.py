"""Importing what a library imports for features that aren't used here, only if they are used after all.

The standard library's importlib.util.LazyLoader is for the `import` statements of one's own: the statement of somebody
else already looks into the module, and so loads it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType


class _Later(ModuleType):
    """Stands for a module until something of it is used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__path__":  # the import system asks for these, and for modules inside
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_later(*names: str) -> None:
    """Have these modules imported when something of them is used; those that are imported stay as they are.

    It is for modules that are imported whole (`import a`, `from a import b` where b is a module): to import something
    of one (`from a import function`) is to use it.
    """
    for name in names:
        sys.modules.setdefault(name, _Later(name))


def call_later(name: str, *callables: str) -> None:
    """Have a module imported when one of these is called; if it is imported already, it stays as it is.

    It is for what is imported by name (`from a import B`) and only called: `isinstance` wouldn't know it.  Until the
    first call no module inside it can be imported.
    """
    stand_in = _Later(name)
    stand_in.__path__ = []  # `from a import B` looks for it, and would load the module
    for each in callables:
        setattr(stand_in, each, functools.partial(_call, name, each))
    sys.modules.setdefault(name, stand_in)


def _call(module: str, name: str, *positional: object, **named: object) -> object:
    if isinstance(sys.modules.get(module), _Later):
        del sys.modules[module]
    return getattr(importlib.import_module(module), name)(*positional, **named)


def never_import(*names: str) -> None:
    """Have the import of these modules fail, for libraries that can do without; those that are imported stay."""
    for name in names:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # "import of NAME halted; None in sys.modules"
