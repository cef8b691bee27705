# SPDX-License-Identifier: Apache-2.0
"""Escape attempts through names: the root, mounts, devices, /proc, /sys, control groups, programs with
privileges. The service's state and mountpoint lie below /usr/local here, the one place of the host that a
sandbox sees, so that they have to be hidden and are not merely elsewhere."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from escape import Row, group, sbx  # noqa: E402


def holds_sys_resource():
    """Whether the service may fix the least score; a container's root may not."""
    with open("/proc/self/status") as f:
        return any(line.startswith("CapEff") and int(line.split()[1], 16) >> 24 & 1 for line in f)


roots = [
    Row("root_listing", 'sorted(set(os.listdir("/")) - {"lib32", "libx32", "lib64"})',
        "['bin', 'dev', 'etc', 'lib', 'proc', 'run', 'sbin', 'sys', 'tmp', 'usr', 'var', 'workspace']"),
    Row("empty_directories", '[os.listdir(d) for d in ("/run", "/sys", "/dev/shm", "/tmp")]', "[[], [], [], []]"),
    Row("var_listing", 'os.listdir("/var")', "['tmp']"),
    Row("no_shadow", 'read("/etc/shadow")', "ENOENT"),
    Row("etc_is_not_the_hosts", '[l.split(":")[0] for l in open("/etc/passwd")]', "['root', 'sandbox', 'nobody']"),
    Row("no_machine_id", 'read("/etc/machine-id")', "ENOENT"),
    Row("private_secret", 'read(C["private"]).decode() == C["mark"]', "ENOENT", control="True"),
    Row("public_secret", 'read(C["public"]).decode() == C["mark"]', "ENOENT", control="True"),
    Row("writable_secret", 'os.close(os.open(C["writable"], os.O_WRONLY))', "ENOENT", control="OK"),
    Row("dotdot", 'read("../" * 40 + C["public"].lstrip("/"))', "ENOENT"),
    Row("dotdot_from_descriptor",
        'd = os.open("/", os.O_RDONLY)\nreturn os.open("../../.." + C["public"], os.O_RDONLY, dir_fd=d)', "ENOENT"),
    Row("dotdot_of_root_is_root", 'a, b = os.stat("/"), os.stat("/..")\nreturn a.st_ino == b.st_ino and a.st_dev == b.st_dev',
        "True"),
    Row("proc_self_root", 'read("/proc/self/root" + C["public"])', "ENOENT"),
    Row("proc_self_cwd_up", 'read("/proc/self/cwd/../../../.." + C["public"])', "ENOENT"),
    Row("proc_1_root", 'read("/proc/1/root" + C["public"])', "ENOENT"),
    Row("proc_1_cwd", 'os.listdir("/proc/1/cwd/")', "ENOENT"),
    Row("symlink_to_secret", 'os.symlink(C["public"], "l1")\nreturn read("l1")', "ENOENT"),
    Row("hard_link_to_usr", 'os.link(os.path.realpath("/usr/bin/python3"), "hard")', "EXDEV"),
    Row("link_by_descriptor", 'fd = os.open("/usr/bin/python3", os.O_RDONLY)\n'
        'os.link("/proc/self/fd/%d" % fd, "hard2", follow_symlinks=True)', "EXDEV"),
    Row("link_empty_path", 'fd = os.open("/usr/bin/python3", os.O_PATH)\n'
        'call("linkat", fd, s(""), -100, s("hard3"), 0x1000)', ("ENOENT", "EXDEV")),
    Row("root_is_read_only", 'os.mkdir("/new")', ("EACCES", "EROFS")),
    Row("etc_is_read_only", 'os.open("/etc/new", os.O_WRONLY | os.O_CREAT)', ("EACCES", "EROFS")),
    Row("usr_is_read_only", 'os.open("/usr/new", os.O_WRONLY | os.O_CREAT)', ("EACCES", "EROFS")),
    Row("usr_not_by_descriptor",
        'fd = os.open("/usr/bin/python3", os.O_RDONLY)\nos.open("/proc/self/fd/%d" % fd, os.O_RDWR)',
        ("EACCES", "EROFS", "ETXTBSY")),
    Row("usr_times", 'os.utime("/usr/bin", (1, 1))', ("EPERM", "EROFS")),
    Row("rename_over_usr", 'open("f1", "w").close()\nos.rename("f1", "/usr/bin/new")', ("EACCES", "EROFS", "EXDEV")),

    Row("state_is_hidden", 'len(os.listdir(C["state"])) > 0 if os.path.exists(C["state"]) else False', "False",
        control="True"),
    Row("database", 'os.close(os.open(C["state"] + "/state.db", os.O_RDONLY))', "ENOENT", control="OK"),
    Row("feed", 'os.open(C["state"] + "/notify/feed", os.O_WRONLY)', "ENOENT"),
    Row("other_runs", 'os.listdir(C["state"] + "/runs")', "ENOENT"),
    Row("state_not_writable", 'os.mkdir(C["state"] + "/x")', ("EACCES", "EROFS", "ENOENT")),
    Row("mountpoint_is_hidden", 'os.listdir(C["mnt"]) if os.path.exists(C["mnt"]) else []', "[]"),
    Row("mountpoint_has_no_new", 'os.close(os.open(C["mnt"] + "/runs/new", os.O_WRONLY))', "ENOENT", control="OK"),
]

