BACKEND=iptables
source "$(dirname "${BASH_SOURCE[0]}")/portmap.sh"
works() { connects && iptables -t nat -S | grep CNI-HOSTPORT-DNAT >/dev/null; }
