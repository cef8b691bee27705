#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Input while the command runs: what is written to `stdin` reaches the command in the order in which
# it was written, from any process; "eof" in `ctl` ends the input.
#
# usage: interactive.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

exec 3<> "$mnt/runs/new"
cat >&3 << 'END'
{"command": ["sh", "-c", "while read -r n; do echo \"$n squared is $((n * n))\"; done"],
 "interactive": true}
END
read -r id <&3
exec 3>&-

echo 3 > "$mnt/runs/$id/stdin"
grep -q -m 1 'squared is 9' "$mnt/runs/$id/.stream"   # the answer came while it runs
echo 12 > "$mnt/runs/$id/stdin"
echo eof > "$mnt/runs/$id/ctl"

echo "exit code: $(cat "$mnt/runs/$id/.wait")"
cat "$mnt/runs/$id/stdout"
