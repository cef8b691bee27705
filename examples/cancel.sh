#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# End a run. "cancel" sends TERM to every process of the sandbox and, if that does not end it within
# the grace period (5 s unless it is configured otherwise), KILL. "kill" does not wait.
#
# usage: cancel.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

exec 3<> "$mnt/runs/new"
echo '{"command":["sh","-c","echo ready; exec sleep 1000"]}' >&3
read -r id <&3
exec 3>&-

grep -q -m 1 ready "$mnt/runs/$id/.stream"   # waits until the command has said so
echo "before: $(cat "$mnt/runs/$id/status")"
echo cancel > "$mnt/runs/$id/ctl"
echo "ended: $(cat "$mnt/runs/$id/.wait")"
cat "$mnt/runs/$id/why"