mounts = [
    Row("mounts_do_not_tell",
        'text = b"".join(read("/proc/self/" + n, 1 << 20) for n in ("mountinfo", "mounts", "mountstats"))\n'
        'return [k for k in ("state", "mnt", "base", "mark") if C[k].encode() in text and k not in ("state", "mnt")]',
        "[]"),
    Row("every_mount_nosuid_nodev",
        'bad = []\n'
        'for line in open("/proc/self/mountinfo"):\n'
        '  f = line.split()\n'
        '  if "nosuid" not in f[5].split(","): bad.append("suid " + f[4])\n'
        '  fine = f[4] == "/dev/pts" or stat.S_ISCHR(os.stat(f[4]).st_mode)\n'
        '  if "nodev" not in f[5].split(",") and not fine: bad.append("dev " + f[4])\n'
        'return bad', "[]"),
    # More than one mount may lie at a place; the last one is what its name leads to.
    Row("proc_is_of_this_namespace", 'os.readlink("/proc/self") == str(os.getpid()) and not os.path.exists("/proc/%d" % C["victim"])',
        "True"),
    Row("writable_mounts",
        'ok = {"/workspace", "/tmp", "/dev/shm", "/dev/pts", "/proc", "/var/tmp"}\n'
        'return sorted({l.split()[4] for l in open("/proc/self/mountinfo") if "rw" in l.split()[5].split(",")} - ok)',
        "[]"),
    Row("no_propagation", '[l for l in open("/proc/self/mountinfo") if "shared:" in l or "master:" in l]', "[]"),
    # The file system type that its name gives now: what lies under a cover cannot be reached.
    Row("fuse_is_covered",
        'paths = [l.split()[4] for l in open("/proc/self/mountinfo") if " - fuse" in l]\n'
        'buf = (ctypes.c_long * 64)()\n'
        'for p in paths:\n'
        '  if libc.statfs(p.encode(), buf) == 0 and buf[0] == 0x65735546: return "seen"\n'
        'return "covered"', "covered", control="seen"),
    Row("bind_by_libc", 'r = libc.mount(b"/usr", b"/tmp", None, 4096, None)\nreturn errno.errorcode[ctypes.get_errno()]',
        "EPERM"),
    Row("mount_program", 'subprocess.run(["mount", "-t", "tmpfs", "x", "/tmp"], stderr=-3).returncode != 0', "True"),
    Row("umount_program", 'subprocess.run(["umount", "/proc"], stderr=-3).returncode != 0', "True"),
    Row("unshare_program", 'subprocess.run(["unshare", "-Ur", "true"], stderr=-3).returncode', "1", control="0"),
    Row("remount_usr", 'libc.mount(None, b"/usr", None, 32 | 4096, None)\nreturn errno.errorcode[ctypes.get_errno()]',
        "EPERM"),
    Row("uid_map", '[l.split()[0::2] for l in open("/proc/self/uid_map")]', "[['1000', '1']]"),
    Row("gid_map", '[l.split()[0::2] for l in open("/proc/self/gid_map")]', "[['1000', '1']]"),
    Row("write_uid_map", 'write("/proc/self/uid_map", "0 0 1")', ("EPERM", "EACCES")),
    Row("write_gid_map", 'write("/proc/self/gid_map", "0 0 1")', ("EPERM", "EACCES")),
    Row("write_setgroups", 'write("/proc/self/setgroups", "allow")', ("EPERM", "EACCES", "EINVAL")),
]

