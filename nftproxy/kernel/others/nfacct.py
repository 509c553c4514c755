"""Named counters of iptables rules (nfacct), read over nfnetlink.

kube-proxy's rules use two of them for its metrics (pkg/proxy/metrics).  The kernel keeps them as long as a rule refers
to them, and shows them to processes with CAP_NET_ADMIN. linux/netfilter/nfnetlink_acct.h.
"""

from __future__ import annotations

import errno

from nftproxy.kernel.nfnetlink.sockets import bodies, open_socket
from nftproxy.model.errors import Unavailable
from nftproxy.netlink.codec import DUMP, body_attributes, number_of, request, text_of

SUBSYSTEM = 7  # NFNL_SUBSYS_ACCT
NEW, GET = 0, 1  # NFNL_MSG_ACCT_NEW, NFNL_MSG_ACCT_GET
NAME, PACKETS = 1, 2  # NFACCT_NAME, NFACCT_PKTS

_NOT_IN_THIS_KERNEL = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT})


def packets() -> dict[str, int]:
    """Return the packets of each counter of this network namespace, by its name.  None in a kernel without counters.

    Raises:
        Unavailable: the kernel doesn't answer, as without CAP_NET_ADMIN.
    """
    found: dict[str, int] = {}
    try:
        with open_socket() as kernel:
            for body in bodies(kernel, request(SUBSYSTEM, GET, DUMP, 0)):
                attributes = body_attributes(body)
                found[text_of(attributes[NAME])] = number_of(attributes[PACKETS])
    except OSError as error:
        if error.errno in _NOT_IN_THIS_KERNEL:
            return {}
        raise Unavailable(f"the counters of iptables can't be read: {error.strerror or error}") from error
    return found
