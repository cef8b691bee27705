# SPDX-License-Identifier: Apache-2.0
"""Escape attempts through the network: nothing of the host is reached, nothing leaves, under deny_all."""
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from escape import Row, group, host_address, levels, sbx  # noqa: E402

V6 = host_address(socket.AF_INET6, "2001:db8::1")
NO_ROUTE = ("ENETUNREACH", "EADDRNOTAVAIL")
ALL_FAMILIES = 'errors_of([lambda f=f: (call("%s", f, %s%s) and None) for f in range(0, 64) if f not in (1, 2, 10, 16)])'
# One netlink request of the type with this payload; the kernel's answer as an error.
NETLINK = r"""
s1 = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s1.bind((0, 0))
body = %s
s1.send(struct.pack("=IHHII", 16 + len(body), %d, 5 | %d, 1, 0) + body)
answer = s1.recv(65536)
kind, = struct.unpack_from("=H", answer, 4)
if kind == 2:
    code, = struct.unpack_from("=i", answer, 16)
    if code: raise OSError(-code, "")
return "done"
"""


def netlink(body, kind, flags=0):
    return NETLINK.strip() % (body, kind, flags)


ifinfo = 'struct.pack("=BBHiII", 0, 0, 0, 1, %s, %s)'
rows = [
    Row("tcp_host_loopback", 'connect(socket.AF_INET, ("127.0.0.1", C["port"]))', "ECONNREFUSED", control="REACHED"),
    Row("tcp_loopback_other_name", 'connect(socket.AF_INET, ("127.1.2.3", C["port"]))', "ECONNREFUSED"),
    Row("tcp_any_address", 'connect(socket.AF_INET, ("0.0.0.0", C["port"]))', "ECONNREFUSED", control="REACHED"),
    Row("tcp_v6_loopback", 'connect(socket.AF_INET6, ("::1", C["port"])) if C["addr6"] else "ECONNREFUSED"',
        ("ECONNREFUSED",) + NO_ROUTE + ("EAFNOSUPPORT",)),
    Row("tcp_v4_in_v6", 'connect(socket.AF_INET6, ("::ffff:127.0.0.1", C["port"]))', ("ECONNREFUSED", "EAFNOSUPPORT")),
    Row("tcp_outside", 'connect(socket.AF_INET, ("192.0.2.1", 80))', NO_ROUTE),
    Row("tcp_v6_outside", 'connect(socket.AF_INET6, ("2001:db8::1", 80))', NO_ROUTE + ("EAFNOSUPPORT",)),
    Row("metadata_service", 'connect(socket.AF_INET, ("169.254.169.254", 80))', NO_ROUTE),
    Row("link_local_v6", 'connect(socket.AF_INET6, ("fe80::1", 80, 0, 1))', NO_ROUTE + ("EINVAL", "EAFNOSUPPORT")),
    Row("udp_host_loopback", 's1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n'
        's1.connect(("127.0.0.1", C["udp"]))\ns1.send(b"x")\ns1.settimeout(4)\nreturn s1.recv(1)', "ECONNREFUSED"),
    Row("udp_outside", 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))', NO_ROUTE),
    Row("udp_broadcast", 's1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n'
        's1.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\ns1.sendto(b"x", ("255.255.255.255", 9))', NO_ROUTE),
    Row("udp_multicast", 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("224.0.0.251", 5353))', NO_ROUTE),
    Row("fast_open", 'socket.socket(socket.AF_INET, socket.SOCK_STREAM).sendto(b"x", 0x20000000, ("192.0.2.1", 80))', NO_ROUTE),
    Row("names", 'socket.setdefaulttimeout(4)\nreturn socket.getaddrinfo("example.com", 80)',
        ("[Errno -3] Temporary failure in name resolution", "[Errno -2] Name or service not known")),
    # A newer Docker Engine explains itself in comments, which may name the servers that it would ask.
    Row("no_resolver", '[line for line in read("/etc/resolv.conf").splitlines()'
        ' if line and (not line.startswith(b"#") or b"ExtServers" in line)]', "[b'nameserver 127.0.0.1']"),
    Row("unix_of_host", 'connect(socket.AF_UNIX, C["unix"])', "ENOENT", control="REACHED"),
    Row("abstract_of_host", 'connect(socket.AF_UNIX, "\\0" + C["abstract"])', ("ECONNREFUSED", "EPERM"), control="REACHED"),
    Row("service_sockets", '[p for p in ("/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private",'
        ' "/run/dbus/system_bus_socket", "/run/containerd/containerd.sock", "/run/nscd/socket", "/dev/log",'
        ' "/tmp/.X11-unix", "/run/user") if os.path.lexists(p)]', "[]"),

    Row("families", ALL_FAMILIES % ("socket", "2, 0", ""), "EAFNOSUPPORT"),
    Row("families_stream", ALL_FAMILIES % ("socket", "1, 0", ""), "EAFNOSUPPORT"),
    Row("families_raw", ALL_FAMILIES % ("socket", "3, 3", ""), "EAFNOSUPPORT"),
    Row("families_socketpair", ALL_FAMILIES % ("socketpair", "2, 0", ", (ctypes.c_int * 2)()"), "EAFNOSUPPORT"),
    Row("packet", 'socket.socket(17, socket.SOCK_RAW, 0x300)', "EAFNOSUPPORT"),
    Row("packet_high_bits", 'call("socket", 1 << 32 | 17, 3, 0x300)', "EAFNOSUPPORT"),
    Row("vsock", 'connect(40, (2, 1024))', "EAFNOSUPPORT"),
    Row("vsock_stream_to_hypervisor", 'call("socket", 40, 1, 0)', "EAFNOSUPPORT"),
    Row("alg", 'call("socket", 38, 5, 0)', "EAFNOSUPPORT"),
    Row("key", 'call("socket", 15, 3, 2)', "EAFNOSUPPORT"),
    Row("xdp", 'call("socket", 44, 3, 0)', "EAFNOSUPPORT"),
    Row("netlink_protocols", 'errors_of([lambda p=p: call("socket", 16, 3, p) and None for p in range(1, 33)])', "EAFNOSUPPORT"),
    Row("netlink_protocol_high_bits", 'errors_of([lambda p=p: call("socket", 16, 3, 1 << 32 | p) and None for p in range(1, 33)])',
        "EAFNOSUPPORT"),
    Row("raw_icmp", 'socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)', "EPERM"),
    Row("raw_tcp", 'socket.socket(socket.AF_INET, socket.SOCK_RAW, 6)', "EPERM"),
    Row("raw_any", 'socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)', "EPERM"),
    Row("raw_v6", 'socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)', ("EPERM", "EAFNOSUPPORT")),
    Row("ping_socket", 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1)', ("EACCES", "EPROTONOSUPPORT")),
    Row("sock_packet", 'call("socket", 2, 10, 0x300)', ("EAFNOSUPPORT", "EPERM", "EINVAL", "ESOCKTNOSUPPORT")),

    Row("only_loopback_is_up", 'up = []\n'
        's1 = socket.socket()\n'
        'for _, n in socket.if_nameindex():\n'
        '  flags, = struct.unpack_from("H", fcntl.ioctl(s1, 0x8913, struct.pack("16s24x", n.encode())), 16)\n'
        '  if flags & 1: up.append(n)\n'
        'return up', "['lo']"),
    Row("no_routes", 'len(open("/proc/net/route").readlines())', "1"),
    Row("netlink_may_be_asked", netlink('struct.pack("=BBHiII", 0, 0, 0, 1, 0, 0)', 18), "done"),
    Row("netlink_new_link", netlink(ifinfo % (0, 0) + ' + struct.pack("=HH8s", 12, 3, b"dummy7") ', 16, 0x600), "EPERM"),
    Row("netlink_loopback_down", netlink(ifinfo % (0, 1), 16), "EPERM"),
    Row("netlink_new_address", netlink('struct.pack("=BBBBi", 2, 8, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([10, 9, 8, 7]))', 20, 0x600),
        "EPERM"),
    Row("netlink_new_route", netlink('struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0) + struct.pack("=HHi", 8, 4, 1)', 24, 0x600),
        "EPERM"),
    Row("netlink_move_link_to_host", netlink(ifinfo % (0, 0) + ' + struct.pack("=HHi", 8, 19, 1)', 16), "EPERM"),
    Row("netlink_host_namespace", 's1 = socket.socket(16, 3, 0)\ns1.setsockopt(270, 8, 1)', "EPERM"),  # LISTEN_ALL_NSID
    Row("ioctl_up", 'fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH22x", b"lo", 0))', "EPERM"),
    Row("ioctl_address", 'fcntl.ioctl(socket.socket(), 0x8916, struct.pack("16sHH4s16x", b"lo", 2, 0, bytes([10, 9, 8, 7])))',
        "EPERM"),
    Row("ioctl_bridge", 'fcntl.ioctl(socket.socket(), 0x89a0, b"br0" + bytes(13))', ("EPERM", "ENOPKG", "ENOTTY")),
    Row("bind_to_device", 'socket.socket().setsockopt(socket.SOL_SOCKET, 25, b"eth0\\0")', ("ENODEV", "EPERM")),
    Row("mark", 'socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1)', "EPERM"),
    Row("transparent", 'socket.socket().setsockopt(0, 19, 1)', "EPERM"),
    Row("forced_buffer", 'socket.socket().setsockopt(socket.SOL_SOCKET, 33, 1 << 30)', "EPERM"),
    Row("low_port", 'socket.create_server(("127.0.0.1", 80)).close()', ("EACCES", "OK")),
    Row("foreign_address", 'socket.create_server(("192.0.2.1", 0))', "EADDRNOTAVAIL"),
    Row("iptables", 'socket.socket(socket.AF_INET, socket.SOCK_RAW, 255).getsockopt(0, 64, 84)', "EPERM"),
    Row("iptables_without_raw", 'socket.socket().getsockopt(0, 64, 84)', ("EPERM", "ENOPROTOOPT")),
    Row("socket_of_host_by_diag", 'call("socket", 16, 3, 4)', "EAFNOSUPPORT"),
    Row("own_loopback_works",
        'srv = socket.create_server(("127.0.0.1", 0))\nc1 = socket.create_connection(srv.getsockname())\n'
        'a, _ = srv.accept()\na.send(b"pong")\nreturn c1.recv(9).decode()', "pong"),
    Row("own_shared_memory_works",
        'from multiprocessing import shared_memory as q\nb = q.SharedMemory(create=True, size=4096)\nb.buf[0] = 7\n'
        'x = b.buf[0]\nb.close()\nb.unlink()\nreturn x', "7"),
]
if V6:
    rows.append(Row("tcp_host_v6_address", 'connect(socket.AF_INET6, (%r, C["port"]))' % V6, NO_ROUTE + ("EAFNOSUPPORT",)))
