# packages: bird2
# bird, which learns the server's address by BGP from a bird beside the server.
route() { :; }
bgp() {  # its arguments: our address, the neighbour's, our number, the neighbour's
    cat <<EOF
router id $1;
protocol device {}
protocol direct { ipv4; interface "lo"; }
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol bgp { local $1 as $3; neighbor $2 as $4; ipv4 { import all; export where source = RTS_DEVICE; }; }
EOF
}
start() {
    bgp 172.31.0.1 172.31.0.2 64512 64513 >"$SCRATCH/bird.conf"
    bgp 172.31.0.2 172.31.0.1 64513 64512 >"$SCRATCH/peer.conf"
    in_server bird -f -c "$SCRATCH/peer.conf" -s "$SCRATCH/peer.ctl" &
    bird -f -c "$SCRATCH/bird.conf" -s "$SCRATCH/bird.ctl" &
    until_true works
}
works() { ip route show 10.1.201.2 | grep 'proto bird' >/dev/null; }
reload() {
    birdc -s "$SCRATCH/bird.ctl" configure
    birdc -s "$SCRATCH/bird.ctl" restart all
    until_true works
}