devices = [
    Row("dev_listing", 'sorted(os.listdir("/dev"))',
        str(sorted("fd full null ptmx pts random shm stderr stdin stdout tty urandom zero".split()))),
    Row("mknod_char", 'os.mknod("mem", 0o666 | stat.S_IFCHR, os.makedev(1, 1))', "EPERM"),
    Row("mknod_block", 'os.mknod("/tmp/disk", 0o666 | stat.S_IFBLK, os.makedev(254, 0))', "EPERM"),
    Row("mknod_null", 'os.mknod("/dev/shm/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))', "EPERM"),
    Row("mknod_in_dev", 'os.mknod("/dev/sda", 0o666 | stat.S_IFBLK, os.makedev(8, 0))', ("EPERM", "EACCES", "EROFS")),
    Row("mknod_whiteout", 'os.mknod("white", stat.S_IFCHR, 0)\nreturn "only a name: %s" % stat.S_ISCHR(os.stat("white").st_mode)',
        ("EPERM", "only a name: True")),
    Row("open_whiteout", 'os.mknod("white2", 0o666 | stat.S_IFCHR, 0)\nos.open("white2", os.O_RDONLY)',
        ("EPERM", "EACCES", "ENXIO")),
    Row("no_mem", 'os.open("/dev/mem", os.O_RDONLY)', "ENOENT"),
    Row("no_kmsg", 'os.open("/dev/kmsg", os.O_RDONLY)', "ENOENT"),
    Row("no_fuse", 'os.open("/dev/fuse", os.O_RDWR)', "ENOENT"),
    Row("no_kvm", 'os.open("/dev/kvm", os.O_RDWR)', "ENOENT"),
    Row("no_tun", 'os.open("/dev/net/tun", os.O_RDWR)', "ENOENT"),
    Row("chmod_dev_null", 'os.chmod("/dev/null", 0)', ("EPERM", "EROFS")),
    Row("remove_dev_null", 'os.unlink("/dev/null")', ("EACCES", "EROFS", "EBUSY")),
    Row("times_of_dev_null", 'os.utime("/dev/null", (1, 1))', ("EPERM", "EROFS", "EACCES")),
    Row("dev_null_works", 'write("/dev/null", "x")', "written"),
    Row("random_entropy_ioctl",  # RNDADDTOENTCNT
        'fcntl.ioctl(os.open("/dev/random", os.O_RDWR), 0x40045201, struct.pack("i", 8))', ("EPERM", "EACCES")),
    Row("pts_is_our_own", 'sorted(os.listdir("/dev/pts"))', "['ptmx']"),
    Row("io_ports", 'os.open("/dev/port", os.O_RDWR)', "ENOENT"),
]

