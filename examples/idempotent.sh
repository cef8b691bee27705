#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Submit at most once. A second document with the same idempotency_key starts nothing and answers
# with the run that the first one started, so that a client that lost the answer may simply ask
# again. The same key with another document is refused.
#
# usage: idempotent.sh [MOUNTPOINT] [KEY]
set -eu
mnt=${1:-$HOME/sandbox}
key=${2:-example-$$-$(date +%s)}

submit() {
	exec 3<> "$mnt/runs/new"
	# The write of a refused document fails; the descriptor then reads the error as JSON.
	printf '{"command":["echo","%s"],"idempotency_key":"%s"}\n' "$1" "$key" >&3 2> /dev/null || true
	read -r answer <&3
	exec 3>&-
	echo "$answer"
}

first=$(submit once)
again=$(submit once)
other=$(submit twice)

[ "$first" = "$again" ] && echo "same document: the same run"
case $other in
*idempotency_conflict*) echo "other document: refused" ;;
esac
cat "$mnt/runs/$first/.wait" > /dev/null
cat "$mnt/runs/$first/stdout"
