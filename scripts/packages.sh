# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# What building and testing need, as pairs of a probe and the Debian package that answers it. To be
# sourced. A tool that is there is not installed again, wherever it came from, and on a system
# without apt the list still says what is missing.
#
#   cmd:NAME     a program            pc:NAME      a library that pkg-config knows
#   hdr:FILE     a C header           static:NAME  a program without shared libraries
#   fuzzer:NAME  a compiler with libFuzzer

# Where an ordinary user of Debian does not look, and some of these programs are.
PATH=$PATH:/usr/sbin:/sbin

build_needs='
cmd:gcc=gcc hdr:stdio.h=libc6-dev cmd:meson=meson cmd:ninja=ninja-build cmd:pkg-config=pkg-config
pc:fuse3=libfuse3-dev cmd:fusermount3=fuse3 pc:json-c=libjson-c-dev pc:sqlite3=libsqlite3-dev
pc:libseccomp=libseccomp-dev pc:libcares=libc-ares-dev pc:libnftables=libnftables-dev pc:libmnl=libmnl-dev
pc:inih=libinih-dev pc:libcrypto=libssl-dev pc:libarchive=libarchive-dev pc:cmocka=libcmocka-dev
pc:libmicrohttpd=libmicrohttpd-dev pc:gnutls=libgnutls28-dev hdr:wslay/wslay.h=libwslay-dev pc:libjwt=libjwt-dev
pc:libcurl=libcurl4-openssl-dev'

test_needs='
cmd:python3=python3 cmd:bwrap=bubblewrap cmd:rsync=rsync static:busybox=busybox-static
cmd:git=git cmd:tar=tar cmd:inotifywait=inotify-tools cmd:setpriv=util-linux cmd:ps=procps cmd:curl=curl cmd:ip=iproute2 cmd:openssl=openssl'

# Without these some tests are skipped, and say so.
test_wishes='
cmd:clang=clang fuzzer:clang=libclang-rt-dev cmd:clang-format=clang-format cmd:ed=ed cmd:jq=jq
cmd:vim=vim cmd:strace=strace cmd:ping=iputils-ping cmd:mkfs.ext4=e2fsprogs cmd:dockerd=docker.io cmd:podman=podman'

probe() {
	case $1 in
	cmd:*) command -v "${1#cmd:}" > /dev/null 2>&1 ;;
	pc:*) pkg-config --exists "${1#pc:}" 2> /dev/null ;;
	hdr:*) echo "#include <${1#hdr:}>" | gcc -E - > /dev/null 2>&1 ;;
	static:*)
		command -v "${1#static:}" > /dev/null 2>&1 &&
			! ldd "$(command -v "${1#static:}")" > /dev/null 2>&1
		;;
	fuzzer:*)
		echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
			"${1#fuzzer:}" -fsanitize=fuzzer -x c -o /dev/null - > /dev/null 2>&1
		;;
	esac
}

# missing NEEDS: prints the packages whose probe fails.
missing() {
	for need in $1; do
		probe "${need%%=*}" || echo "${need#*=}"
	done
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
		-o Dpkg::Use-Pty=0 --no-install-recommends install "$@" < /dev/null
}

# ensure NEEDS: installs what is missing, or says what to install and fails.
ensure() {
	packages=$(missing "$1" | tr '\n' ' ')
	packages=${packages% }
	[ -n "$packages" ] || return 0
	if ! command -v apt-get > /dev/null 2>&1; then
		echo "missing, by their Debian names: $packages" >&2
		echo "install them with this system's package manager and run $0 again" >&2
		return 1
	fi
	if [ "$(id -u)" != 0 ] && ! command -v sudo > /dev/null 2>&1; then
		echo "missing: $packages" >&2
		echo "as root, run: apt-get install $packages" >&2
		return 1
	fi
	echo "installing: $packages"
	# Try with the lists that are there; a fresh or an old system needs new ones.
	# shellcheck disable=SC2086
	if ! apt_install $packages > /dev/null 2>&1; then
		as_root apt-get -q update < /dev/null || return 1
		apt_install $packages || return 1
	fi
	# An installation that succeeds and yet leaves a probe failing is better said now.
	left=$(missing "$1" | tr '\n' ' ')
	[ -z "$left" ] || {
		echo "installed, but still not usable: $left" >&2
		return 1
	}
}

# wish NEEDS: installs what can be had. What cannot be had is named, and is no failure.
wish() {
	packages=$(missing "$1" | tr '\n' ' ')
	[ -n "$packages" ] || return 0
	if (ensure "$1") > /dev/null 2>&1; then
		echo "installed: $packages"
		return 0
	fi
	for package in $packages; do
		command -v apt-get > /dev/null 2>&1 && apt_install "$package" > /dev/null 2>&1 ||
			echo "cannot install $package; the tests that need it are skipped"
	done
}
