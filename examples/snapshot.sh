#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Trying something that may go wrong: mkdir in snapshots/ keeps the workspace as it is, a write to
# ctl brings it back, and what was kept can be looked into, compared and copied like any directory.
#
# usage: snapshot.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}
session=$mnt/sessions/example-$$
mkdir "$session"
trap 'rmdir "$session"' EXIT

printf 'pear\napple\n' > "$session/workspace/fruit"
mkdir "$session/snapshots/before"

exec 3<> "$session/runs/new"
echo '{"command":["sh","-c","sort fruit > sorted; rm fruit"]}' >&3
read -r id <&3
exec 3>&-
echo "exit code: $(cat "$mnt/runs/$id/.wait")"

mkdir "$session/snapshots/after"
cat "$session/snapshots/after/diff"
echo "as it was:" $(cat "$session/snapshots/before/tree/fruit")

echo "restore before" > "$session/ctl"
ls "$session/workspace"
