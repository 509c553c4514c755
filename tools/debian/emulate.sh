#!/usr/bin/env bash
# Lets this machine run programs of another architecture of Debian's (arm64), in software and in chroots too.  The kernel
# keeps that until it is restarted.
set -euo pipefail
if [[ $1 == "$(dpkg --print-architecture)" ]]; then exit; fi
formats=/proc/sys/fs/binfmt_misc
declare -A machines=([arm64]=aarch64)
name=qemu-${machines[$1]}

if ! command -v "$name-static" >/dev/null || ! command -v arch-test >/dev/null; then
    echo "emulate.sh: installing qemu-user-static and arch-test with apt" >&2
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends qemu-user-static arch-test </dev/null >/dev/null
fi
if [[ ! -e $formats/register ]]; then mount -t binfmt_misc binfmt_misc "$formats"; fi
if [[ ! -e $formats/$name ]]; then cat "/usr/lib/binfmt.d/$name.conf" >"$formats/register"; fi
