# packages: containernetworking-plugins
# A pod with a host port by the CNI's plugin portmap, whose rules $BACKEND has.  The pod is the server's namespace.
plugins=/usr/lib/cni
call() {  # its arguments: the command, the operation
    env CNI_COMMAND="$1" CNI_CONTAINERID=pod CNI_NETNS="$SERVER" CNI_IFNAME=eth0 CNI_PATH=$plugins $plugins/portmap <<EOF
{
  "cniVersion": "1.0.0", "name": "net", "type": "portmap", "backend": "$BACKEND", "snat": true,
  "capabilities": {"portMappings": true},
  "runtimeConfig": {"portMappings": [{"hostPort": 8081, "containerPort": 8080, "protocol": "tcp"}]},
  "prevResult": {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "eth0", "sandbox": "$SERVER"}],
    "ips": [{"address": "10.1.201.2/32", "interface": 0}]
  }
}
EOF
}
start() { call ADD >/dev/null; }
connects() { in_client python3 -c 'import socket; socket.create_connection(("192.168.0.2", 8081), 60).close()'; }
reload() {
    call DEL
    call ADD >/dev/null
}
