#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The smallest run: one line of JSON into runs/new, then read what became of it.
#
# usage: hello.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

# One write that holds a whole JSON object starts the run. If the document is refused, the write
# fails, so that this line fails too.
echo '{"command":["sh","-c","echo hello from $(uname -n), user $(id -un)"]}' > "$mnt/runs/new"

# On a fresh descriptor, runs/new reads as your last result: the id of the run.
read -r id < "$mnt/runs/new"

cat "$mnt/runs/$id/.wait" > /dev/null   # a read that waits for the end
cat "$mnt/runs/$id/log"                 # stdout and stderr, in the order in which they came
cat "$mnt/runs/$id/why"                 # one sentence about how it ended
