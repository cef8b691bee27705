# SPDX-License-Identifier: Apache-2.0
"""The mount of an ordinary user, without any rights. Started by root, the tests run as `nobody`, in a mount
namespace of their own in which /dev/fuse is open to everybody, as it is on a usual system."""
import errno
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import gitkit  # noqa: E402
import nethosts  # noqa: E402
import sbx  # noqa: E402
import workkit  # noqa: E402

CLONE_NEWNS, CLONE_NEWNET, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x40000000, 0x1000, 0x4000, 1 << 18


def reason_not_to():
    if shutil.which("fusermount3") is None:
        return "no fusermount3"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "this user may not open /dev/fuse"
    return None


@unittest.skipIf(reason_not_to(), reason_not_to() or "")
class Ordinary(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.m = sbx.Mount()
        cls.m.start()

    @classmethod
    def tearDownClass(cls):
        cls.m.close()

    def test_nobody_is_root_here(self):
        self.assertNotEqual(os.geteuid(), 0)
        with open("/proc/self/status") as f:
            caps = next(x for x in f if x.startswith("CapEff"))
        self.assertEqual(int(caps.split()[1], 16), 0)

    def test_hello(self):
        run = self.m.run({"command": ["sh", "-c", "echo hi; echo oops >&2; exit 3"]})
        self.assertEqual((run.exit, run.stdout, run.stderr), ("3", b"hi\n", b"oops\n"))

    def test_echo_and_latest(self):
        p = fskit.shell(self.m, """echo '{"command":["echo","hi"]}' > "$MNT/runs/new" && cat "$MNT/runs/latest/.wait" """)
        self.assertEqual((p.returncode, p.stdout), (0, b"0\n"))

    def test_sandbox_is_another_user_inside(self):
        run = self.m.run({"command": ["sh", "-c", "id -u; ls /home /root 2>&1; echo x > /workspace/f; cat f"]})
        self.assertEqual(run.exit, "0")
        self.assertEqual(run.stdout.splitlines()[0], b"1000")

    def test_sandbox_cannot_see_the_users_files(self):
        secret = os.path.join(self.m.base, "secret")
        with open(secret, "w") as f:
            f.write("x")
        run = self.m.run({"command": ["cat", secret]})
        self.assertEqual((run.exit, run.stdout), ("1", b""))

    def test_refusal(self):
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit({"comand": ["ls"]})
        self.assertEqual((c.exception.errno, c.exception.code), (errno.EINVAL, "invalid_spec"))

    def test_nodes_belong_to_the_user(self):
        run = self.m.run({"command": ["true"]})
        for path in (self.m.mnt, run.dir, run.path("status")):
            self.assertEqual(os.stat(path).st_uid, os.getuid())

    def test_what_only_reads_cannot_be_written(self):
        for path in (os.path.join(self.m.mnt, "README"), self.m.run({"command": ["true"]}).path("status")):
            with self.assertRaises(OSError) as c:
                os.open(path, os.O_WRONLY)
            self.assertIn(c.exception.errno, (errno.EACCES, errno.EPERM))

    def test_no_admin_directory(self):
        self.assertNotIn("admin", os.listdir(self.m.mnt))
        self.assertFalse(os.path.exists(os.path.join(self.m.mnt, "admin")))

    def test_artifacts(self):
        run = self.m.run({"command": ["sh", "-c", "mkdir o; echo 1 > o/a; ln -s /etc/passwd o/l"],
                          "capture_patterns": ["o/*"]})
        self.assertEqual(run.read("artifacts/o/a"), b"1\n")
        self.assertFalse(os.path.exists(run.path("artifacts/o/l")) and
                         b"root:" in run.read("artifacts/o/l"))

    def test_kill_of_a_tree(self):
        run = self.m.submit({"command": ["sh", "-c", "sleep 4713 & sleep 4713 & echo up; wait"]})
        run.stream_until(b"up\n")
        run.ctl("kill")
        self.assertEqual(run.wait(), "killed")
        self.assertEqual(subprocess.run(["pgrep", "-f", "sleep 4713"], stdout=subprocess.PIPE).stdout, b"")

    def test_time_limit(self):
        run = self.m.run({"command": ["sleep", "100"], "timeout_sec": 1})
        self.assertEqual((run.exit, run.status()), ("timed_out", "timed_out"))

    def test_network_is_closed(self):
        run = self.m.run({"command": ["python3", "-c", "import socket\nsocket.create_connection(('1.1.1.1',53),2)"]})
        self.assertEqual(run.exit, "1")
        self.assertIn(b"nreachable", run.stderr)

    def test_stdin(self):
        run = self.m.submit({"command": ["cat"], "interactive": True, "spec_version": "1.1"})
        with open(run.path("stdin"), "wb", buffering=0) as f:
            f.write(b"typed\n")
        run.ctl("eof")
        self.assertEqual((run.wait(), run.stdout), ("0", b"typed\n"))

    def test_inotify(self):
        with fskit.Inotify() as ino:
            ino.add(os.path.join(self.m.mnt, "runs"), ino.CREATE)
            run = self.m.submit({"command": ["true"]})
            ino.wait(lambda p, m, n: n == run.id)
            run.wait()

    def test_inotify_in_a_workspace(self):
        s = workkit.Session(self.m, "watched")
        s.shell("mkdir d; echo 1 > d/f")
        with fskit.Inotify() as ino:
            ino.add(s.path("d"), ino.CREATE | ino.MODIFY | ino.CLOSE_WRITE | ino.DELETE | ino.MOVED_TO)
            self.assertEqual(s.run("echo 2 >> d/f; echo > d/g; mv d/g d/h"), "0")
            for mask, name in ((ino.CLOSE_WRITE, "f"), (ino.CREATE, "g"), (ino.MOVED_TO, "h")):
                ino.wait(lambda p, m, n: n == name and m & mask)
        s.ctl("destroy")

    def test_tier_that_cannot_be_enforced_is_refused_with_the_reason(self):
        with open(os.path.join(self.m.mnt, "runtimes/namespace.json")) as f:
            levels = json.load(f)["supported_trust_levels"]
        self.assertIn("trusted", levels)
        for level in ("trusted", "standard", "untrusted"):
            verdict = self.m.check({"command": ["true"], "trust_level": level, "network_policy": "deny_all"})
            self.assertEqual(verdict["accepted"], level in levels, verdict)

    def test_state_is_private(self):
        self.assertEqual(stat.S_IMODE(os.stat(self.m.state).st_mode) & 0o77, 0)

    def test_check_names_what_there_is(self):
        p = subprocess.run([sbx.SANDBOXFS, "--check", "--json", "-o", "state=%s/s2,config=%s"
                            % (self.m.base, self.m.conf)], stdout=subprocess.PIPE, check=True)
        rows = {r["name"]: r for r in json.loads(p.stdout)["runtimes"]}
        self.assertIs(rows["namespace"]["available"], True)

    def test_default_state_is_below_the_home_directory(self):
        with sbx.Mount(env={"HOME": self.m.base, "XDG_STATE_HOME": self.m.base + "/xdg"}) as m:
            m.stop()
            args = [sbx.SANDBOXFS, "-o", "config=" + m.conf, m.mnt]
            p = subprocess.run(args, env=m.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertTrue(os.path.exists(os.path.join(self.m.base, "xdg/sandboxfs/state.db")))
            subprocess.run(["fusermount3", "-u", "-z", m.mnt], check=True)

    def test_survives_a_kill(self):
        with sbx.Mount() as m:
            run = m.run({"command": ["echo", "old"]})
            m.kill()
            m.start()
            self.assertEqual(run.stdout, b"old\n")


@unittest.skipIf(reason_not_to(), reason_not_to() or "")
class Worktree(unittest.TestCase):
    """Repositories and workspaces are bound by name here, and their files keep their owner."""

    @classmethod
    def setUpClass(cls):
        cls.ground = gitkit.Ground().__enter__()
        cls.addClassCleanup(cls.ground.__exit__)
        cls.repo = cls.ground.repo("r")
        cls.repo.commit([("f", b"committed\n"), ("private", b"p\n", 0o600)])
        cls.m = sbx.Mount(settings={"worktree_deny_all": "true", "worktree_allowed_dirs": cls.ground.base,
                                    "images": "r=" + cls.repo.path, "default_runtime": "worktree"})
        cls.m.start()
        cls.addClassCleanup(cls.m.close)

    def test_a_repository(self):
        before = self.repo.fingerprint()
        for _ in range(2):
            run = self.m.run({"base_image": "r", "command": ["sh", "-c", "cat f private; git status --porcelain; id -u;"
                                                             "echo x >f; ls %s" % self.ground.base]})
            self.assertEqual((run.exit, run.stdout), ("2", b"committed\np\n1000\n"), run.stderr)
        self.assertEqual(self.repo.fingerprint(), before)

    def test_a_session(self):
        session = os.path.join(self.m.mnt, "sessions/s")
        os.mkdir(session)
        with open(os.path.join(session, "status.json")) as f:
            doc = json.load(f)
        with open(os.path.join(session, "workspace/f"), "w") as f:
            f.write("of the session\n")
        run = self.m.run({"session_id": doc["id"], "command": ["sh", "-c", "cat f; git log --format=%an; echo x >f"]})
        self.assertEqual((run.exit, run.stdout), ("0", b"of the session\ntldw\n"), run.stderr)
        with open(os.path.join(session, "workspace/f")) as f:
            self.assertEqual(f.read(), "of the session\n")


@unittest.skipIf(reason_not_to(), reason_not_to() or "")
@unittest.skipUnless("SBX_TEST_HOST" in os.environ, "only root makes machines to talk to")
class OrdinaryNetwork(unittest.TestCase):
    def test_an_allowlist_holds(self):
        v4, v6 = os.environ["SBX_TEST_HOST"].split()
        with open(os.path.join(os.path.dirname(nethosts.__file__), "netclient.py"), encoding="utf-8") as f:
            client = f.read()
        with sbx.Mount(settings={"egress_enforcement": "true", "egress_granular_enforcement": "true",
                                 "egress_allowlist": "good.test:80,[%s]:7007" % v6, "egress_dns": v4}) as m:
            r = m.run({"command": ["python3", "-c", client + "say(get('good.test')); say(get({0!r})); say(udp({1!r}))\n"
                                   "say(get({0!r}, 8080)); say(udp({0!r})); say(name('bad.test'))".format(v4, v6)],
                       "network_policy": "allowlist"})
            self.assertEqual((r.exit, r.stdout.decode().splitlines()), (
                "0", ["allowed 80", "allowed 80", "allowed one allowed two", "ECONNREFUSED", "EPERM",
                      "[Errno -2] Name or service not known"]), (r.stderr, r.json()["message"]))
            self.assertEqual(r.json()["resource_usage"]["egress_refused_tcp_packets"], 1)

    def test_ping(self):
        """The host has sockets for it for everybody, and the sandbox has the right to its own."""
        v4, v6 = os.environ["SBX_TEST_HOST"].split()
        with open(os.path.join(os.path.dirname(nethosts.__file__), "netclient.py"), encoding="utf-8") as f:
            client = f.read()
        with sbx.Mount(settings={"egress_enforcement": "true", "egress_granular_enforcement": "true",
                                 "egress_allowlist": "%s,%s" % (v4, v6)}) as m:
            r = m.run({"command": ["python3", "-c", client + "say(ping(%r)); say(ping(%r)); say(unheard('192.0.2.1', %r))"
                                   % (v4, v6, v4)], "network_policy": "allowlist"})
            self.assertEqual((r.exit, r.stdout.decode().splitlines()), ("0", ["answered", "answered", "EPERM, %s 2" % v4]),
                             (r.stderr, r.json()["message"]))
            usage = r.json()["resource_usage"]
            self.assertEqual((usage["egress_echoes"], usage["egress_refused_icmp_packets"]), (3, 1))


STAGE = "/mnt"  # covered in the mount namespace of this test


def become_nobody():
    """A device of our own for everybody, and a place where everybody may read this source and build, out
    of sight of the rest of the system. False when that cannot be had."""
    libc = sbx.libc
    source, build = os.path.abspath(sbx.SOURCE), os.path.abspath(sbx.BUILD)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) or \
            libc.mount(b"tmpfs", STAGE.encode(), b"tmpfs", 0, b"mode=755"):
        return False
    node = os.path.join(STAGE, "fuse")
    os.mknod(node, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    os.chmod(node, 0o666)
    if libc.mount(node.encode(), b"/dev/fuse", None, MS_BIND, None):
        return False
    for name, path in (("SOURCE", source), ("BUILD", build)):
        here = os.path.join(STAGE, name.lower())
        os.mkdir(here)
        os.chmod(here, 0o755)
        if libc.mount(path.encode(), here.encode(), None, MS_BIND | MS_REC, None):
            return False
        os.environ["SBX_%s_ROOT" % name] = here
    user = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    os.environ.update(HOME="/nonexistent", USER="nobody")
    os.environ.pop("XDG_STATE_HOME", None)
    os.chdir("/")
    return True


def go_on_as_nobody():
    if become_nobody():
        # Anew, so that every module sees the user that it is now; root's own interpreter may be private.
        python = sys.executable if os.access(sys.executable, os.X_OK) else "/usr/bin/python3"
        me = os.path.join(os.environ["SBX_SOURCE_ROOT"], "tests/integration", os.path.basename(__file__))
        os.execv(python, [python, me, *sys.argv[1:]])
    sbx.main()


if __name__ == "__main__":
    if not sbx.ROOT or not os.path.exists("/dev/fuse"):
        sbx.main()
    if nethosts.reason_not_here():
        go_on_as_nobody()
    # Another machine, which only root can make, beside a host that gives everybody sockets for ping.
    if sbx.libc.unshare(CLONE_NEWNET):
        raise OSError("no network namespace")
    nethosts.ip("link", "set", "lo", "up")
    with open("/proc/sys/net/ipv4/ping_group_range", "w") as range_of_groups:
        range_of_groups.write("0 2147483647")
    with nethosts.Host("allowed") as host:
        host.zone({"good.test": {"A": [host.v4], "AAAA": [host.v6]}})
        os.environ["SBX_TEST_HOST"] = " ".join((host.v4, host.v6))
        child = os.fork()
        if child == 0:
            go_on_as_nobody()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(abs(status))
