"""nftproxy for Python programs: rules, conflicts and explanations, from objects in memory or in files.

    import nftproxy

    rendered = nftproxy.render(objects, "node-a", config)
    print(rendered.text, rendered.conflicts)
    print(nftproxy.explain(objects, "node-a", "10.96.0.10:80", "outside", config))

`nftproxy` itself imports nothing of this until somebody asks for it.  Nothing here asks a cluster or a kernel: whoever
has objects may use it, and the same objects give the same answers anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple, Protocol

from nftproxy.api.config import EMPTY_CONFIG, parse_config
from nftproxy.api.kinds import Kind, kinds_for
from nftproxy.api.parse import parse_manifest
from nftproxy.api.pods import pods_in
from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.explain import explain as _explain
from nftproxy.explanation.listing import review
from nftproxy.explanation.question import Question, Source, To, parse_source, parse_to
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Problem
from nftproxy.model.objects import Ignored
from nftproxy.model.pods import Pods
from nftproxy.model.settings import Capabilities, Config, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.rules.render import TEMPLATE_NAMES, Renderer
from nftproxy.sources.files import FileContents, Manifests, load_pods, merge
from nftproxy.sources.files import load as load_files
from nftproxy.templates_dir import templates_dir


class HasRaw(Protocol):
    """An object of a Kubernetes client such as kr8s, which has what the API sent in `raw`."""

    @property
    def raw(self) -> Mapping[str, object]:
        """The object as the API has it."""


Object = Mapping[str, object] | HasRaw
"""A Kubernetes object, or a list of some: decoded JSON or YAML, or a client's object.  Kinds that don't matter may be
among them."""
Objects = Iterable[Object] | Manifests
"""Objects, or what `load` found in files."""
Configuration = Config | Mapping[str, object] | None
"""A KubeProxyConfiguration: parsed, or decoded from YAML; None stands for kube-proxy's defaults."""


class Conflict(NamedTuple):
    """An address or port that a Service port claims and doesn't get.

    `code` is that of the reason (docs/troubleshooting.md), `service` reads "shop/web:http", `what` is as nft writes it
    ("203.0.113.9 . tcp . 80"), `why` names who has it.
    """

    code: str
    service: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.service} does not get {self.what}: {self.why}"


class Rendered(NamedTuple):
    """A whole ruleset for one node, and what it doesn't show.

    `text` is what `nft -f` loads, commented for review.  `conflicts` are in the order of the Services.  `quarantined`
    are the Services over a limit, each with the reason.  `problems` is what was wrong with objects, `ignored` are those
    that are for no proxy, or for another one.
    """

    text: str
    conflicts: tuple[Conflict, ...]
    quarantined: Mapping[str, str]
    problems: tuple[Problem, ...]
    ignored: tuple[Ignored, ...]


class Cluster:
    """A cluster as the proxy of one node sees it, to ask it more than one thing.

    Args:
        objects: Services, EndpointSlices, ServiceCIDRs, Nodes (the one called `node` counts), in any order; Pods, if
            questions are to name them.  Bad ones are left out and become problems.
        node: the name of the node.
        config: what the proxy of that node is configured to do.
        families: the IP families that rules are made for.
        capabilities: what the node's nft is able to do; by default what nft 1.1 is.
        templates: what writes the rules, as `renderer` makes it; by default nftproxy's own.

    Raises:
        BadInput: the configuration is wrong.
        TemplateError: a template fails.
    """

    def __init__(
        self,
        objects: Objects,
        node: str,
        config: Configuration = None,
        *,
        families: Iterable[Family] = Family,
        capabilities: Capabilities = Capabilities(),  # noqa: B008  # a value
        templates: Renderer | None = None,
    ) -> None:
        settings = Settings(configuration(config), capabilities)
        kinds = kinds_for(settings.config.service_proxy_name)
        self.manifests = objects if isinstance(objects, Manifests) else parsed(objects, kinds)
        self.pipeline = Pipeline(node, settings, templates or renderer(), families)
        self.pipeline.apply(self.manifests.listing())

    def render(self) -> Rendered:
        """The rules of the node."""
        pipeline, manifests = self.pipeline, self.manifests
        return Rendered(
            "".join(review(pipeline, manifests.problems, manifests.ignored)),
            tuple(
                Conflict(str(lost.denial.code), lost.service_port, lost.what, lost.why(pipeline.state.claims))
                for lost in pipeline.all_losses()
            ),
            {str(key): reason for key, reason in sorted(pipeline.state.excessive.items())},
            tuple(manifests.problems),
            tuple(manifests.ignored),
        )

    def explain(self, to: To | str, source: Source | str | None = None) -> Explanation:
        """What becomes of a connection on the node, and why.

        Args:
            to: where the connection is meant to go: "10.96.0.10:80", "[fd00:96::10]:53/udp", "svc/shop/web:http",
                "node:30080".
            source: where it comes from: an address, "pod/shop/web-1", "node" or "outside"; by default each kind.

        Raises:
            BadInput: the texts are of none of these forms.
        """
        question = Question(
            parse_to(to) if isinstance(to, str) else to, parse_source(source) if isinstance(source, str) else source
        )
        return _explain(self.pipeline, question, self.manifests.pods)


def render(
    objects: Objects,
    node: str,
    config: Configuration = None,
    *,
    families: Iterable[Family] = Family,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  # a value
    templates: Renderer | None = None,
) -> Rendered:
    """The rules of one node, from objects; arguments and errors are those of `Cluster`."""
    made = Cluster(objects, node, config, families=families, capabilities=capabilities, templates=templates)
    return made.render()


def explain(
    objects: Objects, node: str, to: To | str, source: Source | str | None = None, config: Configuration = None
) -> Explanation:
    """What becomes of a connection on one node; arguments and errors are those of `Cluster` and of its `explain`."""
    return Cluster(objects, node, config).explain(to, source)


def load(*paths: str | PathLike[str], config: Configuration = None) -> Manifests:
    """The objects in files and directories of YAML or JSON, as `nftproxy render` reads them.

    Whatever is wrong with one is among the problems of the result; the rest is loaded.
    """
    files = [Path(path) for path in paths]
    found = load_files(files, kinds_for(configuration(config).service_proxy_name))
    return found._replace(pods=load_pods(files))


def parsed(objects: Iterable[Object], kinds: Mapping[str, Kind]) -> Manifests:
    """Objects in memory as `load` has those in files; a problem names an object by its place until it has a name."""
    problems: list[Problem] = []
    raw = [each if isinstance(each, Mapping) else each.raw for each in objects]
    values = [
        value
        for index, each in enumerate(raw)
        for value in parse_manifest(each, "", problems, place=f"objects[{index}]", kinds=kinds)
    ]
    pods = Pods.of(known for each in raw for known in pods_in(each))
    return merge([FileContents("", values, problems, is_broken=False)])._replace(pods=pods)


def configuration(config: Configuration) -> Config:
    """The configuration of a proxy; what is unknown or without effect in it is passed over.

    Raises:
        BadInput: it is wrong.
    """
    if isinstance(config, Config):
        return config
    return parse_config(EMPTY_CONFIG | dict(config or {}), "config")[0]


def renderer(directory: Path | None = None) -> Renderer:
    """The templates of a directory, or our own.

    Raises:
        TemplateError: one is missing, or doesn't parse.
    """
    where = directory or templates_dir()
    return Renderer({name: (where / name).read_text() for name in TEMPLATE_NAMES if (where / name).exists()})
