"""Postpones imports that a library makes for features that aren't used here.  They happen at the first use, if ever.

The standard library's importlib.util.LazyLoader serves only our own `import` statements: the statement of a library
already reads an attribute of the module, and so loads it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType


class _Later(ModuleType):
    """Replaces a module until an attribute of it is used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__path__":  # the import system reads these, and submodules
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_later(*names: str) -> None:
    """Postpone the import of modules until an attribute is used.  Modules that are imported already stay.

    This works for modules that are imported as a whole (`import a`, `from a import b` where b is a module).  Importing
    a name of a module (`from a import function`) uses it.
    """
    for name in names:
        sys.modules.setdefault(name, _Later(name))


def call_later(name: str, *callables: str) -> None:
    """Postpone the import of a module until one of these callables is called.  A module that is imported already stays.

    This works for names that are imported and only called: `isinstance` wouldn't recognise them.  Until the first call,
    no module inside it can be imported.
    """
    stand_in = _Later(name)
    stand_in.__path__ = []  # `from a import B` reads it, and would load the module
    for each in callables:
        setattr(stand_in, each, functools.partial(_call, name, each))
    sys.modules.setdefault(name, stand_in)


def _call(module: str, name: str, *positional: object, **named: object) -> object:
    if isinstance(sys.modules.get(module), _Later):
        del sys.modules[module]
    return getattr(importlib.import_module(module), name)(*positional, **named)
