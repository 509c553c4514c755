# packages: docker.io
# dockerd with its default bridge, which drops forwarded packets, and the rules in DOCKER-USER that NFT636 advises.
daemon() {
    dockerd --storage-driver=vfs --pidfile="$SCRATCH/pid" >"$SCRATCH/docker.log" 2>&1 &
    until_true grep 'API listen on' "$SCRATCH/docker.log"
}
start() {
    echo 0 >/proc/sys/net/ipv4/ip_forward  # it drops forwarded packets only if it turns forwarding on itself
    daemon
    ip6tables --new DOCKER-USER 2>/dev/null || true  # without IPv6 in Docker there is none
    for rule in "-s 10.1.0.0/16" "-d 10.1.0.0/16" "-d 192.168.0.0/24"; do  # the last are other nodes
        iptables --insert DOCKER-USER $rule --jump ACCEPT
    done
    for rule in "-s fd00:1::/48" "-d fd00:1::/48"; do ip6tables --insert DOCKER-USER $rule --jump ACCEPT; done
}
works() { iptables -S FORWARD | grep -- '-P FORWARD DROP' >/dev/null && ip link show docker0; }
reload() {  # as `systemctl restart docker`
    kill "$(<"$SCRATCH/pid")"
    while [[ -e $SCRATCH/pid ]]; do sleep 0.2; done
    daemon
}
