"""From API JSON to the model: the entrance for objects from outside.

`parse_object` takes decoded JSON (from a YAML file, for example).  `parse_json` takes the bytes of an object, and makes
no dicts of them.  Both give the same result.  An object takes three steps:

1. Its kind matters, and its version is understood.
2. Its shape (schema.py): types are settled, and parts that don't fit are left out (decode.py).
3. Its meaning (kinds.py): names, addresses and ports are judged, and parts that can't be right are left out.

Every part that is left out is reported as a Problem with its path.  Nothing raises for any input.  For an object
that can't be read at all, the result is a Problem and None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from nftproxy.api import schema
from nftproxy.api.decode import MISFITS, Report, convert, is_label, salvage, show
from nftproxy.api.kinds import KINDS, ObjectKind
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.mapping import Mapper, chunks, one_by_one
from nftproxy.model.objects import ClusterObject, EndpointSlice, Ignored, ObjectKey, Service
from nftproxy.model.texts import intern_text

Outcome = ClusterObject | Ignored | None
"""A value, or the reason why it isn't for this proxy, or None: of a kind that doesn't matter, or lost and reported."""

Json = bytes | msgspec.Raw

T = TypeVar("T")

TOGETHER = 250
"""Items of a list that are parsed together."""

MOST_FAULTS, LONGEST_FAULT = 5, 300
"""Faults that an object keeps, and characters of each: an object may have as many faults as it has parts."""

DEFAULT_NAMESPACE = "default"
"""The namespace of an object that names none, as in kubectl."""

_LISTS: dict[str, str] = {"List": ""} | {f"{name}List": name for name in KINDS}


class _Items(schema.TypeMeta):
    """A list of any kind, with its items unread."""

    items: list[msgspec.Raw] | None = None


def parse_object(
    raw: object,
    source: str,
    problems: list[Problem],
    *,
    place: str = "",
    kind: ObjectKind | None = None,
    kinds: Mapping[str, ObjectKind] = KINDS,
) -> Outcome:
    """Parse an object from decoded JSON.

    Args:
        raw: the object, in Python's types for JSON.  Datetimes, which YAML's loaders make, are understood too.
        source: the file that has the object, "" for the API.
        problems: gets the faults of the object.
        place: where in the source the object is, as in "items[3]".  Problems name it until the object has a name.
        kind: the known kind.  Without it, apiVersion and kind decide.
        kinds: the kinds that matter, by name (kinds.py).

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
    known = len(problems)
    try:
        given = msgspec.convert(raw, kind.shape)
    except MISFITS:
        salvaged = salvage(raw, kind.shape, _reporter(source, _subject_of(raw, kind, place), problems, kind.code))
        if salvaged is None:
            return None
        given = salvaged
    return _with_faults(_understand(given, kind, source, problems, place), problems[known:])


def parse_json(
    raw: Json,
    source: str,
    problems: list[Problem],
    *,
    place: str = "",
    kind: ObjectKind | None = None,
    kinds: Mapping[str, ObjectKind] = KINDS,
) -> Outcome:
    """Parse an object from its JSON text, with the arguments of `parse_object`."""
    try:
        if kind is None:
            head = _decode(raw, schema.TypeMeta)
            kind = _kind_of(head.kind, head.api_version, kinds, _reporter(source, place, problems))
            if kind is None:
                return None
        given = _decode(raw, kind.shape)
    except (msgspec.ValidationError, ValueError):
        return _parse_faulty(raw, source, problems, place, kind, kinds)
    known = len(problems)
    return _with_faults(_understand(given, kind, source, problems, place), problems[known:])


def _decode(raw: Json, wanted: type[T]) -> T:
    """Decode a JSON text.

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
    raw: Json,
    source: str,
    problems: list[Problem],
    place: str,
    kind: ObjectKind | None,
    kinds: Mapping[str, ObjectKind],
) -> Outcome:
    """Parse a text that msgspec has rejected, perhaps only for a type in it."""
    try:
        value = _decode(raw, object)
    except ValueError as error:
        _reporter(source, place, problems)("", f"can't be read as JSON: {error}")
        return None
    return parse_object(value, source, problems, place=place, kind=kind, kinds=kinds)


def parse_manifest(
    value: object, source: str, problems: list[Problem], *, place: str = "", kinds: Mapping[str, ObjectKind] = KINDS
) -> list[ClusterObject | Ignored]:
    """Parse a document: an object, or the items of a list.

    Lists are v1 List and the typed lists (ServiceList).  Their items need neither apiVersion nor kind.  The arguments
    are as for `parse_object`.  Null, which an empty YAML document is, holds nothing.
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
    parse = partial(parse_object, source=source, problems=problems, kind=kind, kinds=kinds)
    within = f"{place}, " if place else ""
    return _present(parse(item, place=f"{within}items[{index}]") for index, item in enumerate(items))


def objects_in(document: object) -> Iterator[Mapping[str, Any]]:
    """Yield the object of a decoded document, or the items of its list, with the kind and version of a typed list."""
    if not isinstance(document, dict):
        return
    kind, items = document.get("kind"), document.get("items")
    if not isinstance(kind, str) or not kind.endswith("List"):
        yield document
        return
    defaults = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield from objects_in(defaults | item)


