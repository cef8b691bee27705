#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A run that cannot outlive its starter. With "lifetime":"handle" the run belongs to the descriptor
# that wrote the document: when its last copy closes, for whatever reason, the run is killed. No
# signal handler, no heartbeat, nothing to clean up after a crash.
#
# usage: bound-to-shell.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

# This inner shell crashes in the worst way that there is, with its run still going.
# shellcheck disable=SC2016
id=$(sh -c '
	exec 3<> "$1/runs/new"
	echo "{\"command\":[\"sleep\",\"1000\"],\"lifetime\":\"handle\"}" >&3
	read -r id <&3
	echo "$id"
	kill -KILL $$
' worker "$mnt" || true)

echo "ended: $(cat "$mnt/runs/$id/.wait")"
cat "$mnt/runs/$id/why"
