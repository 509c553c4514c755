"""The rights that `nftproxy manifests --reader` grants: they suffice to ask all nodes, and for nothing else."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer

from nftproxy.commands.list import LISTINGS
from nftproxy.fleet.inventory import WITH_NET_ADMIN
from tests.commands.test_manifests import API_VERSIONS, expect_valid
from tests.conformance.apiserver.clients import bearer
from tests.support.command import nftproxy
from tests.support.fleet import FleetOfAgents, answering, kube_proxy_pod, status_of
from tests.support.selection import every

OTHER = "network"
"""A namespace of agents that isn't kube-proxy's."""
NAMESPACES = ("kube-system", OTHER, "default", "")
VERBS = "get list watch create update patch delete deletecollection impersonate".split()
RESOURCES = [
    ("", each)
    for each in (
        "nodes nodes/proxy pods pods/exec pods/attach pods/portforward pods/proxy pods/log pods/ephemeralcontainers "
        "secrets configmaps services services/proxy events serviceaccounts serviceaccounts/token namespaces"
    ).split()
] + [
    ("apps", "daemonsets"),
    ("discovery.k8s.io", "endpointslices"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
]


def all_objects(namespace: str) -> list[dict[str, Any]]:
    """The objects for the readers of agents in a namespace."""
    return list(yaml.safe_load_all(nftproxy("manifests", "--reader", "--namespace", namespace).out))


OBJECTS = {each["kind"]: each for each in all_objects("kube-system")}


@pytest.mark.parametrize("version", [each for each in API_VERSIONS if int(each.split(".")[1]) >= 30])
def test_every_object_is_what_the_api_takes(version: str) -> None:
    """The objects have the fields and types that the API's schemas ask for, in each version with such policies."""
    for document in all_objects(OTHER):
        expect_valid(yaml.safe_dump(document), version)


@pytest.mark.parametrize("namespace", ["kube-system", OTHER])
def test_the_rights_suffice(namespace: str, tmp_path: Path) -> None:
    """A reader asks all nodes, with servers that check WebSockets by the old rules and by the new rules.

    In each namespace of the agents the reader also sees kube-proxy, which is in kube-system.
    """
    for version in ("v1.34.0", "v1.36.0"):
        with ApiServer(tls=True, authenticate=True) as server:
            server.settings.version = version
            server.allow(*all_objects(namespace))
            cluster = FleetOfAgents(server, tmp_path, namespace)
            cluster.add("node-a", status_of("node-a"))
            server.put(kube_proxy_pod("node-a"))
            done = cluster.nftproxy("status", "--all-nodes", "--agent-namespace", namespace)
            assert done.out == "1 node: 1 well\nkube-proxy beside the agent: node-a\n", done.err


