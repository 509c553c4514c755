"""Counters that rules of iptables count in by name (nfacct), asked over nfnetlink.

kube-proxy's rules count what its metrics report in two of them (pkg/proxy/metrics); the kernel has them for as long as
a rule refers to them, and shows them to whoever has CAP_NET_ADMIN.  linux/netfilter/nfnetlink_acct.h.
"""

from __future__ import annotations

import errno

from nftproxy.kernel.netlink import DUMP, GENERAL, attributes_of, bodies, number_of, open_socket, request, text_of
from nftproxy.model.errors import Unavailable

SUBSYSTEM = 7  # NFNL_SUBSYS_ACCT
NEW, GET = 0, 1  # NFNL_MSG_ACCT_NEW, NFNL_MSG_ACCT_GET
NAME, PACKETS = 1, 2  # NFACCT_NAME, NFACCT_PKTS

_BUFFER_SIZE = 1 << 16
_NOT_IN_THIS_KERNEL = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT})


def packets() -> dict[str, int]:
    """How many packets each counter of this network namespace has met, by its name; none in a kernel without them.

    Raises:
        Unavailable: the kernel doesn't answer, as without CAP_NET_ADMIN.
    """
    found: dict[str, int] = {}
    try:
        with open_socket() as kernel:
            for body in bodies(kernel, request(SUBSYSTEM, GET, DUMP, 0), _BUFFER_SIZE):
                attributes = dict(attributes_of(body, GENERAL.size))
                found[text_of(attributes[NAME])] = number_of(attributes[PACKETS])
    except OSError as error:
        if error.errno in _NOT_IN_THIS_KERNEL:
            return {}
        raise Unavailable(f"the counters of iptables can't be read: {error.strerror or error}") from error
    return found
