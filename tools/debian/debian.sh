#!/usr/bin/env bash
# Runs a command in another release of Debian, for its nft: on this machine's kernel, in the caller's network
# namespace, with this checkout at /src and the tests' dependencies in /venv.
#
#   tools/debian/debian.sh RELEASE              prepares the tree, if it isn't there or is out of date
#   tools/debian/debian.sh sid nft --version    prepares it if needed, then runs the command
#   unshare --net tools/debian/debian.sh trixie python -m pytest tests/kernel
#   tools/debian/debian.sh trixie-arm64 uname --machine
#   tools/debian/debian.sh --systemd trixie systemctl status
#   NFTPROXY_NFTABLES=/opt/nftables tools/debian/debian.sh trixie+nft-1.0.9 nft --version
#
# Releases go by their code names, with an architecture if it isn't this machine's.  "+nft-VERSION" builds that version,
# which no Debian has, over Debian's, from its tag in NFTPROXY_NFTABLES, a clone of nftables' sources.  trixie is Debian 13, whose nft is 1.1.3 (Debian 12 has 1.0.6); sid is where Debian's
# newest nft is, whatever that is on the day that the tree is unpacked.
#
# The tree is .trees/RELEASE, which tools/vm boots too: 160 MB of Debian, 230 MB of Python packages.  Fetched are, with mmdebstrap and
# checked by it, the packages below and what they depend on from Debian's mirror, and then, by pip, what the
# `test` extra of pyproject.toml names.  A prepared tree needs no network.  Mounts are private to the command,
# so nothing has to be cleaned up after it.
set -euo pipefail
self=$(realpath "$0")
if [[ ${1-} == --systemd ]]; then how=below_systemd; shift; else how=inside; fi
checkout=$(realpath "$(dirname "$self")/../..")
packages=python3,$(sed -n 's/^need \([a-z0-9-]*\) .*/\1/p' "$checkout/.ci/setup" | paste -sd,)  # what that asks apt for
packages+=,kmod,mount,passwd,ipvsadm,systemd-sysv,containerd,runc,libstdc++6  # for virtual machines, and systemd.sh
if [[ ${1-} == *+nft-* ]]; then
    packages+=,autoconf,automake,bison,flex,gcc,libgmp-dev,libjansson-dev,libmnl-dev,libnftnl-dev,libtool,make,pkg-config
fi

say() { echo "debian.sh: $*" >&2; }

if [[ ! ${1-} =~ ^[a-z]+(-[a-z0-9]+)?(\+nft-[0-9.]+)?$ ]]; then say "which release? As in: $0 trixie nft --version"; exit 2; fi
tree=$checkout/.trees/$1
nft=${1##*+nft-}
if [[ $nft == "$1" ]]; then nft=; fi
IFS=- read -r release architecture <<<"${1%+*}-$(dpkg --print-architecture)"; shift
architecture=${architecture%%-*}
environment=(env -u VIRTUAL_ENV -u PYTHONPATH --chdir=/src NFTPROXY_TREE="${tree##*/}" HOME=/root LC_ALL=C.UTF-8
    PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin)

unpack() {
    say "unpacking Debian $release ($architecture) into $tree"
    rm -rf "$tree" "$tree.part"
    # "essential" is Debian without apt: the tree is used as it is unpacked.  Signatures are checked, but not how old the
    # list of packages is: sid's is good for a week, and some mirrors are behind.
    # Certificates are the machine's (`inside`): an emulated processor takes 20 minutes for Debian's.
    "$(dirname "$self")/mmdebstrap.sh" --quiet --variant=essential --architectures="$architecture" --include="$packages" \
        --aptopt='Acquire::Check-Valid-Until "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/ca-certificates/*' \
        "$release" "$tree.part"
    cat /etc/resolv.conf >"$tree.part/etc/resolv.conf"
    mkdir -p "$tree.part/src" "$tree.part/etc/ssl/certs"
    mv "$tree.part" "$tree"
}

build() {
    say "building nft $nft"
    rm -rf "$tree/nft"
    mkdir "$tree/nft"
    git -C "$NFTPROXY_NFTABLES" archive "v$nft" | tar --extract --directory="$tree/nft"
    inside bash -euc '
        cd /nft
        ./autogen.sh
        ./configure --prefix=/usr --libdir="/usr/lib/$(gcc -print-multiarch)" --with-json --without-cli --disable-man-doc --disable-python
        make --jobs="$(nproc)" install
        cp $(find py -name "*.py" ! -name setup.py) $(find py -name schema.json) /usr/lib/python3/dist-packages/nftables/
        touch built
    ' >"$tree/nft.log" 2>&1 || { say "see $tree/nft.log"; exit 1; }
}

inside() {
    # The tree is bound to itself because `ip netns` wants / to be a mount point; the machine's certificates are
    # used because it may have to trust one that Debian doesn't know.
    unshare --mount bash -euc '
        tree=$1 checkout=$2; shift 2
        mount --bind "$tree" "$tree"
        for dir in /dev /proc /sys; do mount --rbind "$dir" "$tree$dir"; done
        for dir in /run /tmp; do mount -t tmpfs tmpfs "$tree$dir"; done
        if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
            mount --bind /etc/ssl/certs "$tree/etc/ssl/certs"
            mount -o remount,bind,ro "$tree/etc/ssl/certs"  # they are the machine'"'"'s
        fi
        mount --bind "$checkout" "$tree/src"
        exec chroot "$tree" "$@"
    ' bash "$tree" "$checkout" "${environment[@]}" "$@"
}

below_systemd() {
    unshare --mount "$(dirname "$self")/systemd.sh" "$tree" "$checkout" "${environment[@]}" NFTPROXY_SYSTEMD=1 "$@"
}

if (( EUID )); then say "needs root, to mount and chroot"; exit 1; fi
mkdir -p "$checkout/.trees"
exec 9>"$tree.lock"
flock 9  # two test runs may both find it missing
"$(dirname "$self")/emulate.sh" "$architecture"
if [[ ! $tree -nt $self ]]; then unpack; fi
if [[ $nft && ! -e $tree/nft/built ]]; then build; fi
if [[ ! $tree/venv/.nftproxy-setup -nt $checkout/pyproject.toml ]]; then
    if [[ $architecture == "$(dpkg --print-architecture)" ]]; then
        inside env VENV=/venv EXTRA=test .ci/setup >&2
    else
        python3 "$(dirname "$self")/wheels.py" "$tree" "$(inside uname --machine)"
    fi
fi
exec 9>&-
if (( $# )); then "$how" "$@"; fi
