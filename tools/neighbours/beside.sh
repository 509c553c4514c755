#!/usr/bin/env bash
# A neighbour on a node, whose namespace this runs in:
#
#   beside.sh NEIGHBOUR start    starts the neighbour
#   beside.sh NEIGHBOUR works    fails unless the neighbour's rules, addresses or routes are there
#   beside.sh NEIGHBOUR reload   reloads the neighbour as its users do
#
# NEIGHBOUR.sh defines the functions start, works and reload.  The node has a client at 10.1.200.2 and a server at
# 10.1.201.2, which is behind the link "server0".  $CLIENT and $SERVER are their namespaces, $SCRATCH is an empty folder.
set -euo pipefail
neighbour=$1 step=$2
say() { echo "$neighbour: $*" >&2; }
until_true() { until "$@" >/dev/null 2>&1; do sleep 0.2; done; }
in_client() { nsenter --net="$CLIENT" "$@"; }
in_server() { nsenter --net="$SERVER" "$@"; }
route() { ip route add 10.1.201.2 via 172.31.0.2; }  # to the server, unless the neighbour routes there

source "$(dirname "$0")/$neighbour.sh"
if [[ $step == start ]]; then route; fi
"$step"
