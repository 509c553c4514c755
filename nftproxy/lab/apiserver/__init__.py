"""A Kubernetes API server for labs and tests: real HTTP and HTTPS, and whatever goes wrong with them, on demand.

    with ApiServer(tls=True, authenticate=True) as server:
        server.put({"kind": "Service", "metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.10"}})
        server.write_kubeconfig(path)
        ...
        server.wait_for_watches(1, "services")
        server.faults.add(faults.Fault(faults.BlackHole(), verb="watch", resource="services"))
        server.rotate_token(grace=1.0)
        server.compact()
        assert len(server.requests(verb="list", resource="services")) == 1

`python -m nftproxy.lab.apiserver --help` is the same as a process.  Both take the extra `nftproxy[conformance]`, which
the agent does without.  Answers are held to those of a real server (tests/support/recordings).  What is written over
HTTP is validated, and Services are given addresses and ports; what `put` writes is stored as it is.

All that can go wrong with it is in `nftproxy.lab.apiserver.faults`.

What isn't there: protobuf, server-side apply, strategic merge and JSON patches, admission, controllers, finalizers,
deleting collections, HTTP/2.
"""

from nftproxy.lab.apiserver.access import Permission, permissions_of
from nftproxy.lab.apiserver.credentials import Authority, Proof
from nftproxy.lab.apiserver.journal import Request
from nftproxy.lab.apiserver.manifests import documents
from nftproxy.lab.apiserver.server import ApiServer
from nftproxy.lab.apiserver.settings import Settings

__all__ = [
    "ApiServer",
    "Authority",
    "Permission",
    "Proof",
    "Request",
    "Settings",
    "documents",
    "permissions_of",
]
