# packages: iptables
# A NodeLocal DNS: a local server has the address of the Service too, and its packets aren't tracked.
rules() {  # its argument: -A or -D
    for chain in PREROUTING OUTPUT; do
        iptables -t raw "$1" $chain -d 10.96.200.1 -p tcp --dport 53 -j NOTRACK
    done
    iptables -t raw "$1" OUTPUT -s 10.96.200.1 -p tcp --sport 53 -j NOTRACK
    iptables "$1" INPUT -d 10.96.200.1 -p tcp --dport 53 -j ACCEPT
    iptables "$1" OUTPUT -s 10.96.200.1 -p tcp --sport 53 -j ACCEPT
}
start() {
    ip link add nodelocaldns type dummy
    ip link set nodelocaldns up
    ip address add 169.254.20.10/32 dev nodelocaldns
    ip address add 10.96.200.1/32 dev nodelocaldns
    rules -A
    python3 -c '
import socket
server = socket.create_server(("10.96.200.1", 53))
while True:
    client, _ = server.accept()
    client.sendall(b"local")
    client.close()
' &
    until_true answers
}
answers() {
    local ask='import socket; assert socket.create_connection(("10.96.200.1", 53), 60).recv(9) == b"local"'
    python3 -c "$ask" && in_client python3 -c "$ask"
}
works() { answers && ! conntrack --dump --orig-dst 10.96.200.1 --proto tcp --orig-port-dst 53 2>/dev/null | grep . >/dev/null; }
reload() {
    rules -D
    rules -A
}
