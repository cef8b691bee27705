# SPDX-License-Identifier: Apache-2.0
"""Escape attempts of a sandbox that has a network: its rules and routes are not its to change, its helpers are out
of reach, and what is not on the list stays shut. The list has one address, which is for documentation, so that
everything else is forbidden."""
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from escape import Row, group, host_address, sbx  # noqa: E402
from test_escape_network import ifinfo, netlink  # noqa: E402

LISTED, OTHER = "192.0.2.1", "192.0.2.2"
V6 = host_address(socket.AF_INET6, "2001:db8::1")
SHUT = ("ECONNREFUSED", "EPERM", "EACCES", "ENETUNREACH")
PING = 's1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1)\necho = bytes([8]) + bytes(15)\n'
# What listens in the sandbox before its command begins, from /proc/net: rows of (file, local address, port).
LISTENERS = r"""
found = []
for name in ("tcp", "udp", "tcp6", "udp6"):
    for line in open("/proc/net/" + name).readlines()[1:]:
        words = line.split()
        if words[3] in ("0A", "07"): found.append((name, int(words[1].split(":")[1], 16)))
"""

rows = [
    # The network itself is there.
    Row("a_route_to_everything", 'len([l for l in open("/proc/net/route").readlines() if l.startswith("lo")])', ("0", "1")),
    Row("not_listed_tcp", 'connect(socket.AF_INET, ("%s", 80))' % OTHER, "ECONNREFUSED"),
    Row("not_listed_v6", 'connect(socket.AF_INET6, ("2001:db8::1", 80))', SHUT),
    Row("not_listed_udp", 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("%s", 53))' % OTHER, "EPERM"),
    Row("tcp_host_loopback", 'connect(socket.AF_INET, ("127.0.0.1", C["port"]))', "ECONNREFUSED", control="REACHED"),
    Row("tcp_host_address", 'connect(socket.AF_INET, (C["addr"], C["port"])) if C["addr"] else "ECONNREFUSED"', "ECONNREFUSED",
        control="REACHED" if host_address(socket.AF_INET, "192.0.2.1") else "ECONNREFUSED"),
    Row("tcp_any_address", 'connect(socket.AF_INET, ("0.0.0.0", C["port"]))', "ECONNREFUSED", control="REACHED"),
    Row("tcp_v6_loopback", 'connect(socket.AF_INET6, ("::1", C["port"])) if C["addr6"] else "ECONNREFUSED"', SHUT + ("EAFNOSUPPORT",)),
    Row("tcp_v4_in_v6", 'connect(socket.AF_INET6, ("::ffff:127.0.0.1", C["port"]))', ("ECONNREFUSED", "EAFNOSUPPORT")),
    Row("udp_host_loopback", 's1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n'
        's1.connect(("127.0.0.1", C["udp"]))\ns1.send(b"x")\ns1.settimeout(4)\nreturn s1.recv(1)', "ECONNREFUSED"),
    Row("metadata_service", 'connect(socket.AF_INET, ("169.254.169.254", 80))', "ECONNREFUSED"),
    Row("broadcast", 's1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n'
        's1.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\ns1.sendto(b"x", ("255.255.255.255", 9))', SHUT),
    Row("multicast", 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("224.0.0.251", 5353))', SHUT),
    Row("fast_open", 'socket.socket(socket.AF_INET, socket.SOCK_STREAM).sendto(b"x", 0x20000000, ("%s", 80))' % OTHER, "ECONNREFUSED"),
    Row("names", 'socket.getaddrinfo("example.com", 80)', "[Errno -2] Name or service not known"),
    Row("unix_of_host", 'connect(socket.AF_UNIX, C["unix"])', "ENOENT", control="REACHED"),
    Row("abstract_of_host", 'connect(socket.AF_UNIX, "\\0" + C["abstract"])', ("ECONNREFUSED", "EPERM"), control="REACHED"),

    # Packets that no rule would see as what they are.
    Row("raw", 'socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)', "EPERM"),
    Row("raw_v6", 'socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)', ("EPERM", "EAFNOSUPPORT")),
    Row("packet", 'socket.socket(17, socket.SOCK_RAW, 0x300)', "EAFNOSUPPORT"),

    # Sockets for ping are there, since the list has a target for them, and lead nowhere else.
    Row("ping_not_listed", PING + 's1.sendto(echo, ("%s", 0))' % OTHER, "EPERM"),
    Row("ping_metadata", PING + 's1.sendto(echo, ("169.254.169.254", 0))', "EPERM"),
    Row("ping_host_address", PING + 's1.sendto(echo, (C["addr"] or "%s", 0))' % OTHER, "EPERM"),
    Row("ping_broadcast", PING + 's1.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\ns1.sendto(echo, ("255.255.255.255", 0))', SHUT),
    Row("ping_multicast", PING + 's1.sendto(echo, ("224.0.0.1", 0))', SHUT),
    Row("ping_foreign_source", PING + 's1.bind(("192.0.2.9", 0))\ns1.sendto(echo, ("%s", 0))' % LISTED, "EPERM"),
    Row("ping_from_loopback", PING + 's1.bind(("127.0.0.1", 0))\ns1.sendto(echo, ("%s", 0))' % LISTED, ("EPERM", "EINVAL")),
    Row("ping_by_another_way", PING + 's1.setsockopt(0, 4, bytes([131, 7, 4, 192, 0, 2, 2, 0]))\ns1.sendto(echo, ("%s", 0))' % LISTED,
        ("EPERM", "EINVAL", "EHOSTUNREACH")),
    Row("ping_with_a_route_recorded", PING + 's1.setsockopt(0, 4, bytes([7, 7, 4, 0, 0, 0, 0, 0]))\ns1.sendto(echo, ("%s", 0))' % LISTED, "EPERM"),
    Row("ping_other_messages", 'errors_of([lambda k=k: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1).sendto(bytes([k]) + bytes(15), ("%s", 0))'
        ' for k in range(256) if k not in (8, 42)])' % LISTED, ("EINVAL", "EINVAL EOPNOTSUPP")),
    Row("ping_v6_not_listed", 's1 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, 58)\ns1.settimeout(1)\n'
        's1.sendto(bytes([128]) + bytes(15), ("2001:db8::1", 0))\nreturn s1.recv(1)', SHUT + ("ETIMEDOUT", "EAFNOSUPPORT", "EADDRNOTAVAIL")),
    Row("ping_keeps_nothing", 'call("prctl", 8, 1, 0, 0, 0)\nos.setresuid(os.getuid(), os.getuid(), os.getuid())\n'
        'return [l.split()[1].strip("0") for l in open("/proc/self/status") if l.startswith(("CapPrm", "CapEff", "CapAmb", "CapBnd"))]',
        "['', '', '', '']"),
    Row("other_protocols", 'errors_of([lambda n=n, k=k: socket.socket(socket.AF_INET, k, n).connect(("%s", 9))'
        ' for k, n in ((6, 33), (1, 132), (5, 132))])' % OTHER, ("EPROTONOSUPPORT ESOCKTNOSUPPORT", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT",
                                                            "ECONNREFUSED")),
    Row("foreign_source", 's1 = socket.socket()\ns1.setsockopt(0, 15, 1)\ns1.settimeout(2)\ns1.bind(("%s", 0))\ns1.connect(("%s", 80))' % (LISTED, OTHER),
        ("ECONNREFUSED", "ETIMEDOUT")),
    Row("transparent", 'socket.socket().setsockopt(0, 19, 1)', "EPERM"),
    Row("transparent_v6", 'socket.socket(socket.AF_INET6).setsockopt(41, 75, 1)', ("EPERM", "EAFNOSUPPORT")),
    Row("mark", 'socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1)', "EPERM"),
    Row("bind_to_device", 'socket.socket().setsockopt(socket.SOL_SOCKET, 25, b"eth0\\0")', ("ENODEV", "EPERM")),

    # Rules, routes and addresses.
    Row("netfilter", 'call("socket", 16, 3, 12)', "EAFNOSUPPORT"),
    Row("netfilter_high_bits", 'call("socket", 16, 3, 1 << 32 | 12)', "EAFNOSUPPORT"),
    Row("iptables", 'socket.socket().getsockopt(0, 64, 84)', ("EPERM", "ENOPROTOOPT")),
    Row("delete_route", netlink('struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 4, 254, 2, 0) + struct.pack("=HHi", 8, 4, 1)', 25), "EPERM"),
    Row("new_route", netlink('struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0) + struct.pack("=HHi", 8, 4, 1)', 24, 0x600), "EPERM"),
    Row("new_rule", netlink('struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 1, 0)', 32, 0x600), "EPERM"),
    Row("new_address", netlink('struct.pack("=BBBBi", 2, 8, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([10, 9, 8, 7]))', 20, 0x600), "EPERM"),
    Row("loopback_down", netlink(ifinfo % (0, 1), 16), "EPERM"),
    Row("new_link", netlink(ifinfo % (0, 0) + ' + struct.pack("=HH8s", 12, 3, b"dummy7") ', 16, 0x600), "EPERM"),
    Row("link_of_host", netlink(ifinfo % (0, 0) + ' + struct.pack("=HHi", 8, 19, 1)', 16), "EPERM"),
    Row("sysctl", 'open("/proc/sys/net/ipv4/ip_forward", "w").write("1")', ("EROFS", "EACCES", "EPERM", "ENOENT")),
    Row("own_namespace", 'call("unshare", 0x40000000)', "EPERM"),
    Row("user_namespace", 'call("unshare", 0x10000000)', "EPERM"),
    Row("other_namespace", 'call("setns", os.open("/proc/self/ns/net", 0), 0x40000000)', "EPERM"),

    # The helpers.
    Row("no_helper_in_sight", '[n for n in os.listdir("/proc") if n.isdigit() and b"egress" in read("/proc/%s/comm" % n)]', "[]"),
    Row("what_listens", LISTENERS.strip() + '\nreturn sorted({(n, p == 53) for n, p in found})',
        ("[('tcp', False), ('tcp', True), ('tcp6', False), ('udp', False), ('udp', True), ('udp6', False)]",
         "[('tcp', False), ('tcp', True), ('udp', False), ('udp', True)]")),
    Row("a_listener_by_itself", LISTENERS.strip() + """
port = [p for n, p in found if n == "tcp" and p != 53][0]
s1 = socket.create_connection(("127.0.0.1", port), 10)
return s1.recv(1)""", ("ECONNRESET", "b''")),
    Row("a_listener_of_datagrams", LISTENERS.strip() + """
port = [p for n, p in found if n == "udp" and p != 53][0]
s1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s1.connect(("127.0.0.1", port)); s1.send(b"x"); s1.settimeout(1)
return s1.recv(1)""", "ETIMEDOUT"),
    Row("the_place_of_a_listener", LISTENERS.strip() + """
port = [p for n, p in found if n == "udp" and p != 53][0]
s1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for option in (2, 15): s1.setsockopt(socket.SOL_SOCKET, option, 1)
s1.bind(("127.0.0.1", port))""", "EADDRINUSE"),
    Row("the_place_of_the_resolver", 's1 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n'
        'for option in (2, 15): s1.setsockopt(socket.SOL_SOCKET, option, 1)\ns1.bind(("127.0.0.1", 53))', ("EADDRINUSE", "EACCES")),
    Row("own_loopback_works",
        'srv = socket.create_server(("127.0.0.1", 0))\nc1 = socket.create_connection(srv.getsockname())\n'
        'a, _ = srv.accept()\na.send(b"pong")\nreturn c1.recv(9).decode()', "pong"),
]
if V6:
    rows.append(Row("tcp_host_v6_address", 'connect(socket.AF_INET6, (%r, C["port"]))' % V6, SHUT + ("EAFNOSUPPORT",)))

SPEC = {"network_policy": "allowlist"}
SETTINGS = {"egress_enforcement": "true", "egress_granular_enforcement": "true", "egress_allowlist": LISTED}
Egress = group("Egress", rows, spec=SPEC, settings=SETTINGS)

if __name__ == "__main__":
    sbx.main()
