# SPDX-License-Identifier: Apache-2.0
"""What the tests of the worktree runtime share: both doors on one state, with repositories that have names there."""
import os
import unittest

import doors
import gitkit

SPEC = {"spec_version": "1.0", "runtime": "worktree", "base_image": "host-local", "timeout_sec": 60}


class Case(unittest.TestCase):
    """Both doors on one state, and repositories that have a name there. Each test goes through both."""
    names = ()
    settings = {}
    env = None

    @classmethod
    def setUpClass(cls):
        cls.ground = gitkit.Ground()
        cls.ground.__enter__()
        cls.addClassCleanup(cls.ground.__exit__)
        cls.make()
        images = ["%s=%s" % (n, os.path.join(cls.ground.base, n)) for n in cls.names]
        cls.pair = doors.Pair(settings={"worktree_deny_all": "true", "worktree_allowed_dirs": cls.ground.base,
                                        **({"images": ",".join(images)} if images else {}), **cls.settings})
        for one in (cls.pair.m, cls.pair.a):
            one.env.update(cls.env or {})
        cls.pair.start()
        cls.addClassCleanup(cls.pair.close)

    @classmethod
    def make(cls):
        pass

    def start(self, door, script, **more):
        doc = {**SPEC, "command": ["sh", "-c", script], **more}
        if "session_id" in doc:
            del doc["base_image"]  # the session's
        return door.submit(doc)

    def run_sh(self, door, script, expect="completed", **more):
        """(status, output) of a run."""
        i = self.start(door, script, **more)
        door.wait(i)
        view = door.view(i)
        self.assertEqual(view.status["phase"], expect, (door.name, view.status, view.bytes_of("stdout", "stderr")))
        return view.status, view.bytes_of("stdout", "stderr").decode()

    def each(self):
        return self.pair.both

    def fails(self, image, reason, text, script="echo ran", **more):
        """The run ends before its command was executed, and says why."""
        for door in self.each():
            status, out = self.run_sh(door, script, "failed", base_image=image, **more)
            self.assertEqual(status["status_reason_code"], reason, status)
            self.assertIn(text, status["message"])
            self.assertEqual((out, status["exit_code"]), ("", None))
