#!/bin/sh
# The first process of a node, in mount, PID and UTS namespaces of its own: its end is the end of every process on it.
#   node.sh NAME CGROUP DIRECTORY KUBELET [OPTION...]
# DIRECTORY has containerd.toml and kubelet.yaml, and becomes the node's /var/lib and /var/log.
set -eu
name=$1 cgroup=$2 directory=$3 kubelet=$4
shift 4

hostname "$name"
mount --make-rshared /  # the kubelet passes volumes on to containers
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p "$directory/lib" "$directory/log"
mount --bind "$directory/lib" /var/lib
mount --bind "$directory/log" /var/log

# In the hierarchies of version 1 each controller has a tree of its own.
for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
    if [ -e "$tree/cgroup.procs" ]; then
        mkdir -p "$tree/$cgroup"
        for file in cpuset.cpus cpuset.mems; do  # empty in a new group, which can't hold a process then
            if [ -e "$tree/$file" ]; then cat "$tree/$file" >"$tree/$cgroup/$file"; fi
        done
    fi
done

containerd --config "$directory/containerd.toml" >>"$directory/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.2; done
for archive in "$directory"/../images/*.tar; do
    ctr --namespace k8s.io images import "$archive" >>"$directory/images.log" 2>&1
done
cat "$directory"/../images/*.names | while read -r image name; do
    ctr --namespace k8s.io images tag "$image" "$name" >>"$directory/images.log" 2>&1
done
while true; do  # as systemd restarts it
    "$kubelet" --config "$directory/kubelet.yaml" "$@" >>"$directory/kubelet.log" 2>&1 || sleep 1
done &
wait  # and reap the processes whose parents have ended
