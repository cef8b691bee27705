#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The exit code as a number: a read of .wait waits for the end and then gives it. A run that has
# none, because it was killed say, gives its phase instead.
#
# usage: wait-exit-code.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

for want in 0 7; do
	exec 3<> "$mnt/runs/new"
	echo "{\"command\":[\"sh\",\"-c\",\"exit $want\"]}" >&3
	read -r id <&3
	exec 3>&-

	code=$(cat "$mnt/runs/$id/.wait")
	echo "exit code $code, phase $(cat "$mnt/runs/$id/status")"
done
