"""A Helm chart, made from the template of `nftproxy manifests`.

The template is rendered with all options, with a word in the place of each value.  Then it is rendered without each
option in turn, and the lines that differ go between `{{- if }}` and `{{- end }}`.  So chart and command can't drift
apart.  A canary, and nodes that an EKS cluster must avoid, are for the command alone.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from ipaddress import ip_network

import msgspec

from nftproxy.deploy.daemonset import ALERTS, TEMPLATE, DaemonSetOptions, Json, configuration, deployed, render
from nftproxy.deploy.distributions import KUBEADM
from nftproxy.model.settings import Config
from nftproxy.sources.documents import to_yaml
from nftproxy.templates_dir import deploy_templates_dir
from tools.project import URL

HOST, PORT, IMAGE, SPACE = "host.invalid", 65534, "image.invalid", "space"
LABEL, POD_LABEL = "label.invalid", "pod.invalid"
OLDEST = "1.28"
"""The oldest Kubernetes that is supported (docs/install.md)."""
CIDR = r"(([0-9]{1,3}\.){3}[0-9]{1,3}/[0-9]{1,2}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*/[0-9]{1,3})"
TAINT = ".Values.config.nftproxy.startupTaint"
OF_VALUES = ("clusterCIDR", "nftproxy")
"""The fields of the configuration that `config` of the values has.  With them it may have more."""
GIVEN = "fields-of-values: true\n"
FOUND = "in.values"
"""The key of a mapping that stands for a value."""

LABELS = "{{{{- with .Values.{} }}}}\n{{{{ toYaml . | indent 8 }}}}\n{{{{- end }}}}\n"
NEEDS_HOST = "apiServer.host is needed: the API server as every node reaches it, without a Service"
NEEDS_RANGE = (
    "config.clusterCIDR is needed: the ranges of the pods, unless config.detectLocalMode says how they are recognised"
)
CONFIG = f"""\
    {{{{- $config := deepCopy .Values.config }}}}
    {{{{- if not (or $config.clusterCIDR $config.detectLocalMode) }}}}
    {{{{- fail {json.dumps(NEEDS_RANGE)} }}}}
    {{{{- end }}}}
    {{{{- if kindIs "slice" $config.clusterCIDR }}}}
    {{{{- $_ := set $config "clusterCIDR" (join "," $config.clusterCIDR) }}}}
    {{{{- end }}}}
{{{{ toYaml $config | indent 4 }}}}
"""
EXPRESSIONS = {
    f'        {LABEL}: "1"\n': LABELS.format("nodeSelector"),
    f'        {POD_LABEL}: "1"\n': LABELS.format("podLabels"),
    f"    {GIVEN}": CONFIG,
    f'"{HOST}"': f"{{{{ required {json.dumps(NEEDS_HOST)} .Values.apiServer.host | quote }}}}",
    f'"{PORT}"': "{{ .Values.apiServer.port | quote }}",
    f'"{IMAGE}"': "{{ .Values.image | quote }}",
    f"namespace: {SPACE}\n": "namespace: {{ .Release.Namespace }}\n",
    'imagePullSecrets: [{"name": "in.values"}]': "imagePullSecrets: {{ toJson .Values.imagePullSecrets }}",
    **{
        f'{field}: {{"{FOUND}": "{field}"}}': f"{field}: {{{{ toJson .Values.{value} }}}}"
        for field, value in (("affinity", "affinity"), ("resources", "resources"), ("annotations", "podAnnotations"))
    },
    f'tolerations: [{{"{FOUND}": "tolerations"}}]': "tolerations: {{ toJson .Values.tolerations }}",
}
"""Texts of the rendered template, and what a chart has there."""

CONDITIONS = {
    "has_monitoring": ".Values.monitoring",
    "has_pod_monitor": ".Values.podMonitor",
    "sets_sysctls": ".Values.sysctls",
    "startup_taint": TAINT,
    "pull_secrets": ".Values.imagePullSecrets",
    "pod_annotations": ".Values.podAnnotations",
    "affinity": ".Values.affinity",
}
"""The condition of a chart for each option."""

VALUES = """\
# The image of the agent.
image: nftproxy:{version}

