#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Follow a run while it executes. A read of .stream waits for the next frame and ends with the run;
# every frame is one line of JSON with a number (seq) and a time.
#
# usage: follow-log.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

exec 3<> "$mnt/runs/new"
echo '{"command":["sh","-c","for i in 1 2 3; do echo step $i; sleep 0.2; done; echo done >&2"]}' >&3
read -r id <&3
exec 3>&-

# Nothing here polls, and nothing is missed: a follower that comes late begins with the first frame.
while read -r frame; do
	case $frame in
	'{"type":"stdout"'*) printf 'out: %s\n' "$frame" ;;
	'{"type":"stderr"'*) printf 'err: %s\n' "$frame" ;;
	*'"event":"end"'*) printf 'end: %s\n' "$frame" ;;
	esac
done < "$mnt/runs/$id/.stream"
