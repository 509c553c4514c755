#!/usr/bin/env bash
# mmdebstrap, which is installed first where it lacks, with the keys that Debian is signed with.
set -euo pipefail
if ! command -v mmdebstrap >/dev/null; then
    echo "mmdebstrap.sh: installing mmdebstrap with apt" >&2
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends mmdebstrap debian-archive-keyring </dev/null >/dev/null
fi
exec mmdebstrap "$@"
