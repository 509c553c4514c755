#!/usr/bin/env bash
# The first process of a virtual machine, and below systemd (with the argument "run") the unit that has the command.
# The host shares /vm with it: "command" comes from there, "begun" and "status" go there.
set -u
export PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PYTHONUNBUFFERED=1
export NFTPROXY_SLOWNESS=20  # what tests wait for may take so many times as long
export NFTPROXY_RESULTS=/vm/results.json

run() {
    stty -F /dev/hvc0 raw
    modprobe --all nf_tables nf_conntrack  # as a node has them
    cd /src
    touch /vm/begun
    bash /vm/command </dev/null 2>&1 | cat >/dev/hvc0  # a pipe, as tests and pytest behave differently on a terminal
    echo "${PIPESTATUS[0]}" >/vm/status
    sync
    echo o >/proc/sysrq-trigger
    sleep infinity
}

if [[ ${1-} == run ]]; then NFTPROXY_SYSTEMD=1 run; fi

if [[ $(</vm/init) == systemd ]]; then
    cat >/etc/systemd/system/vm.service <<'EOF'
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/bash /src/tools/vm/guest.sh run
EOF
    mkdir -p /etc/systemd/system/multi-user.target.wants
    ln -s ../vm.service /etc/systemd/system/multi-user.target.wants/
    ln -sf /dev/null /etc/systemd/system/getty.target
    exec /lib/systemd/systemd
fi

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $folder; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
ip link set lo up
run
