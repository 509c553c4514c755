"""The codes of warnings: in logs, in Events, and about its input.

A code serves searches, alerts and `nftproxy explain NFT403`, which prints its meaning and a remedy.  A number never
changes its meaning, and the number of a retired code is not used again.  The hundreds name the subject: 0 this process
and its node, 1 the configuration and the arguments of commands, 2 objects and files that can't be used, 3 claims of a
Service that fail, 4 the kernel, 5 the API server, 6 the findings of `doctor`.

Here are the proxy's codes.  An extension has its own, which it lists in its `Extension`.  The numbers of all are one
sequence (tests/model/codes.txt).  Each code has an article, in commands/articles.toml or in the extension's folder.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class AnyCode(StrEnum):
    """The code of a warning.  The value is its number, and `summary` describes it in a line."""

    summary: str

    def __new__(cls, number: str, summary: str) -> Self:
        """Make a member that is its number."""
        code = str.__new__(cls, number)
        code._value_ = number
        code.summary = summary
        return code


class Code(AnyCode):
    """The proxy's codes."""

    STARTING = "NFT001", "nftproxy is starting"
    STOPPED_EARLY = "NFT002", "nftproxy was stopped before all rules were loaded"
    WAITING_FOR_LISTING = "NFT003", "No rules are loaded yet, as the first listing is incomplete"
    HANGING_END = "NFT004", "The process had to end without waiting for its own work"
    OTHER_AGENT = "NFT005", "Another nftproxy agent runs on this node"
    OTHER_PROXY = "NFT007", "Another service proxy works on this node, or has left rules"
    PROXY_SEARCH_FAILED = "NFT008", "nftproxy can't find out whether other proxies work on this node"
    OWN_PORT_TAKEN = "NFT009", "A port on which nftproxy answers for health or metrics can't be opened"
    HEALTH_CHECK_PORT_TAKEN = "NFT010", "A Service's health-check node port can't be opened"
    DEFECT = "NFT014", "An unexpected error: a defect in nftproxy or a library"
    LIBRARY_WARNING = "NFT015", "A library that nftproxy uses has logged a warning"
    STARTUP_TAINT_STAYS = "NFT016", "The startup taint can't be removed from the Node"
    NO_LOCK = "NFT017", "Nothing keeps a second agent from this node"
    PODS_UNROUTED = "NFT018", "Nothing routes to endpoints in clusterCIDR"
    NODE_ELSEWHERE = "NFT019", "No interface here has the Node's address"
    NO_DESCRIPTORS = "NFT020", "The agent has no file descriptor left"
    AGENT_SOCKET_FAILED = "NFT021", "The agent can't create the socket on which commands ask it"
    AGENT_SOCKET_STRANGER = "NFT022", "A user without permission has asked the agent"
    AGENT_SILENT = "NFT023", "The agent doesn't answer a command"
    NODE_PORTS_NOWHERE = "NFT024", "The Node has no address that could serve node ports"
    THREAD_HANGS = "NFT025", "A thread of the agent hangs"
    CPU_LIMITED = "NFT026", "A CPU limit stops the agent most of the time"

    CONFIGURATION_UNREADABLE = "NFT101", "The configuration file can't be read"
    CONFIGURATION_INVALID = "NFT102", "A value in the configuration can't be used"
    CONFIGURATION_UNUSED = "NFT103", "A field or flag of kube-proxy has no effect here"
    CONFIGURATION_UNKNOWN_FIELD = "NFT104", "The configuration has an unknown field"
    CONFIGURATION_NOT_APPLIED = "NFT105", "The configuration has changed and can't be used"
    CREDENTIALS_UNUSABLE = "NFT106", "The credentials for the API server can't be used"
    CREDENTIALS_KEPT = "NFT107", "Changed credentials can't be read, so the current ones stay in use"
    TEMPLATE_FAULT = "NFT108", "A rule template doesn't work"
    MODE_AS_NFTABLES = "NFT109", "Another mode of kube-proxy runs as nftables"
    PORT_OF_KUBE_PROXY = "NFT110", "A proxy that runs beside kube-proxy is configured with kube-proxy's port"
    QUESTION_UNREADABLE = "NFT111", "The question to `explain` can't be parsed"
    MANIFESTS_INCOMPLETE = "NFT112", "Something that the manifests need isn't known, or can't be used"
    TRIAL_IMPOSSIBLE = "NFT113", "The arguments of `conformance` can't be used"
    SELECTION_UNREADABLE = "NFT121", "The selector or limit of `list` can't be used"

    FILE_UNREADABLE = "NFT201", "A manifest, or a document in it, can't be read"
    OBJECT_UNREADABLE = "NFT202", "An object can't be used at all"
    OBJECT_TWICE = "NFT203", "An object is in the manifests more than once"
    SERVICE_FIELD = "NFT204", "A part of a Service can't be used"
    SLICE_FIELD = "NFT205", "A part of an EndpointSlice can't be used"
    NODE_FIELD = "NFT206", "A part of the Node can't be used"
    SERVICE_CIDR_FIELD = "NFT207", "A range of a ServiceCIDR can't be used"
    SOURCE_RANGES_CLOSED = "NFT208", "A load balancer's addresses admit nobody, as no source range can be read"
    PORT_REPEATED = "NFT209", "A port repeats the name or number of another port"
    MORE_PROBLEMS = "NFT210", "There are more problems than are logged"
    ANNOTATION_UNUSED = "NFT211", "An annotation of nftproxy has no effect"
    OLD_SPELLING = "NFT212", "An address or range has a spelling that newer API servers deny"
    ONE_FAMILY_GUARDED = "NFT213", "Source ranges restrict one family of a load balancer, and the other is open"

    CONFLICT_TAKEN = "NFT301", "Another Service that takes precedence has the same address and port"
    CONFLICT_CLUSTER_IP = "NFT302", "An external address is another Service's ClusterIP"
    CONFLICT_PROTECTED = "NFT303", "A Service asks for a protected port on the node's own address"
    CONFLICT_NODE_PORT = "NFT304", "A Service asks for another Service's node port on the node's own address"
    EXTERNAL_IP_NOT_ALLOWED = "NFT305", "An external IP is in none of the ranges that are allowed"
    CONFLICT_SHARED_CLUSTER_IP = "NFT306", "A Service has source ranges, and another Service has the same ClusterIP"
    LIMIT_EXCEEDED = "NFT307", "A Service exceeds a limit, and is quarantined"
    TOPOLOGY_UNUSED = "NFT308", "A Service asks for near endpoints, and uses all of them"
    AFFINITY_BY_HASH = "NFT310", "Session affinity for IPv6 goes by a hash of the client's address"
    CONFLICT_API_SERVER = "NFT312", "A Service claims the address at which this node reaches the API server"
    BUDGET_EXCEEDED = "NFT313", "A namespace asks for more than its share of the budget, and a Service is quarantined"

    FEATURE_MISSING = "NFT401", "The kernel or nft lacks something that the rules need"
    FAMILY_MISSING = "NFT402", "The kernel's nftables doesn't know IPv4 or IPv6"
    CHANGE_REFUSED = "NFT403", "The kernel refuses a change, so everything is loaded"
    CHANGE_FAILED = "NFT404", "A change could not be applied, so everything is loaded"
    FAMILIES_REFUSED_TOGETHER = "NFT405", "The kernel refuses the rules of both families together"
    LOAD_FAILED = "NFT406", "The rules could not be loaded"
    QUARANTINED = "NFT407", "The kernel refuses the rules of a Service, and it is quarantined"
    TABLES_TOUCHED = "NFT408", "Another program has changed our tables"
    TABLE_DAMAGED = "NFT409", "A part of our table is missing"
    CHECK_FAILED = "NFT410", "The periodic check could not be made"
    SYSCTL_FAILED = "NFT411", "A kernel setting can't be changed"
    SWEEP_FAILED = "NFT412", "Stale entries of connection tracking can't be deleted"
    RULES_REFUSED = "NFT413", "The kernel refuses the rules that a command has sent"
    NOT_POSSIBLE = "NFT414", "This machine can't do what a command needs"
    SLOW_TRANSACTION = "NFT415", "The kernel took long for a transaction"
    PROXY_ON_TRIAL_FAILED = "NFT417", "The proxy that `conformance` tries ends, or doesn't serve the cluster"

    CHANGES_POSTPONED = "NFT420", "Changes of a Service cost much, and wait for their turn"

    INTERFACES_UNREADABLE = "NFT423", "This machine's interfaces and their addresses can't be read"
    REPLACED_IN_PARTS = "NFT424", "In a user namespace a table was replaced in parts"

    API_UNREACHABLE = "NFT501", "The API server doesn't answer"
    API_UNHELPFUL = "NFT502", "The API server's answer can't be used"
    API_DENIED = "NFT503", "The API server denies access to a resource"
    API_GOING_WITHOUT = "NFT504", "A kind of object may not be listed, and nftproxy goes on without it"
    API_UNKNOWN_EVENT = "NFT505", "The API server sends something that nftproxy doesn't know"
    EVENTS_DROPPED = "NFT506", "Too many Events were waiting to be sent, and the oldest were dropped"
    EVENT_NOT_SENT = "NFT507", "An Event could not be sent"
    EVENT_DENIED = "NFT508", "The API server denies an Event"
    OUT_OF_TOUCH = "NFT509", "Changes of the cluster don't reach this node, so its rules may be out of date"

    NODE_PORTS_EVERYWHERE = "NFT601", "Node ports will be served on the node's primary addresses alone"
    LOCALHOST_NODE_PORTS = "NFT602", "Node ports at localhost will not be served unless you ask for it"
    INVALID_NOT_DROPPED = "NFT603", "Packets that connection tracking finds invalid will no longer be dropped"
    IPVS_SCHEDULER = "NFT604", "Algorithms of nftproxy replace the IPVS schedulers"
    IPVS_ADDRESSES = "NFT605", "No interface will have the Services' addresses"
    BOTH_IPTABLES = "NFT608", "Both variants of iptables have rules of kube-proxy"
    FORWARD_ACCEPTS_GO = "NFT611", "kube-proxy's accept rules will go, and another program drops forwarded packets"
    FORWARD_DROPS = "NFT612", "This node drops forwarded packets unless another program's rule accepts them"
    FIREWALL_IN_NFT = "NFT613", "A firewall drops forwarded packets in a table of its own"
    CALICO_FOLLOWS = "NFT614", "Calico will change its data plane when kube-proxy's tables are gone"
    KUBE_PROXY_LEFT = "NFT615", "kube-proxy's rules are still there beside nftproxy's"
    CILIUM_PRESENT = "NFT616", "Cilium works on this node, or has left rules"
    KUBE_ROUTER_PRESENT = "NFT617", "kube-router works on this node, or has left rules"
    RULES_WITHOUT_AGENT = "NFT618", "nftproxy's rules are loaded, but no agent keeps them up to date"
    ROUTE_LOCALNET_LEFT = "NFT619", "kube-proxy has left route_localnet on"
    NOT_FORWARDING = "NFT624", "The node doesn't forward packets"
    BRIDGE_BYPASSES = "NFT625", "Packets that cross the pods' bridge don't pass the rules"
    CONNTRACK_FULL = "NFT626", "Connection tracking is nearly full"
    CONNTRACK_SMALL = "NFT627", "Connection tracking holds fewer entries than the configuration asks for"
    CONNTRACK_SLOW = "NFT628", "Connection tracking's hash table is small for its entries"
    RIGHTS_USEFUL = "NFT633", "The API denies rights that the agent can do without"
    API_BY_CLUSTER_IP = "NFT634", "The API server is reached by its ClusterIP"
    NODE_UNKNOWN = "NFT635", "The cluster has no Node of this node's name"
    OTHERS_MAY_DROP = "NFT636", "Other programs' chains can drop packets of Services"
    LOCAL_SOURCES_UNKNOWN = "NFT637", "Nothing says which sources are the cluster's own pods"
    API_OLD = "NFT638", "The API server's Kubernetes version is older than nftproxy supports"
    OTHERS_COME_FIRST = "NFT639", "Other programs' chains can take packets before they reach Services"
    TIMEOUTS_SHORT = "NFT641", "Connection tracking forgets idle connections within seconds"
    HAIRPIN_OFF = "NFT642", "A pod can't reach itself through a Service, as its bridge port has no hairpin mode"
    MTU_SMALL = "NFT643", "A tunnel takes smaller packets than the pods send"


NOTES = frozenset({Code.OLD_SPELLING, Code.ONE_FAMILY_GUARDED})
"""The codes of problems that cost nothing: every part of the object is used."""
