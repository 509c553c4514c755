"""From API JSON to the model: the way in for objects from outside.

Two ways, one outcome: `parse_object` takes decoded JSON (from a YAML file, say), `parse_json` takes the bytes of one
object and makes no dicts of it.  An object takes three steps:

1. Is it of a kind that matters, in a version that is understood?
2. Its shape (schema.py): types are settled, and what doesn't fit is left out (decode.py).
3. Its meaning (kinds.py says where): names, addresses and ports are judged, and what can't be right is left out.

Whatever is left out is reported as a Problem with its path.  Nothing raises, whatever the input: an object that can't
be read at all is a Problem and a None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from nftproxy.api import schema
from nftproxy.api.decode import MISFITS, Report, convert, salvage, show
from nftproxy.api.kinds import KINDS, Kind
from nftproxy.api.validate import is_label
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import ClusterObject, Ignored, ObjectKey
from nftproxy.model.shared import shared

Outcome = ClusterObject | Ignored | None
"""A value, or why it isn't for this proxy, or None: of a kind that doesn't matter, or lost and reported."""

Json = bytes | msgspec.Raw

T = TypeVar("T")

DEFAULT_NAMESPACE = "default"
"""Where an object goes that names no namespace, as kubectl has it."""

_LISTS: dict[str, str] = {"List": ""} | {f"{name}List": name for name in KINDS}


class _Items(schema.TypeMeta):
    """A list of any kind, its items yet to be read."""

    items: list[msgspec.Raw] | None = None


def parse_object(
    raw: object,
    source: str,
    problems: list[Problem],
    *,
    place: str = "",
    kind: Kind | None = None,
    kinds: Mapping[str, Kind] = KINDS,
) -> Outcome:
    """One object from decoded JSON.

    Args:
        raw: the object, in Python's types for JSON (datetimes, which YAML's loaders make, are understood too).
        source: the file it is from, "" for the API.
        problems: takes what is wrong with it.
        place: where in the source it stands, as in "items[3]"; problems say so until it has a name.
        kind: taken for granted; without it, apiVersion and kind decide.
        kinds: those that matter, by name (kinds.py).

    Returns:
        None also for an object of a kind that doesn't matter, which is no problem.
    """
    report = _reporter(source, place, problems)
    if not isinstance(raw, Mapping):
        report("", f"{show(raw)} is not an object")
        return None
    kind = kind or _kind_of(raw.get("kind"), raw.get("apiVersion"), kinds, report)
    if kind is None:
        return None
    try:
        given = msgspec.convert(raw, kind.shape)
    except MISFITS:
        salvaged = salvage(raw, kind.shape, _reporter(source, _subject_of(raw, kind, place), problems, kind.code))
        if salvaged is None:
            return None
        given = salvaged
    return _understand(given, kind, source, problems, place)


def parse_json(
    raw: Json,
    source: str,
    problems: list[Problem],
    *,
    place: str = "",
    kind: Kind | None = None,
    kinds: Mapping[str, Kind] = KINDS,
) -> Outcome:
    """One object from its JSON text; else as `parse_object`."""
    try:
        if kind is None:
            head = _decode(raw, schema.TypeMeta)
            kind = _kind_of(head.kind, head.api_version, kinds, _reporter(source, place, problems))
            if kind is None:
                return None
        given = _decode(raw, kind.shape)
    except (msgspec.ValidationError, ValueError):
        return _parse_faulty(raw, source, problems, place, kind, kinds)
    return _understand(given, kind, source, problems, place)


def _decode(raw: Json, wanted: type[T]) -> T:
    """What is in a JSON text.

    Raises:
        msgspec.ValidationError: it is JSON, but not of this type.
        ValueError: it isn't JSON, or isn't UTF-8, or is nested too deeply.
    """
    try:
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _parse_faulty(
    raw: Json, source: str, problems: list[Problem], place: str, kind: Kind | None, kinds: Mapping[str, Kind]
) -> Outcome:
    """What msgspec refused, perhaps only for a type in it."""
    try:
        value = _decode(raw, object)
    except ValueError as error:
        _reporter(source, place, problems)("", f"can't be read as JSON: {error}")
        return None
    return parse_object(value, source, problems, place=place, kind=kind, kinds=kinds)


def parse_manifest(
    value: object, source: str, problems: list[Problem], *, place: str = "", kinds: Mapping[str, Kind] = KINDS
) -> list[ClusterObject | Ignored]:
    """All that matters in one document: the object that it is, or the items of the list that it is.

    Lists are v1 List and the typed ones (ServiceList), whose items need say neither apiVersion nor kind.
    Arguments are as for `parse_object`; null, which an empty YAML document is, holds nothing.
    """
    if value is None:
        return []
    head = value if isinstance(value, Mapping) else {}
    name = head.get("kind")
    if not isinstance(name, str) or name not in _LISTS:
        return _present([parse_object(value, source, problems, place=place, kinds=kinds)])
    report = _reporter(source, place, problems)
    items = head.get("items") or []
    if not isinstance(items, list):
        report("items", f"{show(items)} is not a list")
        return []
    kind = _kind_of(_LISTS[name], head.get("apiVersion"), kinds, report) if _LISTS[name] else None
    if kind is None and _LISTS[name]:
        return []
    return _present(
        parse_object(
            item,
            source,
            problems,
            place=f"{place}, items[{index}]" if place else f"items[{index}]",
            kind=kind,
            kinds=kinds,
        )
        for index, item in enumerate(items)
    )


def parse_manifest_json(
    data: Json, source: str, problems: list[Problem], *, kinds: Mapping[str, Kind] = KINDS
) -> list[ClusterObject | Ignored]:
    """As `parse_manifest`, from the JSON text of one document.

    Raises:
        ValueError: it is not one JSON text.
    """
    try:
        head = _decode(data, _Items)
    except msgspec.ValidationError:
        return parse_manifest(_decode(data, object), source, problems, kinds=kinds)
    name = head.kind or ""
    if name not in _LISTS:
        return _present([parse_json(data, source, problems, kinds=kinds)])
    kind = None
    if _LISTS[name]:
        kind = _kind_of(_LISTS[name], head.api_version, kinds, _reporter(source, "", problems))
        if kind is None:
            return []
    return _present(
        parse_json(item, source, problems, place=f"items[{index}]", kind=kind, kinds=kinds)
        for index, item in enumerate(head.items or ())
    )


def parse_key(raw: Json, kind: Kind) -> ObjectKey | str | None:
    """The key by which the state knows the object in a JSON text, its name if it has no namespace; None if unreadable.

    For a deletion nothing else counts, and nothing else identifies an object that is Ignored or lost.
    """
    try:
        given = _decode(raw, schema.ApiObject)
    except (msgspec.ValidationError, ValueError):
        return None
    key = _key(given.metadata or schema.ObjectMeta(), kind, _nowhere)
    return key if key is None or kind.is_namespaced else key.name


def _understand(given: schema.ApiObject, kind: Kind, source: str, problems: list[Problem], place: str) -> Outcome:
    nameless = _reporter(source, _subject(kind, None, place), problems)
    key = _key(given.metadata or schema.ObjectMeta(), kind, nameless)
    if key is None:
        return None
    subject = _subject(kind, key, place)
    reason = kind.ignored(given)
    return (
        Ignored(subject, reason) if reason else kind.build(given, key, _reporter(source, subject, problems, kind.code))
    )


def _kind_of(name: object, api_version: object, kinds: Mapping[str, Kind], report: Report) -> Kind | None:
    """The kind that matters by this name; None for others, and, reported, for a version that isn't understood.

    A kind of the same name in another API group (serving.knative.dev Service) is another kind.
    """
    for field, value in (("kind", name), ("apiVersion", api_version)):
        if not isinstance(value, str) or not value:
            report(field, "is missing" if value in (None, "") else f"{show(value)} is not a string")
            return None
    kind = kinds.get(str(name))
    version = str(api_version)
    if name in _LISTS and kind is None:
        report("kind", f"a {name} within a list is not read")
    if kind is None or version in kind.api_versions:
        return kind
    if version.rpartition("/")[0] == kind.api_versions[0].rpartition("/")[0]:
        report("apiVersion", f"{show(version)} is not understood, only {' and '.join(kind.api_versions)}")
    return None


def _key(metadata: schema.Names, kind: Kind, report: Report) -> ObjectKey | None:
    """Namespace and name, the namespace "" for kinds that are in none."""
    name = metadata.name or ""
    namespace = (metadata.namespace or DEFAULT_NAMESPACE) if kind.is_namespaced else ""
    if not name:
        report("metadata.name", "is missing")
    elif not kind.is_name(name):
        report("metadata.name", f"{show(name)} is not a DNS name of the kind that a {kind.name} may have")
    elif namespace and not is_label(namespace):
        report("metadata.namespace", f"{show(namespace)} is not a DNS label of at most 63 characters")
    else:
        return ObjectKey(shared(namespace), name)
    return None


def _subject(kind: Kind, key: ObjectKey | None, place: str) -> str:
    """How Problems name an object: "Service shop/web", "Node a", and while it has no name "Service (items[3])"."""
    if key is None:
        return f"{kind.name} ({place})" if place else kind.name
    return f"{kind.name} {key}" if kind.is_namespaced else f"{kind.name} {key.name}"


def _subject_of(raw: Mapping[object, object], kind: Kind, place: str) -> str:
    metadata = convert(raw.get("metadata"), schema.Names, _nowhere) or schema.Names()
    return _subject(kind, _key(metadata, kind, _nowhere), place)


def _reporter(source: str, subject: str, problems: list[Problem], usual: Code = Code.OBJECT_UNREADABLE) -> Report:
    """A way to report what is wrong with an object; `usual` is the code where a fault has none of its own."""

    def report(field: str, message: str, code: Code | None = None, /) -> None:
        problems.append(Problem(source, subject, field, message, code or usual))

    return report


def _nowhere(_field: str, _message: str, _code: Code | None = None, /) -> None:
    """Report nothing."""


def _present(outcomes: Iterable[Outcome]) -> list[ClusterObject | Ignored]:
    return [outcome for outcome in outcomes if outcome is not None]
