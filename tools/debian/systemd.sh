#!/usr/bin/env bash
# Runs a command below systemd, for debian.sh: in a tree and in namespaces of its own, without a network.  What is written
# goes to memory, except to the checkout, and of the kernel's settings only those of the network can be written.
#
#   unshare --mount tools/debian/systemd.sh TREE CHECKOUT COMMAND...
set -euo pipefail
tree=$1 checkout=$2; shift 2

mount -t tmpfs tmpfs "$tree/mnt"
cd "$tree/mnt"
mkdir changes work root groups
mount -t overlay -o lowerdir=..,upperdir=changes,workdir=work overlay root
for folder in dev run tmp; do mount -t tmpfs tmpfs root/$folder; done
cp --archive /dev/{null,zero,full,random,urandom,tty} root/dev
ln --symbolic pts/ptmx root/dev/ptmx  # for PrivateDevices=
mount --bind "$checkout" root/src
# Also where systemd of the machine has version 1 of cgroups, version 2 can be mounted.
mount -t cgroup2 cgroup2 groups
group=$(mktemp --directory groups/nftproxy-systemd-XXXXXX)
trap 'find "$group" -depth -type d -exec rmdir {} +' EXIT

(
    echo $BASHPID >"$group/cgroup.procs"
    exec setpriv --pdeathsig KILL unshare --cgroup --ipc --net --uts --pid --fork --kill-child bash -euc '
        mount --make-rshared root  # for LoadCredential=
        mount -t proc proc root/proc
        mount --bind root/proc/sys root/proc/sys
        mount --bind root/proc/sys/net root/proc/sys/net
        mount -o remount,bind,ro root/proc/sys
        {
            until [[ -S root/run/systemd/private ]]; do sleep 0.1; done
            status=0
            chroot root "$@" || status=$?
            chroot root systemctl --force exit $status
        } &
        exec env container=nftproxy chroot root /sbin/init --unit=basic.target
    ' bash "$@"
)
