# packages: ufw
# ufw, which forwards the pods' packets by `ufw route allow`, as NFT636 advises, and those to the other nodes.
start() {
    ufw --force reset
    ufw route allow from 10.1.0.0/16
    ufw route allow to 10.1.0.0/16
    ufw route allow from fd00:1::/48
    ufw route allow to fd00:1::/48
    ufw route allow to 192.168.0.0/24
    ufw allow 30000:32767/tcp
    ufw allow from 10.1.0.0/16
    ufw allow from fd00:1::/48
    ufw --force enable
}
works() { ufw status | grep '^Status: active' >/dev/null && iptables -S FORWARD | grep -- '-P FORWARD DROP' >/dev/null; }
reload() { ufw reload; }
