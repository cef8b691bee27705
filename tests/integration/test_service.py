# SPDX-License-Identifier: Apache-2.0
"""What a service manager hears of the doors, by sd_notify(3)."""
import os
import socket
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import sbx  # noqa: E402


class Manager:
    """The socket that a manager of services listens on."""

    def __init__(self, name):
        self.name = name
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + name[1:] if name[0] == "@" else name)

    def hears(self):
        self.sock.settimeout(30 * sbx.SLOW)
        return self.sock.recv(4096).decode()

    def silence(self):
        self.sock.settimeout(0)
        try:
            return not self.sock.recv(4096)
        except BlockingIOError:
            return True


class Service(sbx.Case):
    def setUp(self):
        where = tempfile.TemporaryDirectory()
        self.addCleanup(where.cleanup)
        os.chmod(where.name, 0o755)
        self.manager = Manager(os.path.join(where.name, "notify"))
        self.env = {"NOTIFY_SOCKET": self.manager.name}

    def test_mount(self):
        with sbx.Mount(env=self.env) as m:
            self.assertEqual(self.manager.hears(), "READY=1")
            self.assertTrue(m.is_mounted(), "ready before there was a mount")
            run = m.run({"command": ["sh", "-c", "echo ${NOTIFY_SOCKET-unset}"]})
            self.assertEqual(run.log, b"unset\n")
            runners = [pid for pid in m.processes() if pid != m.proc.pid]
            self.assertTrue(runners)
            for pid in runners:
                with open("/proc/%d/environ" % pid, "rb") as f:
                    self.assertNotIn(b"NOTIFY_SOCKET", f.read())
            self.assertTrue(self.manager.silence())
            self.assertEqual(m.stop(), 0)
            self.assertEqual(self.manager.hears(), "STOPPING=1")

    def test_mount_that_fails_is_never_ready(self):
        m = sbx.Mount(env=self.env, opts=["no_such_setting=1"])
        with self.assertRaises(AssertionError):
            m.start()
        self.assertTrue(self.manager.silence())
        m.close()

    def test_http(self):
        manager = Manager("@sbx-test-%d" % os.getpid())  # abstract, as in a container
        with api.Apid(env={"NOTIFY_SOCKET": manager.name}) as a:
            self.assertEqual(manager.hears(), "READY=1")
            self.assertEqual(a.get("/health").status, 200)
            a.stop()
            self.assertEqual(manager.hears(), "STOPPING=1")
            self.assertTrue(manager.silence())

    def test_a_manager_that_is_gone(self):
        with sbx.Mount(env={"NOTIFY_SOCKET": self.manager.name + ".gone"}) as m:
            self.assertEqual(m.run({"command": ["true"]}).exit, "0")
            with api.watch(m.log_path, api.IN_MODIFY) as ring:  # it says so after it has answered
                while "cannot tell the service manager" not in m.errors():
                    self.assertTrue(ring(20 * sbx.SLOW), m.errors())


if __name__ == "__main__":
    sbx.main()
