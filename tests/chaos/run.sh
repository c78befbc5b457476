#!/usr/bin/env bash
# Runs the chaos test (README.md) in namespaces of its own: its networks and processes end with it, however it ends.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "tests/chaos: skipped: $1"; exit 0; }
[ "$(id -u)" = 0 ] || skip "it needs root, for network namespaces"
command -v ip > /dev/null || skip "the program 'ip' (Debian: iproute2) is missing"
command -v nsenter > /dev/null || skip "the program 'nsenter' (Debian: util-linux) is missing"
isolate=(unshare --net --mount --pid --fork --kill-child --mount-proc)
setpriv --reuid=65534 --regid=65534 --clear-groups true 2> /dev/null || skip "it may not become another user, for PostgreSQL"
"${isolate[@]}" sh -c 'ip link add name probe type bridge && mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip netns add probe' \
  > /dev/null 2>&1 || skip "network namespaces are not permitted here"

venv=${CHAOS_VENV:-target/chaos}
if ! cmp -s tests/chaos/requirements.txt "$venv/installed.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --requirement tests/chaos/requirements.txt
  cp tests/chaos/requirements.txt "$venv/installed.txt"
fi
program=${CHAOS_PROGRAM:-tests/chaos/chaos.py}
# The shell is the first process of the namespace, so it also waits for orphans.
exec "${isolate[@]}" bash -c 'mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up && "$@"; exit $?' bash \
  "$venv/bin/python" "$program" "$@"