proc = [
    Row("kcore", 'read("/proc/kcore")', ("b''", "ENOENT")),
    Row("keys", 'read("/proc/keys")', "b''"),
    Row("timer_list", 'read("/proc/timer_list")', ("b''", "ENOENT")),
    Row("kmsg", 'read("/proc/kmsg")', ("EPERM", "EACCES")),
    Row("kallsyms", '{l.split()[0].strip("0") for l in open("/proc/kallsyms").readlines()[:99]}', ("{''}", "ENOENT")),
    Row("iomem", '{l.split("-")[0].strip("0 ") for l in open("/proc/iomem")}', ("{''}", "EACCES")),
    Row("sysrq_trigger_is_null", 'os.stat("/proc/sysrq-trigger").st_rdev == os.makedev(1, 3)',
        ("True", "ENOENT")),
    Row("core_pattern", 'write("/proc/sys/kernel/core_pattern", "|/workspace/x")', ("EACCES", "EROFS")),
    Row("modprobe", 'write("/proc/sys/kernel/modprobe", "/workspace/x")', ("EACCES", "EROFS", "ENOENT")),
    Row("hostname_sysctl", 'write("/proc/sys/kernel/hostname", "x")', ("EACCES", "EROFS")),
    Row("ns_last_pid", 'write("/proc/sys/kernel/ns_last_pid", "1")', ("EACCES", "EROFS", "ENOENT")),
    Row("binfmt", 'write("/proc/sys/fs/binfmt_misc/register", ":x:M::x::/x:")', ("EACCES", "EROFS", "ENOENT")),
    Row("net_sysctl", 'write("/proc/sys/net/ipv4/ip_forward", "1")', ("EACCES", "EROFS")),
    Row("ping_group", 'write("/proc/sys/net/ipv4/ping_group_range", "0 2000")', ("EACCES", "EROFS", "ENOENT")),
    Row("user_sysctl", 'write("/proc/sys/user/max_user_namespaces", "9")', ("EACCES", "EROFS")),
    Row("chmod_proc_sys", 'os.chmod("/proc/sys/kernel/core_pattern", 0o666)', ("EPERM", "EROFS", "EACCES")),
    Row("oom_score", 'write("/proc/self/oom_score_adj", "-1000")', "EACCES"),
    Row("oom_score_is_set", 'read("/proc/self/oom_score_adj").strip().decode()', "500"),
    Row("oom_score_below_ours", 'write("/proc/self/oom_score_adj", "499")',
        "EACCES" if holds_sys_resource() else "written"),
    Row("acpi", '[n for d in ("/proc/acpi", "/proc/scsi") if os.path.isdir(d) for n in os.listdir(d)]', "[]"),
    Row("proc_bus", 'os.open("/proc/bus/pci/devices", os.O_WRONLY)', ("EACCES", "EROFS", "ENOENT")),
    Row("mtrr", 'write("/proc/mtrr", "disable=0")', ("EACCES", "EROFS", "ENOENT", "EPERM")),
    Row("cgroup_file_shows_a_root", '{l.rsplit(":", 1)[1].strip() for l in open("/proc/self/cgroup")}',
        ("{'/'}", "set()")),
    Row("no_cgroup_files", 'os.listdir("/sys/fs/cgroup")', "ENOENT"),
    Row("release_agent", 'write("/sys/fs/cgroup/memory/release_agent", "/workspace/x")', "ENOENT"),
    Row("mount_cgroup2", 'libc.mount(b"x", b"/tmp", b"cgroup2", 0, None)\nreturn errno.errorcode[ctypes.get_errno()]',
        "EPERM"),
    Row("mount_cgroup1", 'libc.mount(b"x", b"/tmp", b"cgroup", 0, b"memory")\nreturn errno.errorcode[ctypes.get_errno()]',
        "EPERM"),
    Row("mount_second_proc", 'libc.mount(b"x", b"/tmp", b"proc", 0, None)\nreturn errno.errorcode[ctypes.get_errno()]',
        "EPERM"),
    Row("no_debugfs", 'os.listdir("/sys/kernel/debug")', "ENOENT"),
    Row("no_efivars", 'os.listdir("/sys/firmware")', "ENOENT"),
    Row("host_environment",
        'hits = []\n'
        'for p in filter(str.isdigit, os.listdir("/proc")):\n'
        '  try:\n'
        '    if C["mark"].encode() in read("/proc/%s/environ" % p, 1 << 20): hits.append(p)\n'
        '  except OSError: pass\n'
        'return "found" if hits or "SBX_CANARY" in os.environ else "nothing"', "nothing", control="found"),
    Row("secret_in_proc",
        'hits = []\n'
        'for p in ("cmdline", "mounts", "version", "cgroups", "partitions", "locks", "net/unix", "net/tcp", "net/udp"):\n'
        '  try:\n'
        '    text = read("/proc/" + p, 1 << 20)\n'
        '    if C["abstract"].encode() in text or (":%04X " % C["port"]).encode() in text: hits.append(p)\n'
        '  except OSError: pass\n'
        'return hits', "[]", control="['net/unix', 'net/tcp']"),
]

