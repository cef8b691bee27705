/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets that echoes pass through. Inside, a tap on the loopback device hears what the rules
 * have marked, and a raw socket gives the replies. Outside, it is a socket of the kernel's for
 * ping(8), which can do nothing else, where this user may have one; else a raw socket, for which
 * the caller needs the right.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <net/ethernet.h>

#include "runtimes/net/egress_i.h"
#include "runtimes/net/rules.h"

enum { LOOPBACK = 1, REPLY4 = 0, REPLY6 = 129, WHOLE = 0xffff };

/* What does not pass the filter never comes, and the filter stays. */
static int attach(int fd, struct sock_filter *code, unsigned short n)
{
	const struct sock_fprog filter = { .len = n, .filter = code };
	const int on = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on)) < 0)
		return -errno;
	return 0;
}

static int filter_nothing(int fd)
{
	struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, 0) };

	return attach(fd, code, SBX_COUNT(code));
}

/* Replies to this number. Over IPv4 what is received begins with the head of IP. */
static int filter_replies(int fd, bool v6, uint16_t id)
{
	unsigned short to_x = v6 ? BPF_W | BPF_IMM : BPF_B | BPF_MSH;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LDX | to_x, 0),
		BPF_STMT(BPF_LD | BPF_B | BPF_IND, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, v6 ? REPLY6 : REPLY4, 0, 3),
		BPF_STMT(BPF_LD | BPF_H | BPF_IND, 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, id, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, WHOLE),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};

	return attach(fd, code, SBX_COUNT(code));
}

/* ---- inside ---------------------------------------------------------------------------------- */

static int make_tap(bool v6, int *ret)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_MARK)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NET_ECHO_MARK, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, WHOLE),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	const struct sockaddr_ll lo = { .sll_family = AF_PACKET,
					.sll_protocol = htons(v6 ? ETH_P_IPV6 : ETH_P_IP),
					.sll_ifindex = LOOPBACK };
	/* Without a protocol, nothing comes before there is a filter. */
	sbx_autoclose int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int r = fd < 0 ? -errno : attach(fd, code, SBX_COUNT(code));

	if (r == 0 && bind(fd, (const struct sockaddr *)&lo, sizeof(lo)) < 0)
		r = -errno;
	if (r == 0)
		*ret = sbx_steal_fd(&fd);
	return r;
}

static int make_back(bool v6, int *ret)
{
	sbx_autoclose int fd =
		socket(v6 ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC,
		       v6 ? (int)IPPROTO_ICMPV6 : (int)IPPROTO_ICMP);
	const int on = 1;
	int r = fd < 0 ? -errno : filter_nothing(fd);

	/* It speaks for whom the echo was meant. */
	if (r == 0 && setsockopt(fd, v6 ? SOL_IPV6 : SOL_IP, v6 ? IPV6_TRANSPARENT : IP_TRANSPARENT,
				 &on, sizeof(on)) < 0)
		r = -errno;
	if (r == 0)
		*ret = sbx_steal_fd(&fd);
	return r;
}

bool net_echo_inside(bool v6, int *ret_tap, int *ret_back)
{
	sbx_autoclose int tap = -1, back = -1;

	if (make_tap(v6, &tap) < 0 || make_back(v6, &back) < 0)
		return false;
	*ret_tap = sbx_steal_fd(&tap);
	*ret_back = sbx_steal_fd(&back);
	return true;
}

/* ---- outside --------------------------------------------------------------------------------- */

static int open_raw(bool v6, int proto, uint16_t *ret_id)
{
	sbx_autoclose int fd =
		socket(v6 ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, proto);
	uint8_t byte;

	/* Nobody gives out these numbers. That two are the same does no harm: a reply has to repeat
	 * what was sent. */
	if (fd < 0 || getrandom(ret_id, sizeof(*ret_id), 0) != (ssize_t)sizeof(*ret_id) ||
	    filter_replies(fd, v6, *ret_id) < 0)
		return -1;
	/* What had come before there was a filter is the host's. */
	while (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) >= 0)
		;
	return sbx_steal_fd(&fd);
}

struct net_outlet net_echo_outside(bool v6)
{
	int proto = v6 ? (int)IPPROTO_ICMPV6 : (int)IPPROTO_ICMP;
	struct net_outlet out = { .fd = socket(v6 ? AF_INET6 : AF_INET,
					       SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, proto) };

	if (out.fd < 0) {
		out.raw = true;
		out.fd = open_raw(v6, proto, &out.id);
	}
	return out;
}
