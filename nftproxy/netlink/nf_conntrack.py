"""The numbers of connection tracking's messages and attributes (linux/netfilter/nfnetlink_conntrack.h)."""

from nftproxy.model.addresses import Family

SUBSYSTEM = 1  # NFNL_SUBSYS_CTNETLINK
NEW, GET, DELETE = 0, 1, 2  # IPCTNL_MSG_CT_*

TUPLE_ORIGINAL, TUPLE_REPLY, STATUS, PROTOCOL_INFO, TIMEOUT, ID, ZONE = 1, 2, 3, 4, 7, 12, 18  # CTA_*
TUPLE_ADDRESSES, TUPLE_PROTOCOL, TUPLE_ZONE = 1, 2, 3  # CTA_TUPLE_*
SOURCE = {Family.IPV4: 1, Family.IPV6: 3}  # CTA_IP_V4_SRC, CTA_IP_V6_SRC
DESTINATION = {Family.IPV4: 2, Family.IPV6: 4}  # CTA_IP_V4_DST, CTA_IP_V6_DST
PROTOCOL, SOURCE_PORT, DESTINATION_PORT = 1, 2, 3  # CTA_PROTO_*

SEEN_REPLY = 0x02  # of the status: IPS_SEEN_REPLY, in nf_conntrack_common.h
INFO_TCP, TCP_STATE = 1, 1  # CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE
ESTABLISHED, TIME_WAIT, CLOSED = 3, 7, 8  # TCP_CONNTRACK_*, the last is TCP_CONNTRACK_CLOSE
