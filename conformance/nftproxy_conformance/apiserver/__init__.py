"""A Kubernetes API server for labs and tests: real HTTP and HTTPS, with faults on demand.

    with ApiServer(tls=True, authenticate=True) as server:
        server.put({"kind": "Service", "metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.10"}})
        server.write_kubeconfig(path)
        ...
        server.wait_for_watches(1, "services")
        server.faults.add(faults.Fault(faults.BlackHole(), verb="watch", resource="services"))
        server.rotate_token(grace=1.0)
        server.compact()
        assert len(server.requests(verb="list", resource="services")) == 1

`python -m nftproxy_conformance.apiserver` runs it as a process.

Tests compare its answers with recordings of a real server (tests/support/recordings).  Writes over HTTP are validated,
and Services get addresses and ports.  `put` stores objects unchanged.  `nftproxy_conformance.apiserver.faults` lists
the faults.

Not supported: protobuf, server-side apply, strategic merge and JSON patches, admission, controllers, finalizers,
deleting collections, HTTP/2.
"""

from nftproxy_conformance.apiserver.access import Permission, permissions_of
from nftproxy_conformance.apiserver.credentials import Authority, Proof
from nftproxy_conformance.apiserver.documents import documents
from nftproxy_conformance.apiserver.journal import Request
from nftproxy_conformance.apiserver.pod_exec import ExecRequest, ExecResult, NoKubeletError
from nftproxy_conformance.apiserver.server import ApiServer
from nftproxy_conformance.apiserver.settings import Settings

__all__ = [
    "ApiServer",
    "Authority",
    "ExecRequest",
    "ExecResult",
    "NoKubeletError",
    "Permission",
    "Proof",
    "Request",
    "Settings",
    "documents",
    "permissions_of",
]
