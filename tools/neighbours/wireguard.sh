# packages: wireguard-tools
# A tunnel of WireGuard, through which the server's packets go.
configuration() {  # its arguments: the port, the private key, the peer's, the peer's end, the peer's addresses
    printf '[Interface]\nListenPort = %s\nPrivateKey = %s\n[Peer]\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = %s\n' \
        "$1" "$2" "$(wg pubkey <<<"$3")" "$4" "$5"
}
route() { :; }
start() {
    local ours theirs
    ours=$(wg genkey) theirs=$(wg genkey)
    configuration 51820 "$ours" "$theirs" 172.31.0.2:51820 10.1.201.2/32 >"$SCRATCH/wg.conf"
    configuration 51820 "$theirs" "$ours" 172.31.0.1:51820 0.0.0.0/0 >"$SCRATCH/peer.conf"
    ip link add wg0 type wireguard
    wg setconf wg0 "$SCRATCH/wg.conf"
    ip link set wg0 up
    ip route add 10.1.201.2 dev wg0
    in_server ip link add wg0 type wireguard
    in_server wg setconf wg0 "$SCRATCH/peer.conf"
    in_server ip link set wg0 up
    in_server ip route replace default dev wg0
}
works() { wg show wg0 transfer | awk '{ exit !($2 > 0 && $3 > 0) }'; }
reload() { wg syncconf wg0 "$SCRATCH/wg.conf"; }
