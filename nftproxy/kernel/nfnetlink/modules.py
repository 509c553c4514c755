"""Modules that the kernel must have, as advice for nodes that load none on demand.

A hardened node, or one whose SELinux policy denies it, doesn't load a module when a socket or a rule asks for it.  Then
the kernel answers as if it had been built without.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

_ABSENT = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT})
"""Of nfnetlink for a subsystem that isn't there, to a request and to a batch, and of a kernel without nfnetlink."""
_PRESENT = Path("/sys/module")
"""Has a folder for each loaded module."""
_FAMILY = re.compile(r"\btable (ip6?) ")
_COMMENT = re.compile(r'comment ".*')  # which ends a rule
_VERSIONS = {"ip": ("ipv4",), "ip6": ("ipv6",)}
_MODULES = {
    re.compile(words): module
    for words, module in (
        (r"\btype nat ", "nft_chain_nat"),
        (r"\b[ds]nat (ip6? )?(addr|to)\b", "nft_nat"),
        (r"\bmasquerade\b", "nft_masq"),
        (r"\bnumgen\b", "nft_numgen"),
        (r"\bct (?!count)", "nft_ct"),
        (r"\bfib\b", "nft_fib_{}"),
        (r"\breject\b", "nft_reject_{}"),
        (r"\blimit rate\b", "nft_limit"),
        (r"\bct count\b", "nft_connlimit"),
        (r"\bflowtable\b", "nf_flow_table_inet"),
        (r"\bflow add\b", "nft_flow_offload"),
    )
}
"""The modules of what rules have, by nft's words.  Braces stand for ipv4 or ipv6.

nf_tables asks for them by aliases (MODULE_ALIAS_NFT_EXPR in include/net/netfilter/nf_tables.h), so the names are those
of net/netfilter/Makefile, net/ipv4/netfilter/Makefile and net/ipv6/netfilter/Makefile.
"""


def advice(error: OSError, module: str) -> str:
    """Return how to load a module, with a colon before it, "" if the error isn't about a missing module."""
    return _how_to_load(module) if error.errno in _ABSENT else ""


def reason(error: OSError, module: str) -> str:
    """Return the system's words for an error, with `advice` where a module is missing."""
    return f"{error.strerror or error}{advice(error, module)}"


def advice_on(statement: str) -> str:
    """Return how to load the modules that a statement of nft needs and that aren't loaded, "" if there are none."""
    words = _COMMENT.sub("", statement)
    family = _FAMILY.search(words)
    versions = _VERSIONS[family[1]] if family else ("ipv4", "ipv6")
    needed = (name.format(each) for found, name in _MODULES.items() if found.search(words) for each in versions)
    absent = [name for name in dict.fromkeys(needed) if not (_PRESENT / name).exists()]
    return _how_to_load(*absent) if absent else ""


def _how_to_load(*modules: str) -> str:
    several = len(modules) > 1
    return (
        f": unless the kernel has {' and '.join(modules)} built in, run `modprobe {'--all ' * several}"
        f"{' '.join(modules)}` on the node, and write the line{'s' * several} {' and '.join(modules)} into "
        "/etc/modules-load.d/nftproxy.conf for each boot"
    )
