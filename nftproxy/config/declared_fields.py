"""The fields that extensions declare (model/config_fields.py): their types, their values, and /configz."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from nftproxy.api.decode import Report, Shape, several, show
from nftproxy.config.address_ranges import address_ranges
from nftproxy.config.shapes import KubeProxyConfiguration, Nftproxy
from nftproxy.config.values import INTERFACE, interfaces, word
from nftproxy.model.annotations import Word
from nftproxy.model.config_fields import ConfigField, FieldForm, InsteadOf
from nftproxy.model.settings import Config, Values

Fields = Sequence[ConfigField[Any]]


@functools.cache
def shape_with(fields: tuple[ConfigField[Any], ...]) -> type[KubeProxyConfiguration]:
    """The types of a configuration's fields, those of the section `nftproxy` with declared fields."""
    section = _shape("Nftproxy", Nftproxy, ((each.name, _type(each.form)) for each in fields))
    members: list[tuple[str, Any, Any]] = [("nftproxy", section | None, None)]
    found = msgspec.defstruct("KubeProxyConfiguration", members, bases=(KubeProxyConfiguration,))
    return cast("type[KubeProxyConfiguration]", found)


def _shape(name: str, base: type[Shape], fields: Iterable[tuple[str, Any]]) -> type[Shape]:
    """A shape with further fields, given as paths and types.  A path of several names leads to a section."""
    members: dict[str, list[tuple[str, Any]]] = {}
    for path, type_ in fields:
        first, _, rest = path.partition(".")
        members.setdefault(first, []).append((rest, type_))
    types = {name: each[0][1] if not each[0][0] else _shape(name, Shape, each) for name, each in members.items()}
    found: list[tuple[str, Any, Any]] = [(name, type_ | None, None) for name, type_ in types.items()]
    return cast("type[Shape]", msgspec.defstruct(name, found, bases=(base,)))


def _type(form: FieldForm | Word) -> object:
    match form:
        case FieldForm.TRUTH:
            return bool
        case FieldForm.INTERFACES | FieldForm.NODE_ADDRESSES | Word(is_list=True):
            return list[object]
        case Word():
            return str


def declared_values(given: KubeProxyConfiguration, fields: Fields, report: Report, warn: Report) -> Values:
    """The values of declared fields."""
    return tuple((each, _value(given, each, report, warn)) for each in fields)


def _value(given: KubeProxyConfiguration, field: ConfigField[Any], report: Report, warn: Report) -> object:
    section = given.nftproxy
    own = _at(section, field.name)
    if not own and field.instead_of and (text := _of_mode(given, field.instead_of.path)):
        return _instead(text, field, field.instead_of, warn)
    value = _judged(own, field, report)
    if field.needs and value != field.default and not _at(section, field.needs[0]):
        name, why = field.needs
        report(field.path, f"{text_of(field, value)} needs nftproxy.{name}: {why}")
    return value


def _of_mode(given: KubeProxyConfiguration, path: str) -> str | None:
    """The text at a path in the section of the configured mode, None in another mode."""
    return _at(given, path) if path.partition(".")[0] == given.mode else None


def _instead(text: str, field: ConfigField[Any], replaced: InsteadOf, warn: Report) -> object:
    """The value of a field that a field of kube-proxy's gives."""
    value, difference = field.replacement(text)
    said = f"{show(text)} becomes {field.path}: {text_of(field, value)}"
    warn(replaced.path, f"{said}, where {difference}" if difference else said, replaced.code)
    return value


def _judged(given: Any, field: ConfigField[Any], report: Report) -> object:
    match field.form:
        case FieldForm.TRUTH:
            return bool(given)
        case FieldForm.INTERFACES:
            return several(given, interfaces, field.path, report)
        case FieldForm.NODE_ADDRESSES:
            return address_ranges(given or (), INTERFACE.fullmatch, field.path, report)
        case Word(words, is_list=True):
            return frozenset(several(given, functools.partial(word, words), field.path, report))
        case Word(words):
            found = word(words, given, field.path, report) if given else None
            return field.default if found is None else found


def _at(section: Shape | None, path: str) -> Any:
    """The value at a path of the API's names, None if a section of it is missing."""
    found: Any = section
    for step in path.split("."):
        names = {each.encode_name: each.name for each in msgspec.structs.fields(found)} if found is not None else {}
        found = getattr(found, names[step]) if names else None
    return found


def text_of(field: ConfigField[Any], value: Any) -> object:
    """The value of a field as a file has it."""
    match field.form:
        case FieldForm.TRUTH:
            return value
        case FieldForm.INTERFACES:
            return list(value)
        case FieldForm.NODE_ADDRESSES:
            return list(map(str, value))
        case Word(is_list=True):
            return sorted(each.value for each in value)
        case Word():
            return value.value


def declared_texts(config: Config) -> dict[str, Any]:
    """The declared fields as a file's section `nftproxy` has them."""
    found: dict[str, Any] = {}
    for field, value in config.declared:
        *sections, last = field.name.split(".")
        place = found
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = text_of(field, value)
    return found