Parsed = tuple[list[ClusterObject | Ignored], list[Problem]]
"""Objects, and the problems in them."""


def parse_manifest_json(
    data: Json, source: str, *, kinds: Mapping[str, ObjectKind] = KINDS, each: Mapper = one_by_one
) -> Iterable[Parsed]:
    """Parse the JSON text of a document in parts, as `parse_manifest` does.

    Raises:
        ValueError: it is not a single JSON text.
    """
    problems: list[Problem] = []
    try:
        head = _decode(data, _Items)
    except msgspec.ValidationError:
        return [(parse_manifest(_decode(data, object), source, problems, kinds=kinds), problems)]
    name = head.kind or ""
    if name not in _LISTS:
        return [(_present([parse_json(data, source, problems, kinds=kinds)]), problems)]
    report = _reporter(source, "", problems)
    kind = _kind_of(_LISTS[name], head.api_version, kinds, report) if _LISTS[name] else None
    if kind is None and _LISTS[name]:
        return [([], problems)]

    def parse(items: Sequence[tuple[int, msgspec.Raw]]) -> Parsed:
        found: list[Problem] = []
        parse_item = partial(parse_json, source=source, problems=found, kind=kind, kinds=kinds)
        return _present(parse_item(item, place=f"items[{index}]") for index, item in items), found

    return each(parse, chunks(list(enumerate(head.items or ())), TOGETHER))


def parse_key(raw: Json, kind: ObjectKind) -> ObjectKey | str | None:
    """Return the key by which the state knows an object: its name if it has no namespace, None if that can't be read.

    For a deletion only the key counts, and only the key identifies an object that is Ignored or lost.
    """
    try:
        given = _decode(raw, schema.ApiObject)
    except (msgspec.ValidationError, ValueError):
        return None
    key = _key(given.metadata or schema.ObjectMeta(), kind, _nowhere)
    return key if key is None or kind.is_namespaced else key.name


def _understand(given: schema.ApiObject, kind: ObjectKind, source: str, problems: list[Problem], place: str) -> Outcome:
    nameless = _reporter(source, _subject(kind, None, place), problems)
    key = _key(given.metadata or schema.ObjectMeta(), kind, nameless)
    if key is None:
        return None
    subject = _subject(kind, key, place)
    reason = kind.ignored(given)
    if reason:
        return Ignored(subject, reason, key, kind.addresses(given))
    return kind.build(given, key, _reporter(source, subject, problems, kind.code))


def _with_faults(outcome: Outcome, found: Sequence[Problem]) -> Outcome:
    """Return an object with its faults, so that `nftproxy list` can show them."""
    if not found or not isinstance(outcome, Service | EndpointSlice):
        return outcome
    texts = (f"{each.code}: {each.field}: {each.message}"[:LONGEST_FAULT] for each in found[:MOST_FAULTS])
    return msgspec.structs.replace(outcome, faults=tuple(texts))


def _kind_of(name: object, api_version: object, kinds: Mapping[str, ObjectKind], report: Report) -> ObjectKind | None:
    """Return the kind of this name if it matters.  A version that isn't understood is reported.

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


def _key(metadata: schema.RawKey, kind: ObjectKind, report: Report) -> ObjectKey | None:
    """Return namespace and name, with the namespace "" for kinds without namespaces."""
    name = metadata.name or ""
    namespace = (metadata.namespace or DEFAULT_NAMESPACE) if kind.is_namespaced else ""
    if not name:
        report("metadata.name", "is missing")
    elif not kind.is_name(name):
        report("metadata.name", f"{show(name)} is not a DNS name that a {kind.name} may have")
    elif namespace and not is_label(namespace):
        report("metadata.namespace", f"{show(namespace)} is not a DNS label of at most 63 characters")
    else:
        return ObjectKey(intern_text(namespace), name)
    return None


def _subject(kind: ObjectKind, key: ObjectKey | None, place: str) -> str:
    """Return an object's name in Problems: "Service shop/web", "Node a", and "Service (items[3])" without a name."""
    if key is None:
        return f"{kind.name} ({place})" if place else kind.name
    return f"{kind.name} {key}" if kind.is_namespaced else f"{kind.name} {key.name}"


def _subject_of(raw: Mapping[object, object], kind: ObjectKind, place: str) -> str:
    metadata = convert(raw.get("metadata"), schema.RawKey, _nowhere) or schema.RawKey()
    return _subject(kind, _key(metadata, kind, _nowhere), place)


def _reporter(source: str, subject: str, problems: list[Problem], usual: Code = Code.OBJECT_UNREADABLE) -> Report:
    """Return a Report that adds Problems of an object.  `usual` is the code of a fault without its own code."""

    def report(field: str, message: str, code: Code | None = None, /) -> None:
        problems.append(Problem(source, subject, field, message, code or usual))

    return report


def _nowhere(_field: str, _message: str, _code: Code | None = None, /) -> None:
    """Report nothing."""


def _present(outcomes: Iterable[Outcome]) -> list[ClusterObject | Ignored]:
    return [outcome for outcome in outcomes if outcome is not None]