# Secrets for the image's registry, each as in "name: NAME".
imagePullSecrets: []

# Where every node reaches the API server without a Service.  The host is needed.
apiServer:
  host: ""
  port: 6443

# Labels that a node must have to get the agent, beside kubernetes.io/os.
nodeSelector: {{}}

# Which nodes get the agent, in addition to the labels.
affinity: {{}}

# Every node needs its agent, whatever its taints are.
tolerations:
- operator: Exists

# Of each container.
resources:
  requests:
    cpu: 50m
    memory: 128Mi
  limits:
    memory: 1Gi

# Further labels of the pods.
podLabels: {{}}

# Annotations of the pods.
podAnnotations: {{}}

# Whether other machines may scrape metrics.
monitoring: false

# Whether monitoring has a PodMonitor of the Prometheus operator.
podMonitor: true

# Whether there are alerts, as a PrometheusRule of that operator.
alerts: false

# Whether a privileged init container sets the sysctls of connection tracking.
sysctls: true

# More fields of the KubeProxyConfiguration.
config:
  # The ranges of the cluster's pods, one for each family: a list, or a text with a comma.  Needed, unless
  # detectLocalMode says how else pods are recognised.
  clusterCIDR: ""
  nftproxy:
    # The key of a taint to remove from the Node once all rules are loaded.
    startupTaint: ""
"""

ALERTS_TEMPLATE = """\
{{- if .Values.alerts }}
{{ .Files.Get "alerts.yaml" | replace "namespace: kube-system" (printf "namespace: %s" .Release.Namespace) }}
{{- end }}
"""

NOTES = """\
Each node gets an agent, and kube-proxy must not run there:

    kubectl --namespace {{ .Release.Namespace }} rollout status daemonset nftproxy
    kubectl --namespace {{ .Release.Namespace }} exec daemonset/nftproxy -- nftproxy status
"""


def chart(version: str) -> dict[str, str]:
    """Return the files of the chart by their paths in its folder."""
    about = {
        "apiVersion": "v2",
        "name": "nftproxy",
        "description": "A Kubernetes service proxy for nftables, in place of kube-proxy",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": f">={OLDEST}.0-0",
        "home": URL,
        "sources": [URL],
        "maintainers": [{"name": "The nftproxy authors", "url": URL}],
    }
    return {
        "Chart.yaml": to_yaml([about]),
        "values.yaml": VALUES.format(version=version),
        "values.schema.json": msgspec.json.format(msgspec.json.encode(_schema()), indent=2).decode() + "\n",
        "templates/agent.yaml": _template(),
        "templates/alerts.yaml": ALERTS_TEMPLATE,
        "templates/NOTES.txt": f"{NOTES}\nThe way from kube-proxy, and back: {URL}/ (docs/migrate.md).\n",
        "alerts.yaml": (deploy_templates_dir() / ALERTS).read_text(),
    }


def _template() -> str:
    """The template of all objects."""
    lines = _rendered()
    before: dict[int, list[str]] = {}
    for option, condition in CONDITIONS.items():
        for first, last, instead in _differences(lines, _rendered(without=option)):
            if first == last:
                before.setdefault(first, []).extend([f"{{{{- if not {condition} }}}}\n", *instead, "{{- end }}\n"])
                continue
            before.setdefault(first, []).append(f"{{{{- if {condition} }}}}\n")
            before.setdefault(last, [])[:0] = [*(["{{- else }}\n", *instead] if instead else []), "{{- end }}\n"]
    text = "".join("".join(before.get(number, [])) + line for number, line in enumerate([*lines, ""]))
    for found, expression in EXPRESSIONS.items():
        assert found in text, found
        text = text.replace(found, expression)
    return text


def _differences(lines: list[str], other: list[str]) -> Iterator[tuple[int, int, list[str]]]:
    """The places where lines differ from others: the first line, the line after the last, and the other's lines."""
    for kind, first, last, start, end in difflib.SequenceMatcher(None, lines, other, autojunk=False).get_opcodes():
        if kind != "equal":
            yield first, last, other[start:end]


