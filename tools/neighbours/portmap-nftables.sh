BACKEND=nftables
source "$(dirname "${BASH_SOURCE[0]}")/portmap.sh"
works() { connects && nft list tables | grep cni_hostport >/dev/null; }
