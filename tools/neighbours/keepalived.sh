# packages: keepalived
# keepalived, which holds an address by VRRP.
start() {
    cat >"$SCRATCH/keepalived.conf" <<'EOF'
vrrp_instance test {
    state MASTER
    interface eth0
    virtual_router_id 51
    priority 100
    advert_int 1
    virtual_ipaddress { 192.168.0.200/24 }
}
EOF
    keepalived --dont-fork --log-console --use-file "$SCRATCH/keepalived.conf" --pid "$SCRATCH/pid" \
        --vrrp_pid "$SCRATCH/vrrp_pid" --checkers_pid "$SCRATCH/checkers_pid" &
    until_true works
}
works() { ip address show dev eth0 | grep 192.168.0.200 >/dev/null; }
reload() {
    kill -HUP "$(<"$SCRATCH/pid")"
    sleep 5
    until_true works
}
