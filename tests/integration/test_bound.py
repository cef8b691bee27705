# SPDX-License-Identifier: Apache-2.0
"""Runs that live as long as an open descriptor: "lifetime":"handle"."""
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402

BOUND = {"command": ["sleep", "100"], "lifetime": "handle"}


class Bound(sbx.Case):
    def setUp(self):
        self.new = os.path.join(self.m.mnt, "runs/new")

    def submit(self, fd, spec=None):
        os.write(fd, json.dumps(spec or BOUND).encode())
        run = sbx.Run(self.m, os.read(fd, 100).decode().strip())
        self.addCleanup(self.end, run)
        return run

    def end(self, run):
        if run.status() not in sbx.TERMINAL:
            run.ctl("kill")
            run.wait()

    def test_ends_with_the_close(self):
        fd = os.open(self.new, os.O_RDWR)
        run = self.submit(fd)
        run.wait_phase("running")
        os.close(fd)
        self.assertEqual(run.wait(), "killed")
        self.assertEqual(run.json()["status_reason_code"], "canceled_by_user")

    def test_goes_on_while_it_is_open(self):
        fd = os.open(self.new, os.O_RDWR)
        try:
            run = self.submit(fd, dict(BOUND, command=["sh", "-c", "sleep 0.3; exit 4"]))
            self.assertEqual(run.wait(), "4")
        finally:
            os.close(fd)
        self.assertEqual(run.status(), "failed")

    def test_sees_a_kill_9_of_its_holder(self):
        r, w = os.pipe()

        def hold():
            fd = os.open(self.new, os.O_RDWR)
            os.write(fd, json.dumps(BOUND).encode())
            os.write(w, os.read(fd, 100))
            signal.pause()
        with fskit.Child(hold) as child:
            run = sbx.Run(self.m, os.read(r, 100).decode().strip())
            run.wait_phase("running")
            child.signal(signal.SIGKILL)
            self.assertEqual(child.wait(), -9)
        self.assertEqual(run.wait(), "killed")
        os.close(r)
        os.close(w)

    def test_dup_keeps_it_alive(self):
        fd = os.open(self.new, os.O_RDWR)
        run = self.submit(fd)
        copy = os.dup(fd)
        os.close(fd)
        run.wait_phase("running")
        self.assertFalse(self.ended(run))
        os.close(copy)
        self.assertEqual(run.wait(), "killed")

    def ended(self, run):
        fd = os.open(run.path(".wait"), os.O_RDONLY)
        try:
            return bool(fskit.readable(fd, 0.3))
        finally:
            os.close(fd)

    def test_forked_child_keeps_it_alive(self):
        fd = os.open(self.new, os.O_RDWR)
        run = self.submit(fd)
        with fskit.Child(signal.pause) as child:
            os.close(fd)
            run.wait_phase("running")
            self.assertFalse(self.ended(run))
            child.signal(signal.SIGKILL)
            child.wait()
            self.assertEqual(run.wait(), "killed")

    def test_descriptor_in_flight_over_a_socket(self):
        import socket
        a, b = socket.socketpair()
        fd = os.open(self.new, os.O_RDWR)
        run = self.submit(fd)
        socket.send_fds(a, [b"x"], [fd])
        os.close(fd)
        run.wait_phase("running")
        self.assertFalse(self.ended(run))
        _, fds, _, _ = socket.recv_fds(b, 10, 1)
        os.close(fds[0])
        self.assertEqual(run.wait(), "killed")
        a.close()
        b.close()

    def test_whole_tree_ends(self):
        fd = os.open(self.new, os.O_RDWR)
        run = self.submit(fd, dict(BOUND, command=["sh", "-c", "setsid sleep 4711 & sleep 4712 & echo up; wait"]))
        run.stream_until(b"up\n")
        os.close(fd)
        self.assertEqual(run.wait(), "killed")
        p = subprocess.run(["pgrep", "-f", "sleep 471[12]"], stdout=subprocess.PIPE)
        self.assertEqual(p.stdout, b"")

    def test_several_runs_on_one_descriptor(self):
        fd = os.open(self.new, os.O_RDWR)
        runs = [self.submit(fd) for _ in range(3)]
        free = self.submit(fd, {"command": ["sleep", "100"]})
        free.wait_phase("running")
        os.close(fd)
        self.assertEqual([r.wait() for r in runs], ["killed"] * 3)
        self.assertEqual(free.status(), "running")

    def test_detached_is_the_default(self):
        fd = os.open(self.new, os.O_RDWR)
        run = self.submit(fd, {"command": ["sh", "-c", "sleep 0.2; echo on"]})
        os.close(fd)
        self.assertEqual((run.wait(), run.stdout), ("0", b"on\n"))

    def test_echo_redirection_ends_it_at_once(self):
        fskit.shell(self.m, """echo '{"command":["sleep","100"],"lifetime":"handle"}' > "$MNT/runs/new" """)
        run = sbx.Run(self.m, os.readlink(os.path.join(self.m.mnt, "runs/latest")))
        self.assertEqual(run.wait(), "killed")

    def test_shell_that_holds_it_open(self):
        p = fskit.shell(self.m, """exec 3<>"$MNT/runs/new"
            echo '{"command":["sh","-c","echo held"],"lifetime":"handle"}' >&3
            read id <&3; cat "$MNT/runs/$id/.wait" "$MNT/runs/$id/stdout" """)
        self.assertEqual(p.stdout, b"0\nheld\n")

    def test_queued_run_ends_too(self):
        with sbx.Mount(opts=["workers=0"]) as m:
            fd = os.open(os.path.join(m.mnt, "runs/new"), os.O_RDWR)
            os.write(fd, json.dumps(BOUND).encode())
            run = sbx.Run(m, os.read(fd, 100).decode().strip())
            os.close(fd)
            self.assertEqual(run.wait(), "killed")

    def test_replayed_key_binds_nothing(self):
        """The descriptor that only asked again must not take the first one's run along."""
        doc = dict(BOUND, idempotency_key="bound")
        a, b = os.open(self.new, os.O_RDWR), os.open(self.new, os.O_RDWR)
        run = self.submit(a, doc)
        self.assertEqual(self.submit(b, doc).id, run.id)
        run.wait_phase("running")
        os.close(b)
        self.assertFalse(self.ended(run))
        os.close(a)
        self.assertEqual(run.wait(), "killed")

    def test_poll_of_the_end_while_holding(self):
        fd = os.open(self.new, os.O_RDWR)
        run = self.submit(fd, dict(BOUND, command=["true"]))
        wait = os.open(run.path(".wait"), os.O_RDONLY)
        try:
            self.assertTrue(fskit.readable(wait, 20 * sbx.SLOW, select.POLLIN))
        finally:
            os.close(wait)
            os.close(fd)
        self.assertEqual(run.status(), "completed")


class Stop(unittest.TestCase):
    def test_ends_when_the_mount_is_stopped(self):
        with sbx.Mount() as m:
            fd = os.open(os.path.join(m.mnt, "runs/new"), os.O_RDWR)
            try:
                os.write(fd, json.dumps(BOUND).encode())
                run = sbx.Run(m, os.read(fd, 100).decode().strip())
                run.wait_phase("running")
                self.assertEqual(m.stop(), 0)
                # Not at the next start: its runner has nothing left to do and goes.
                self.assertEqual(m.wait_processes_gone(), [])
            finally:
                with contextlib.suppress(OSError):  # the flush has nobody to go to
                    os.close(fd)
            m.unmount_stale()
            m.start()
            self.assertEqual(run.status(), "killed")


if __name__ == "__main__":
    sbx.main()
