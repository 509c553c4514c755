# packages: nftables
# A flowtable of another table, as Calico's has: it forwards packets of established connections past all chains.
rules() {
    cat <<'EOF'
table inet other {}
delete table inet other
table inet other {
    flowtable fast {
        hook ingress priority 0
        devices = { cni0, eth0, client0, server0 }
    }
    chain forward {
        type filter hook forward priority 0
        meta l4proto { tcp, udp } flow add @fast
    }
}
EOF
}
start() { nft -f - < <(rules); }
works() { conntrack --dump 2>/dev/null | grep OFFLOAD >/dev/null; }
reload() { nft -f - < <(rules); }