if host_address(socket.AF_INET, "192.0.2.1"):
    rows.append(Row("tcp_host_address", 'connect(socket.AF_INET, (C["addr"], C["port"]))', NO_ROUTE, control="REACHED"))

TALK = r"""
import socket, sys
mark = sys.argv[1].encode()
for family, address in ((2, "127.0.0.1"), (2, sys.argv[2]), (2, "255.255.255.255"), (2, "224.0.0.251"),
                        (2, "169.254.169.254"), (2, "192.0.2.1"), (10, "::1"), (10, "ff02::1"), (10, "2001:db8::1")):
    for port in (9, 53, 5353):
        try:
            s = socket.socket(family, socket.SOCK_DGRAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            s.sendto(mark, (address, port))
        except OSError: pass
print("said")
"""


def nothing_leaves(self):
    """The host's own interfaces as the witness."""
    if not sbx.ROOT:
        self.skipTest("only root may listen on every interface")
    try:
        sniffer = socket.socket(17, socket.SOCK_RAW, socket.htons(3))
    except OSError as e:
        self.skipTest("no packet sockets here: %s" % e)
    with sniffer:
        sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        address = self.canary["addr"] or "127.0.0.1"
        for trust in levels(self.m):
            mark = "said-" + os.urandom(8).hex()
            r = self.m.run({"command": ["python3", "-c", TALK, mark, address], "trust_level": trust})
            self.assertEqual(r.stdout, b"said\n", r.stderr)
            # What is said now outside comes behind whatever the sandbox said.
            after = "after-" + os.urandom(8).hex()
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(after.encode(), ("127.0.0.1", 9))
            seen = b""
            while after.encode() not in seen:
                sniffer.settimeout(10 * sbx.SLOW)
                seen = sniffer.recv(65536)
                self.assertNotIn(mark.encode(), seen)


Network = group("Network", rows, test_nothing_leaves=nothing_leaves)

if __name__ == "__main__":
    sbx.main()
