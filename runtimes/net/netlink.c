/* SPDX-License-Identifier: Apache-2.0 */
/* rtnetlink. The kernel answers while it is asked, so that no wait here is one. */
#include "runtimes/net/netlink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/auto.h"

enum { MESSAGE_MAX = 8192, LOOPBACK = 1 };

int net_route_open(void)
{
	struct timeval limit = { .tv_sec = 1 };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd >= 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return fd;
}

/* Sends a request and reads its answer into the same buffer; its length, or a negative errno. */
static ssize_t ask(int fd, struct nlmsghdr *h)
{
	static uint32_t last;
	uint32_t number = ++last;
	ssize_t n;

	h->nlmsg_seq = number;
	if (send(fd, h, h->nlmsg_len, 0) < 0)
		return -errno;
	do {
		n = recv(fd, h, MESSAGE_MAX, 0);
		if (n < 0 && errno != EINTR)
			return -errno;
		/* What comes too late for an earlier one is passed over. */
	} while (n < (ssize_t)sizeof(*h) || h->nlmsg_seq != number);
	return n;
}

static size_t size_of(const struct net_addr *a)
{
	return a->v6 ? 16 : 4;
}

enum net_route net_route_of(int fd, const struct net_addr *a)
{
	char buf[MESSAGE_MAX] __attribute__((aligned(8)));
	struct nlmsghdr *h = mnl_nlmsg_put_header(buf);
	struct rtmsg *rt = mnl_nlmsg_put_extra_header(h, sizeof(*rt));

	h->nlmsg_type = RTM_GETROUTE;
	h->nlmsg_flags = NLM_F_REQUEST;
	rt->rtm_family = a->v6 ? AF_INET6 : AF_INET;
	rt->rtm_dst_len = (unsigned char)(size_of(a) * 8);
	mnl_attr_put(h, RTA_DST, size_of(a), a->b);
	if (ask(fd, h) < (ssize_t)MNL_NLMSG_HDRLEN || h->nlmsg_type != RTM_NEWROUTE ||
	    h->nlmsg_len < MNL_NLMSG_HDRLEN + sizeof(*rt))
		return NET_ROUTE_NONE;
	rt = mnl_nlmsg_get_payload(h);
	return rt->rtm_type == RTN_UNICAST ? NET_ROUTE_UNICAST
	       : rt->rtm_type == RTN_LOCAL ? NET_ROUTE_LOCAL
					   : NET_ROUTE_OTHER;
}

/* ---- the loopback device --------------------------------------------------------------------- */

static int change(int fd, struct nlmsghdr *h)
{
	const struct nlmsgerr *err;
	ssize_t n;

	h->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
	n = ask(fd, h);
	if (n < 0)
		return (int)n;
	if (h->nlmsg_type != NLMSG_ERROR || h->nlmsg_len < MNL_NLMSG_HDRLEN + sizeof(*err))
		return -EPROTO;
	err = mnl_nlmsg_get_payload(h);
	return err->error;
}

static int add_address(int fd, const struct net_addr *a)
{
	char buf[MESSAGE_MAX] __attribute__((aligned(8)));
	struct nlmsghdr *h = mnl_nlmsg_put_header(buf);
	struct ifaddrmsg *ifa = mnl_nlmsg_put_extra_header(h, sizeof(*ifa));

	h->nlmsg_type = RTM_NEWADDR;
	ifa->ifa_family = a->v6 ? AF_INET6 : AF_INET;
	ifa->ifa_prefixlen = (unsigned char)(size_of(a) * 8);
	ifa->ifa_flags = a->v6 ? IFA_F_NODAD : 0;
	ifa->ifa_scope = RT_SCOPE_UNIVERSE;
	ifa->ifa_index = LOOPBACK;
	mnl_attr_put(h, IFA_LOCAL, size_of(a), a->b);
	mnl_attr_put(h, IFA_ADDRESS, size_of(a), a->b);
	return change(fd, h);
}

/* Every address there is belongs to this machine, as far as it knows. */
static int add_route(int fd, const struct net_addr *from)
{
	char buf[MESSAGE_MAX] __attribute__((aligned(8)));
	struct nlmsghdr *h = mnl_nlmsg_put_header(buf);
	struct rtmsg *rt = mnl_nlmsg_put_extra_header(h, sizeof(*rt));

	h->nlmsg_type = RTM_NEWROUTE;
	rt->rtm_family = from->v6 ? AF_INET6 : AF_INET;
	rt->rtm_table = RT_TABLE_MAIN;
	rt->rtm_protocol = RTPROT_STATIC;
	rt->rtm_scope = from->v6 ? RT_SCOPE_UNIVERSE : RT_SCOPE_HOST;
	rt->rtm_type = RTN_LOCAL;
	mnl_attr_put_u32(h, RTA_OIF, LOOPBACK);
	mnl_attr_put(h, RTA_PREFSRC, size_of(from), from->b);
	return change(fd, h);
}

static int loopback_up(void)
{
	sbx_autoclose int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq lo = { .ifr_flags = IFF_UP | IFF_RUNNING };

	memcpy(lo.ifr_name, "lo", sizeof("lo"));
	return fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) < 0 ? -errno : 0;
}

int net_link_prepare(bool *ret_v6, const char **ret_step)
{
	sbx_autoclose int fd = net_route_open();
	struct net_addr self4, self6;
	int r;

	*ret_v6 = false;
	*ret_step = "bring up the loopback device";
	r = fd < 0 ? -errno : loopback_up();
	if (r < 0)
		return r;
	(void)net_addr_parse(NET_SELF4, &self4);
	(void)net_addr_parse(NET_SELF6, &self6);
	*ret_step = "add an address";
	r = add_address(fd, &self4);
	if (r < 0)
		return r;
	*ret_step = "add a route";
	r = add_route(fd, &self4);
	if (r < 0)
		return r;
	/* A host may be without IPv6: then the sandbox is, too. */
	*ret_v6 = add_address(fd, &self6) == 0 && add_route(fd, &self6) == 0;
	return 0;
}
