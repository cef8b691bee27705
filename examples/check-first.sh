#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Ask before you run: runs/check takes the same documents as runs/new, starts nothing, and says
# what would happen - the runtime, the limits after clamping, or the reason for a refusal.
#
# usage: check-first.sh [MOUNTPOINT]
set -eu
mnt=${1:-$HOME/sandbox}

check() {
	exec 3<> "$mnt/runs/check"
	printf '%s\n' "$1" >&3
	cat <&3
	exec 3>&-
}

echo "accepted, with what was asked lowered to what the trust level allows:"
check '{"command":["true"],"trust_level":"untrusted","timeout_sec":3600,"resources":{"memory_mb":4096}}'

echo "refused, because of a typing error:"
check '{"comand":["true"]}'

echo "refused, because the runtime has no network to open:"
check '{"command":["true"],"network_policy":"allowlist"}'
