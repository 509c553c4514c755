"""nftproxy for Python programs: rules, conflicts and explanations, from objects in memory or in files.

    import nftproxy

    rendered = nftproxy.render(objects, "node-a", config)
    print(rendered.text, rendered.conflicts)
    print(nftproxy.explain(objects, "node-a", "10.96.0.10:80", "outside", config))

`import nftproxy` itself imports nothing of this.  No cluster and no kernel is involved: the same objects give the same
results on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple, Protocol

from nftproxy.api.kinds import ObjectKind, kinds_for
from nftproxy.api.parse import parse_manifest
from nftproxy.api.pod_addresses import pods_in
from nftproxy.config.parse_config import EMPTY_CONFIG, parse_config
from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.answering import explain as _explain
from nftproxy.explanation.listing import review
from nftproxy.explanation.question import Question, Source, To, parse_source, parse_to
from nftproxy.installed import ALL_TEMPLATES, INSTALLED, OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Problem
from nftproxy.model.mapping import Mapper, one_by_one
from nftproxy.model.objects import Ignored
from nftproxy.model.pods import Pods
from nftproxy.model.settings import Capabilities, Config
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.rules.renderer import Renderer
from nftproxy.sources.files import FileContents, Manifests, load_pods, merge
from nftproxy.sources.files import load as load_files
from nftproxy.templates_dir import template_texts


class HasRaw(Protocol):
    """An object of a Kubernetes client such as kr8s, which has the API's JSON in `raw`."""

    @property
    def raw(self) -> Mapping[str, object]:
        """The object as the API has it."""


Object = Mapping[str, object] | HasRaw
"""A Kubernetes object, or a list of objects: decoded JSON or YAML, or a client's object.  Kinds that nftproxy doesn't
read are skipped."""
Objects = Iterable[Object] | Manifests
"""Objects, or the result of `load`."""
Configuration = Config | Mapping[str, object] | None
"""A KubeProxyConfiguration, parsed, or decoded from YAML.  None means kube-proxy's defaults."""


class Conflict(NamedTuple):
    """An address or port that a Service port claims and doesn't get."""

    code: str  # of the reason (docs/codes.md)
    service: str  # as in "shop/web:http"
    what: str  # its address and port, "203.0.113.9:80/TCP", or "node:30080/TCP" for a node port
    why: str  # names the holder

    def __str__(self) -> str:
        return f"{self.service} does not get {self.what}: {self.why}"


class Rendered(NamedTuple):
    """The complete ruleset of a node, and everything that is left out of it."""

    text: str  # for `nft -f`, commented for review
    conflicts: tuple[Conflict, ...]  # in the order of the Services
    quarantined: Mapping[str, str]  # the Services over a limit, each with the reason
    problems: tuple[Problem, ...]  # faults in objects
    ignored: tuple[Ignored, ...]  # objects that are for no proxy, or for another proxy


class Cluster:
    """A cluster as the proxy of a node sees it, for several questions about the same objects.

    Args:
        objects: Services, EndpointSlices, ServiceCIDRs and Nodes (of which only `node` counts), in any order.  Pods
            too, if questions name them.  Bad objects are left out and become problems.
        node: the name of the node.
        config: the configuration of the node's proxy.
        families: the IP families of the rules.
        capabilities: the capabilities of the node's nft, by default those of nft 1.1.
        templates: the templates of the rules, from `renderer`, by default nftproxy's own.
        each: compiles groups of Services, perhaps in other processes.

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
        each: Mapper = one_by_one,
    ) -> None:
        settings = Settings(configuration(config), capabilities, INSTALLED)
        kinds = kinds_for(settings.config.service_proxy_name, OPTIONS)
        self.manifests = objects if isinstance(objects, Manifests) else parsed(objects, kinds)
        self.pipeline = Pipeline(node, settings, templates or renderer(), families, each)
        self.pipeline.fill(self.manifests.listing())

    def render(self) -> Rendered:
        """Return the rules of the node."""
        pipeline, manifests = self.pipeline, self.manifests
        return Rendered(
            "".join(review(pipeline, manifests.problems, manifests.ignored)),
            tuple(
                Conflict(str(lost.denial.code), lost.service_port, lost.what, lost.why(pipeline.state.claims))
                for lost in pipeline.losses.all()
            ),
            {str(key): excess.reason for key, excess in sorted(pipeline.state.excessive.items())},
            tuple(manifests.problems),
            tuple(manifests.ignored),
        )

    def explain(self, to: To | str, source: Source | str | None = None) -> Explanation:
        """Explain the fate of a connection on the node.

        Args:
            to: the destination: "10.96.0.10:80", "[fd00:96::10]:53/UDP", "svc/shop/web:http", "node:30080".
            source: the client: an address, "pod/shop/web-1", "node" or "outside".  By default each kind is explained.

        Raises:
            BadInput: the texts have none of these forms.
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
    """Return the rules of a node.  Arguments and errors are as for `Cluster`."""
    made = Cluster(objects, node, config, families=families, capabilities=capabilities, templates=templates)
    return made.render()


def explain(
    objects: Objects, node: str, to: To | str, source: Source | str | None = None, config: Configuration = None
) -> Explanation:
    """Explain a connection on a node.  Arguments and errors are as for `Cluster` and `Cluster.explain`."""
    return Cluster(objects, node, config).explain(to, source)


def load(*paths: str | PathLike[str], config: Configuration = None) -> Manifests:
    """Load the objects in files and directories of YAML or JSON, as `nftproxy render` reads them.

    Faults are among the problems of the result, and cost nothing else.
    """
    files = [Path(path) for path in paths]
    found = load_files(files, kinds_for(configuration(config).service_proxy_name, OPTIONS))
    return found._replace(pods=load_pods(files))


def parsed(objects: Iterable[Object], kinds: Mapping[str, ObjectKind]) -> Manifests:
    """Parse objects in memory, as `load` does for files.  A problem names an object without a name by its place."""
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
    """Parse the configuration of a proxy, without warnings about unknown and unused fields.

    Raises:
        BadInput: it is wrong.
    """
    if isinstance(config, Config):
        return config
    return parse_config(EMPTY_CONFIG | dict(config or {}), "config", FIELDS)[0]


def renderer(directory: Path | None = None) -> Renderer:
    """Load the templates of a directory, or nftproxy's own.

    Raises:
        TemplateError: a template is missing, or doesn't parse.
    """
    return Renderer(template_texts(ALL_TEMPLATES, directory))