def _schema() -> Json:
    """The schema of the values, which Helm checks before it renders."""
    text, flag, mapping = {"type": "string", "minLength": 1}, {"type": "boolean"}, {"type": "object"}
    fixed = [name for name in _fixed_fields("sets_sysctls") if name != "conntrack"]
    cluster_cidr = {
        "anyOf": [
            {"type": "string", "pattern": f"^({CIDR}(,{CIDR})?)?$"},
            {"type": "array", "items": {"type": "string", "pattern": f"^{CIDR}$"}, "maxItems": 2},
        ]
    }
    config = _with_all({"clusterCIDR": cluster_cidr, "nftproxy": _with_all({"startupTaint": {"type": "string"}})})
    port = {"type": "integer", "minimum": 1, "maximum": 65535}
    only = {"additionalProperties": False}
    labels = mapping | {"additionalProperties": {"type": "string"}}
    values = {
        "image": text,
        "apiServer": _with_all({"host": {"type": "string"}, "port": port}) | only,
        "imagePullSecrets": {"type": "array", "items": _with_all({"name": text}) | only},
        "nodeSelector": labels,
        "affinity": mapping,
        "tolerations": {"type": "array", "items": mapping},
        "resources": mapping,
        "podLabels": labels,
        "podAnnotations": labels,
        "monitoring": flag,
        "podMonitor": flag,
        "alerts": flag,
        "sysctls": flag,
        "config": config | {"propertyNames": {"not": {"enum": fixed}}},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_with_all(values),
        "properties": values | {"global": mapping},
        **only,
        # Without sysctls the template writes the section itself.
        "if": {"properties": {"sysctls": {"const": False}}},
        "then": {"properties": {"config": {"properties": {"conntrack": False}}}},
    }


def _with_all(properties: Json) -> Json:
    """The schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _fixed_fields(without: str = "") -> Json:
    """The fields of the configuration that the template writes itself."""
    return {name: value for name, value in configuration(deployed(_asked(without))).items() if name not in OF_VALUES}


def _rendered(without: str = "") -> list[str]:
    """The lines of the manifests, with a word for each value and with all options, except for `without`."""
    asked = _asked(without)
    text = rendered_manifests(asked, to_yaml([_fixed_fields(without)]) + GIVEN)
    lines = text.splitlines(keepends=True)
    return lines[next(number for number, line in enumerate(lines) if not line.startswith("#")) :]


def rendered_manifests(asked: DaemonSetOptions, configuration_file: str) -> str:
    """Return the manifests with a configuration file of this text."""
    template = (deploy_templates_dir() / TEMPLATE).read_text()
    return render(template, asked, deployed(asked), configuration_file)


def _asked(without: str) -> DaemonSetOptions:
    """All options that a chart has, except for `without`."""
    taint = "" if without == "startup_taint" else "taint.invalid"
    options: Json = {
        "has_monitoring": True,
        "has_pod_monitor": True,
        "sets_sysctls": True,
        "pull_secrets": (FOUND,),
        "pod_annotations": ((FOUND, "annotations"),),
        "affinity": {FOUND: "affinity"},
    }
    if without in options:
        options[without] = type(options[without])()  # false, or empty
    return DaemonSetOptions(
        KUBEADM,
        Config(startup_taint=taint, cluster_cidrs=(ip_network("192.0.2.0/24"),)),
        api_server=f"https://{HOST}:{PORT}",
        image=IMAGE,
        node_labels=((LABEL, "1"),),
        namespace=SPACE,
        pod_labels=((POD_LABEL, "1"),),
        resources={FOUND: "resources"},
        tolerations=[{FOUND: "tolerations"}],
        **options,
    )
