#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# inotify works on the mount, also for changes that no client made: a run that appears raises
# IN_CREATE in runs/, and a change of its status raises IN_MODIFY and IN_CLOSE_WRITE on `status`. So
# inotifywait, entr, watchexec and editors see what happens.
#
# usage: watch.sh [MOUNTPOINT]      (needs inotifywait, from the package inotify-tools)
set -eu
mnt=${1:-$HOME/sandbox}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkfifo "$tmp/said"

# Starts inotifywait for one event and returns once its watch stands.
watch() {
	inotifywait -t 60 -e "$1" --format '%e' "$2" > "$tmp/event" 2> "$tmp/said" &
	grep -q -m 1 'Watches established' "$tmp/said"
}

submit() {
	exec 3<> "$mnt/runs/new"
	echo '{"command":["cat"],"interactive":true}' >&3
	read -r id <&3
	exec 3>&-
}

watch create "$mnt/runs"
submit
wait $!
echo "in runs/: $(cat "$tmp/event")"

# The command waits for input, so it is still there when the second watch stands.
watch close_write "$mnt/runs/$id/status"
echo eof > "$mnt/runs/$id/ctl"
wait $!
echo "on status: $(cat "$tmp/event")"
echo "exit code: $(cat "$mnt/runs/$id/.wait")"