@pytest.mark.parametrize("agents", every(2, ["kube-system", OTHER]))
def test_a_reader_may_do_nothing_else(agents: str) -> None:
    """The API server grants a reader these verbs, and no other verb of any resource in any namespace.

    A resource or verb that a role names is asked, too, so that a wider role grants more than it should.
    """
    rules = [rule for each in all_objects(agents) for rule in each.get("rules", ())]
    verbs = {*VERBS, *(verb for rule in rules for verb in rule["verbs"])}
    named = ((group, each) for rule in rules for group in rule["apiGroups"] for each in rule["resources"])
    resources = {*RESOURCES, *named}
    with (
        ApiServer(tls=True, authenticate=True) as server,
        httpx.Client(
            base_url=server.url,
            headers=bearer(server.token),
            verify=server.authority.client_context() if server.authority else False,
        ) as client,
    ):
        server.allow(*all_objects(agents))
        granted = set()
        for (group, resource), verb, namespace in itertools.product(resources, verbs, NAMESPACES):
            name, _, subresource = resource.partition("/")
            asked = {"group": group, "resource": name, "subresource": subresource, "verb": verb, "namespace": namespace}
            answer = client.post(
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                content=json.dumps({"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}),
            )
            if answer.json()["status"]["allowed"]:
                granted.add((group, resource, verb, namespace))
    assert granted == {
        *(("", "nodes", "list", namespace) for namespace in NAMESPACES),
        *(("", "pods", "list", namespace) for namespace in (agents, "kube-system")),
        ("", "pods/exec", "get", agents),
        ("", "pods/exec", "create", agents),
    }


def test_the_roles_are_bound_to_the_readers_that_the_policy_names() -> None:
    """Each role is bound to the account and the group whose commands the policy checks, and to nobody else."""
    objects = {each["kind"]: each for each in all_objects(OTHER)[:7]}
    policy = objects["ValidatingAdmissionPolicy"]
    (condition,) = policy["spec"]["matchConditions"]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        account, group = objects[kind]["subjects"]
        user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
        assert condition["expression"] == (
            f"request.userInfo.username == '{user}' || '{group['name']}' in request.userInfo.groups"
        )
    binding = objects["ValidatingAdmissionPolicyBinding"]
    assert (binding["spec"]["policyName"], binding["spec"]["validationActions"]) == (
        policy["metadata"]["name"],
        ["Deny"],
    )


def patterns() -> list[re.Pattern[str]]:
    """The regular expressions that each argument of a command must match: of a question, and of `diff`."""
    (validation,) = OBJECTS["ValidatingAdmissionPolicy"]["spec"]["validations"]
    _, *found = validation["expression"].split("each.matches(r'")
    return [re.compile(each.partition("')")[0]) for each in found]


@pytest.mark.parametrize(
    "argument",
    "/etc/passwd ./x --config=/x --kubeconfig=/x --agent-socket=/run/nftproxy/../x --agent-socket=/x run cleanup sh "
    "--svg --trace --from=$(id) -c svc/a svc/../b 10.0.0.1 --interval=1 --templates=/x --node".split(),
)
def test_arguments_that_could_read_files_or_run_programs_are_denied(argument: str) -> None:
    """The policy's patterns match no path, no program, and no option that the questions don't need."""
    assert [each.match(argument) for each in patterns()] == [None, None]


def test_the_questions_of_all_commands_are_admitted(tmp_path: Path) -> None:
    """The policy's patterns match each argument of each command that the command line sends, with all its options."""
    question, comparison = patterns()
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Service"}))
    common = ("--all-nodes", "--agent-socket", "/run/nftproxy/other.sock", "--timeout", "1.5")
    with ApiServer() as server:
        cluster = FleetOfAgents(server, tmp_path)
        cluster.add("node-a", answering({}))
        for given in (
            ("status",),
            *(
                ("list", what, *scope)
                for what in LISTINGS
                for scope in (("-A",), ("-n", "shop", "-l", "a in (b,c),!d"))
            ),
            ("list", "affinity", "-n", "shop", "--limit", "7"),
            *(("explain", to, "-n", "shop") for to in ("svc/web", "svc/web:http/UDP", "node:53/UDP", "[fd00::1]:80")),
            ("explain", "10.96.0.10:80", "--from", "pod/shop/web-1"),
            ("explain", "10.96.0.10:80", "--from", "fd00::1"),
            ("top",),
            ("top", "-n", "shop"),
            ("doctor",),
        ):
            cluster.nftproxy(*given, *common)
        assert [text for each in cluster.asked for text in each.command if not question.match(text)] == []
        assert {each.command[0] for each in cluster.asked} == {"nftproxy"}
        assert len(cluster.asked) == 1 + 2 * len(LISTINGS) + 1 + 4 + 2 + 2 + 1
        cluster.asked.clear()
        cluster.nftproxy("diff", "--live", tmp_path / "x.yaml", *common)
        (asked,) = cluster.asked
        assert [text for text in asked.command if not comparison.match(text)] == []
        assert asked.command[:6] == (*WITH_NET_ADMIN, "diff", "--live", "-")