programs = [
    Row("setuid_program", 'subprocess.run([C["usr"] + "/setuid", "-c", "import os; print(os.geteuid())"],'
        ' stdout=-1).stdout.decode().strip() if C["usr"] else "1000"', "1000"),
    Row("setuid_program_caps", 'subprocess.run([C["usr"] + "/setuid", "-c", "print(*[l for l in open(\'/proc/self/status\')'
        ' if l.startswith(\'Cap\')])"], stdout=-1).stdout.split()[1::2] if C["usr"] else ""',
        ("[b'0000000000000000', b'0000000000000000', b'0000000000000000', b'0000000000000000', b'0000000000000000']", "")),
    Row("file_capabilities", 'subprocess.run([C["usr"] + "/caps", "-c", "print(*[l for l in open(\'/proc/self/status\')'
        ' if l.startswith(\'CapEff\')])"], stdout=-1).stdout.split()[1::2] if C["usr"] else ""',
        ("[b'0000000000000000']", "")),
    Row("setuid_of_our_own", 'shutil = __import__("shutil")\nshutil.copy(os.path.realpath("/usr/bin/id"), "id")\n'
        'os.chmod("id", 0o6755)\nreturn subprocess.run(["./id", "-u"], stdout=-1).stdout.decode().strip()', "1000"),
    Row("su", 'subprocess.run(["su", "-c", "id -u"], stdin=-3, stdout=-3, stderr=-3).returncode != 0', "True"),
    Row("no_capabilities", '{l.split()[1].strip("0") for l in open("/proc/self/status") if l.startswith("Cap")}', "{''}"),
    Row("setuid_0", 'os.setuid(0)', "EINVAL"),
    Row("setresuid_other", 'os.setresuid(1001, 1001, 1001)', "EINVAL"),
    Row("setgid_0", 'os.setgid(0)', "EINVAL"),
    Row("setgroups", 'os.setgroups([0])', "EPERM"),
    Row("groups", 'os.getgroups()', ("[]",) if os.geteuid() == 0 else ("[]", "[65534]", str([1000]))),
    Row("chown_to_root", 'open("f2", "w").close()\nos.chown("f2", 0, 0)', "EINVAL"),
    Row("chown_away", 'open("f3", "w").close()\nos.chown("f3", 65534, 65534)', ("EINVAL", "EPERM")),
    Row("file_caps_of_our_own", 'open("f4", "w").close()\n'
        'os.setxattr("f4", "security.capability", bytes.fromhex("01000002" + "ffffffff" + "0" * 8 + "ffffffff" + "0" * 8))',
        ("EPERM", "EOPNOTSUPP")),
    Row("trusted_xattr", 'open("f5", "w").close()\nos.setxattr("f5", "trusted.x", b"1")', ("EPERM", "EOPNOTSUPP")),
    Row("capset", 'call("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xffffffff] * 6))', "EPERM"),
    Row("ambient", 'call("prctl", 47, 2, 21, 0, 0)', "EPERM"),
    Row("bounding_set", '[c for c in range(41) if call("prctl", 23, c, 0, 0, 0)]', "[]"),
    Row("usr_world_writable", 'write(C["usr"] + "/writable", "x") if C["usr"] else "EROFS"', ("EROFS", "EACCES")),
    Row("usr_world_writable_directory", 'os.mkdir(C["usr"] + "/x") if C["usr"] else "EROFS"', ("EROFS", "EACCES")),
    Row("usr_world_writable_truncate", 'os.truncate(C["usr"] + "/writable", 0) if C["usr"] else "EROFS"', ("EROFS", "EACCES")),
    Row("usr_world_writable_unlink", 'os.unlink(C["usr"] + "/writable") if C["usr"] else "EROFS"', ("EROFS", "EACCES")),
    Row("usr_world_writable_mmap",
        'if not C["usr"]: return "EROFS"\nfd = os.open(C["usr"] + "/writable", os.O_RDONLY)\n'
        'mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)', ("EACCES", "EROFS")),
    Row("runner_is_not_writable", 'write(C["runner"], "x")', ("ENOENT", "EACCES", "EROFS", "ETXTBSY")),
    Row("proc_self_exe_write", 'write("/proc/self/exe", "x")', ("EACCES", "EROFS", "ETXTBSY")),
    Row("proc_1_exe_write", 'write("/proc/1/exe", "x")', "ENOENT"),
    # A limit of 1 byte is the kernel's word for no core dump even where the host has a program for them, which
    # 0 is not: so it stays, whatever is asked for.
    Row("core_limit", 'resource.getrlimit(resource.RLIMIT_CORE)', "(1, 1)"),
    Row("core_limit_up", 'resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))\n'
        'return resource.getrlimit(resource.RLIMIT_CORE)', "(1, 1)"),
    Row("core_limit_down", 'resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n'
        'return resource.getrlimit(resource.RLIMIT_CORE)', "(1, 1)"),
    Row("core_limit_down_high_bits", 'call("prlimit64", 0, 1 << 40 | 4, (ctypes.c_uint64 * 2)(0, 0), None)\n'
        'return resource.getrlimit(resource.RLIMIT_CORE)', "(1, 1)"),
    Row("core_limit_by_old_call", 'call("setrlimit", 4, (ctypes.c_uint64 * 2)(0, 0))\n'
        'return resource.getrlimit(resource.RLIMIT_CORE)', "(1, 1)"),
    Row("other_limits_can_be_lowered", 'resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))\n'
        'return resource.getrlimit(resource.RLIMIT_NOFILE)', "(99, 99)"),
    Row("no_limit_can_be_raised",
        'names = [n for n in dir(resource) if n.startswith("RLIMIT_") and n != "RLIMIT_CORE"]\n'
        'def up(n):\n'
        '  soft, hard = resource.getrlimit(getattr(resource, n))\n'
        '  if hard == resource.RLIM_INFINITY: return False\n'
        '  try: resource.setrlimit(getattr(resource, n), (soft, hard + 1))\n'
        '  except (ValueError, OSError): return False\n'
        '  return True\n'
        'return [n for n in names if up(n)]', "[]"),
]

where = "/usr/local/share" if os.access("/usr/local/share", os.W_OK) else None
Roots = group("Roots", roots, where=where)
Mounts = group("Mounts", mounts, where=where)
Devices = group("Devices", devices)
Proc = group("Proc", proc)
Programs = group("Programs", programs)

if __name__ == "__main__":
    sbx.main()
