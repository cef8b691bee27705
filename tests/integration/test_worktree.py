# SPDX-License-Identifier: Apache-2.0
# run: limit=400
"""The runtime `worktree` through both doors: what a command finds, which repositories are taken, and what is left
afterwards (nothing). Hostile repositories have a file of their own."""
import contextlib
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import doors  # noqa: E402
import gitkit  # noqa: E402
import sbx  # noqa: E402
from worktrees import SPEC, Case  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../crash"))
from house import own_groups  # noqa: E402

STATE = ("state.db", "state.db-wal", "state.db-shm", "notify", "runs", "sessions", "trash", "runners", "bound", "snapshots",
         "objects", "objects.lock", "images", "janitor.lock", "watching.lock",
         "sandboxfs.log")
ODD = (b"lat\xe4in", b"new\nline", b"back\\slash", b" lead", b"trail ", b"-rf", b"\xff\xfe", b"..x", b"quote\"'", "\u6f22".encode(),
       b"n" * 255)


class Plain(Case):
    names = ("plain", "bare", "old", "sha256", "empty", "sub", "main-of-linked", "linked", "nothing", "borrower",
             "dirty", "staged", "touched", "huge", "detached", "odd")

    @classmethod
    def make(cls):
        g = cls.ground
        cls.plain = r = g.repo("plain")
        r.commit([("a.txt", b"first\n")], "one")
        r.commit([("a.txt", b"second\n"), ("dir/run.sh", b"#!/bin/sh\necho ran\n", 0o755),
                  ("dir/" + "n" * 150 + "/deep.txt", b"deep\n"), ("sp ace\t\u00e4", b"x")], "two")
        os.symlink("a.txt", r.at("link"))
        os.symlink("/etc/passwd", r.at("out"))
        cls.head = r.commit(message="three")
        r.git("branch", "other")
        subprocess.run(["git", "clone", "-q", "--bare", r.path, os.path.join(g.base, "bare")], check=True)
        shutil.copytree(r.path, os.path.join(g.base, "old"), symlinks=True)
        old = g.repo("old")
        old.git("checkout", "-q", "HEAD~1")
        cls.old = old.head()
        d = g.repo("sha256", "--object-format=sha256")
        cls.sha256 = d.commit([("f", b"sha256\n")])
        g.repo("empty")
        sub = g.repo("sub")
        sub.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", r.path, "inner")
        sub.commit([("top", b"top\n")])
        main = g.repo("main-of-linked")
        main.commit([("f", b"x")])
        main.git("worktree", "add", "-q", os.path.join(g.base, "linked"))
        os.mkdir(os.path.join(g.base, "nothing"))
        subprocess.run(["git", "clone", "-q", "--shared", r.path, os.path.join(g.base, "borrower")], check=True)
        for name in ("dirty", "staged", "touched"):
            one = g.repo(name)
            one.commit([("f", b"committed\n"), ("g", b"g\n")])
        g.repo("dirty").write("f", b"changed\n")
        staged = g.repo("staged")
        staged.write("new", b"new\n")
        staged.git("add", "new")
        touched = g.repo("touched")
        os.utime(touched.at("f"), (1, 1))
        touched.write("untracked", b"is none of it\n")
        huge = g.repo("huge")
        huge.commit([("noise", os.urandom(20 << 20))])
        odd = g.repo("odd")
        for name in ODD:
            with open(os.path.join(os.fsencode(odd.path), name), "wb") as f:
                f.write(name)
        odd.commit()
        det = g.repo("detached")
        det.commit([("f", b"1\n")])
        det.commit([("f", b"2\n")])
        det.git("checkout", "-q", "--detach", "HEAD~1")

    def test_the_files_of_head(self):
        for door in self.each():
            status, out = self.run_sh(door, 'cat a.txt; ./dir/run.sh; cat dir/n*/deep.txt; readlink link out; cat link;'
                                      'stat -c "%a %n" a.txt dir/run.sh; ls -A', base_image="plain")
            self.assertEqual(out.split("\n")[:8], ["second", "ran", "deep", "a.txt", "/etc/passwd", "second",
                                                   "644 a.txt", "755 dir/run.sh"])
            self.assertEqual(sorted(out.split("\n")[8:]), sorted(["", ".git", "a.txt", "dir", "link", "out", "sp ace\t\u00e4"]))
            self.assertEqual((status["exit_code"], status["runtime"]), (0, "worktree"))

    def test_names_of_every_kind(self):
        for door in self.each():
            _, out = self.run_sh(door, "python3 -c 'import os; print([n == open(n, \"rb\").read() for n in os.listdir(b\".\")"
                                 " if n != b\".git\"])'; git status --porcelain", base_image="odd")
            self.assertEqual(out, str([True] * len(ODD)) + "\n")

    def test_git_works_inside(self):
        for door in self.each():
            _, out = self.run_sh(door, "git status --porcelain; git rev-parse HEAD; git branch --show-current;"
                                 "git remote; echo more >>a.txt; git diff --stat; git commit -qam inside; git log --format=%s",
                                 base_image="plain")
            lines = out.strip().split("\n")
            self.assertEqual(lines[0], self.head)
            self.assertIn("1 file changed", out)
            self.assertEqual(lines[-2:], ["inside", "three"])

    def test_the_repository_is_never_written_to(self):
        before = self.plain.fingerprint()
        for door in self.each():
            self.run_sh(door, "echo x >a.txt; rm -rf dir; git commit -qam gone; rm -rf .git", base_image="plain")
        self.assertEqual(self.plain.fingerprint(), before)
        self.assertEqual(self.plain.git("worktree", "list").count("\n"), 1)

    def test_the_repository_cannot_be_seen(self):
        for door in self.each():
            _, out = self.run_sh(door, "ls %s 2>&1; grep -c %s /proc/self/mountinfo; git config -l --show-origin; tr -cd '[:print:]' <.git/index; cat .git/HEAD .git/config .git/packed-refs"
                                 % (self.ground.base, self.ground.base), base_image="plain")
            self.assertIn("No such file", out)
            self.assertNotIn(self.ground.base + "/plain", out)

    def test_what_is_written_is_gone(self):
        for door in self.each():
            self.run_sh(door, "echo x >new; test -f new", base_image="plain")
            _, out = self.run_sh(door, "ls new 2>&1 || true", base_image="plain")
            self.assertIn("No such file", out)

    def test_artifacts_come_out(self):
        for door in self.each():
            i = self.start(door, "git diff --stat; echo out >result.txt", base_image="plain",
                           capture_patterns=["result.txt", "a.*"])
            door.wait(i)
            self.assertEqual(door.files(i), {b"result.txt": b"out\n", b"a.txt": b"second\n"})

    def test_inline_files_lie_on_top(self):
        for door in self.each():
            _, out = self.run_sh(door, "cat a.txt new/f; git status --porcelain", base_image="plain",
                                 files=[{"path": "a.txt", "content_b64": "b3Vycwo="}, {"path": "new/f", "content_b64": "bmV3Cg=="}])
            self.assertEqual(out, "ours\nnew\n M a.txt\n?? new/\n")

    def test_inline_files_follow_no_link(self):
        # "out" leads to a file of the system; the link is replaced, and what it leads to is not touched.
        for door in self.each():
            _, out = self.run_sh(door, "cat out; head -c 4 /etc/passwd", base_image="plain",
                                 files=[{"path": "out", "content_b64": "b3Vycwo="}])
            self.assertEqual(out, "ours\nroot")

    def test_other_kinds_of_repository(self):
        for image, rev, name in (("bare", self.head, "a.txt"), ("old", self.old, "a.txt"), ("sha256", self.sha256, "f"),
                                 ("sub", None, "top"), ("detached", None, "f")):
            for door in self.each():
                with self.subTest(image=image):
                    _, out = self.run_sh(door, "git rev-parse HEAD; ls %s; git symbolic-ref -q HEAD || echo detached" % name,
                                         base_image=image)
                    lines = out.strip().split("\n")
                    self.assertEqual(lines[1:], [name, "detached"])
                    self.assertTrue(rev in (None, lines[0]), out)

    def test_a_detached_head_is_what_counts(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "cat f", base_image="detached")[1], "1\n")

    def test_submodules_stay_empty(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "ls -A inner; cat top", base_image="sub")[1], "top\n")

    def test_a_repository_without_a_commit(self):
        self.fails("empty", "runtime_error", "no commit")

    def test_a_linked_worktree(self):
        self.fails("linked", "runtime_error", "no git repository of its own")

    def test_no_repository(self):
        self.fails("nothing", "runtime_error", "no git repository")

    def test_objects_that_lie_elsewhere(self):
        self.fails("borrower", "runtime_error", "git cannot make a worktree")

    def test_uncommitted_changes_end_the_run(self):
        for image, name in (("dirty", "f"), ("staged", "new")):
            self.fails(image, "policy_failed", "not committed")
            status, _ = self.run_sh(self.pair.mount, "true", "failed", base_image=image)
            self.assertTrue(status["message"].endswith(" " + name), status["message"])

    def test_new_times_and_untracked_files_are_no_changes(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "cat f; ls", base_image="touched")[1], "committed\nf\ng\n")

    def test_what_does_not_fit(self):
        self.fails("huge", "limits_applied", "does not fit", trust_level="standard")

    def test_a_repository_that_is_gone(self):
        gone = os.path.join(self.ground.base, "nothing")
        os.rename(gone, gone + "-moved")
        try:
            for door in self.each():
                with self.assertRaises(doors.Refused) as c:
                    self.start(door, "true", base_image="nothing")
                self.assertEqual(c.exception.code, "image_not_found")
        finally:
            os.rename(gone + "-moved", gone)

    def test_limits_hold(self):
        for door in self.each():
            status, _ = self.run_sh(door, "head -c 200M /dev/zero >big", "failed", base_image="plain")
            self.assertEqual(status["status_reason_code"], "limits_applied")
            _, out = self.run_sh(door, "ulimit -n; nproc >/dev/null; id -u; id -un; pwd", base_image="plain",
                                 resources={"pids": 20})
            self.assertEqual(out.split("\n")[1:], ["1000", "sandbox", "/workspace", ""])

    def test_cancel_and_time_limit(self):
        for door in self.each():
            i = self.start(door, "trap 'echo term; exit 3' TERM; echo begun; while :; do sleep 1; done", base_image="plain")
            door.wait_output(i, b"begun")
            door.cancel(i)
            self.assertEqual(door.wait(i)["phase"], "killed")
            self.assertIn(b"term", door.view(i).bytes_of("stdout"))
            status, _ = self.run_sh(door, "sleep 100", "timed_out", base_image="plain", timeout_sec=1)
            self.assertEqual(status["status_reason_code"], "execution_timeout")

    def test_input(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "cat", base_image="plain", stdin_b64="aW4K")[1], "in\n")

    def test_there_is_no_network(self):
        for door in self.each():
            _, out = self.run_sh(door, "cat /proc/net/dev | tail -n +3 | cut -d: -f1; cat /proc/net/route | tail -n +2",
                                 base_image="plain")
            self.assertEqual(out.strip(), "lo")

    settings = {"workspace_cap_mb": "16"}


class NothingElse(Case):
    def test_without_a_repository_it_begins_with_an_empty_one(self):
        for door in self.each():
            _, out = self.run_sh(door, "ls -A; git status --porcelain; git log --format='%an %ae'; git ls-files")
            self.assertEqual(out, ".git\ntldw tldw@localhost\n")

    def test_inline_files(self):
        for door in self.each():
            _, out = self.run_sh(door, "cat d/f", files=[{"path": "d/f", "content_b64": "aGk="}])
            self.assertEqual(out, "hi")

    def test_untrusted_is_refused(self):
        for door in self.each():
            with self.assertRaises(doors.Refused) as c:
                self.start(door, "true", trust_level="untrusted")
            self.assertEqual((c.exception.code, c.exception.details["requirement"]),
                             ("policy_unsupported", "untrusted_requires_vm_runtime"))

    def test_allowlist_is_refused(self):
        for door in self.each():
            for more in ({"network_policy": "allowlist"}, {"trust_level": "trusted"}):
                with self.assertRaises(doors.Refused) as c:
                    self.start(door, "true", **more)
                self.assertEqual((c.exception.code, c.exception.details["requirement"]), ("policy_unsupported", "allowlist"))

    def test_trusted_may_deny(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "echo ok", trust_level="trusted", network_policy="deny_all")[1], "ok\n")

    def test_discovery_and_the_verdict_agree(self):
        for row in (json.loads(self.pair.mount.document("runtimes/worktree.json")), self.pair.a.runtime("worktree")):
            self.assertEqual((row["available"], row["boundary_class"]), (True, "host_local"))
            self.assertEqual(row["network_policy_contract"]["deny_all"],
                             {"support_state": "host_gated", "strict_enforcement": True,
                              "readiness_source": "runtime_preflight"})
            self.assertEqual(row["enforcement_ready"], {"deny_all": True, "allowlist": False})
            self.assertIs(row["strict_deny_all_supported"], True)
            self.assertTrue(row["host"]["git"].startswith("git version "))
        for door in self.each():
            verdict = json.loads(door.check({**SPEC, "command": ["true"]}))
            self.assertEqual((verdict["accepted"], verdict["network_policy"]), (True, "deny_all"))


class AsPublished(Case):
    """Without the operator's word: what the contract says of this runtime."""
    settings = {"worktree_deny_all": "false"}

    def test_no_run_is_taken(self):
        for door in self.each():
            for more, wanted in (({}, "deny_all"), ({"network_policy": "deny_all"}, "deny_all"),
                                 ({"trust_level": "trusted"}, "allowlist")):
                with self.assertRaises(doors.Refused) as c:
                    self.start(door, "true", **more)
                self.assertEqual((c.exception.code, c.exception.details["requirement"]), ("policy_unsupported", wanted))

    def test_discovery_says_so(self):
        row = self.pair.a.runtime("worktree")
        unsupported = {"support_state": "unsupported", "strict_enforcement": False, "readiness_source": "not_applicable"}
        self.assertEqual(row["network_policy_contract"], {"deny_all": unsupported, "allowlist": unsupported})
        self.assertEqual(row["enforcement_ready"], {"deny_all": False, "allowlist": False})
        self.assertIs(row["available"], True)
        self.assertIs(row["interactive_supported"], False)


class Allowed(Case):
    """Which directories: named by `images` is not enough."""
    names = ("inside/deep/repo", "inside", "outside", "insideout", "inside/link", "wrapper")

    @classmethod
    def make(cls):
        g = cls.ground
        for name in ("inside/deep/repo", "inside", "outside", "insideout"):
            g.repo(name)
        for name in ("inside/deep/repo", "outside", "insideout"):
            g.repo(name).commit([("f", name.encode())])
        inside = g.repo("inside")
        inside.write(".gitignore", b"deep\nlink\n")
        inside.commit([("f", b"inside")])
        os.symlink("../outside", os.path.join(g.base, "inside/link"))
        os.mkdir(os.path.join(g.base, "wrapper"))
        cls.settings = {"worktree_allowed_dirs": "relative," + os.path.join(g.base, "inside")}

    def test_inside_and_exactly_the_directory(self):
        for image in ("inside/deep/repo", "inside"):
            for door in self.each():
                self.assertEqual(self.run_sh(door, "cat f", base_image=image)[1], image)

    def test_outside_beside_and_through_a_link(self):
        for image in ("outside", "insideout", "inside/link"):
            for door in self.each():
                with self.subTest(image=image):
                    with self.assertRaises(doors.Refused) as c:
                        self.start(door, "cat f", base_image=image)
                    self.assertEqual((c.exception.code, c.exception.details["requirement"]),
                                     ("policy_unsupported", "worktree_allowed_dirs"))
                    self.assertNotIn(self.ground.base, json.dumps(c.exception.error))
                    verdict = json.loads(door.check({**SPEC, "command": ["true"], "base_image": image}))
                    self.assertEqual((verdict["accepted"], verdict["error"]["code"]), (False, "policy_unsupported"))


class NextToOurs(unittest.TestCase):
    def test_the_state_directory_is_no_place_for_repositories(self):
        with gitkit.Ground() as g:
            r = g.repo("around")
            r.commit([("f", b"f")])
            state = r.at("state")
            with sbx.Mount(state=state, settings={"worktree_deny_all": "true", "worktree_allowed_dirs": g.base,
                                                  "images": "around=" + r.path}) as m:
                run = m.run({**SPEC, "base_image": "around", "command": ["cat", "f"]})
                self.assertEqual(run.json()["status_reason_code"], "policy_failed")
                self.assertIn("service's own directories", run.json()["message"])


class Sessions(Case):
    def session(self, **spec):
        got = self.pair.a.post("/sessions", {"spec_version": "1.0", "base_image": "host-local", "runtime": "worktree",
                                             **spec})
        self.assertEqual(got.status, 200, got)
        return got.json["id"], os.path.join(self.pair.m.mnt, "sessions", got.json["id"], "workspace")

    def test_plain_files_are_copied(self):
        session, work = self.session()
        with open(os.path.join(work, "f"), "w") as f:
            f.write("of the session\n")
        os.makedirs(os.path.join(work, "d/e"))
        os.symlink("/etc/hostname", os.path.join(work, "l"))
        os.link(os.path.join(work, "f"), os.path.join(work, "d/hard"))
        os.mkfifo(os.path.join(work, "pipe"))
        for door in self.each():
            _, out = self.run_sh(door, "cat f d/hard; readlink l; ls -A . d; echo changed >f; git log --format=%an",
                                 session_id=session)
            self.assertEqual(out, "of the session\nof the session\n/etc/hostname\n.:\n.git\nd\nf\nl\n\nd:\ne\nhard\ntldw\n")
        with open(os.path.join(work, "f")) as f:
            self.assertEqual(f.read(), "of the session\n")  # it was a copy

    def test_git_as_a_file_or_a_link_is_left_out(self):
        for make in (lambda p: open(p, "w").write("gitdir: /etc\n"), lambda p: os.symlink("/etc", p)):
            session, work = self.session()
            make(os.path.join(work, ".git"))
            with open(os.path.join(work, "f"), "w") as f:
                f.write("f\n")
            for door in self.each():
                self.assertEqual(self.run_sh(door, "cat f; git log --format=%an", session_id=session)[1],
                                 "f\ntldw\n")

    def test_a_repository_of_the_session(self):
        session, work = self.session()
        r = gitkit.Repo(work)
        r.commit([("f", b"committed\n")])
        for door in self.each():
            _, out = self.run_sh(door, "cat f; git status --porcelain; echo x >f", session_id=session)
            self.assertEqual(out, "committed\n")
        r.write("f", b"changed\n")
        for door in self.each():
            status, out = self.run_sh(door, "cat f", "failed", session_id=session)
            self.assertEqual((status["status_reason_code"], out), ("policy_failed", ""))

    def test_a_broken_repository(self):
        session, work = self.session()
        r = gitkit.Repo(work)
        r.commit([("f", b"committed\n")])
        for path in glob.glob(work + "/.git/objects/??/*"):
            os.chmod(path, 0o644)
            with open(path, "wb") as f:
                f.write(b"\0garbage\x1b[31m")
        for door in self.each():
            status, out = self.run_sh(door, "cat f", "failed", session_id=session)
            self.assertEqual((status["status_reason_code"], out), ("runtime_error", ""))
            self.assertNotIn("\x1b", status["message"])


class LargeSession(Case):
    settings = {"workspace_cap_mb": "2"}

    def test_what_the_session_takes_is_not_the_runs(self):
        # The limit is of the workspace that the command works in, which is a copy of HEAD.
        session = self.pair.a.post("/sessions", {"spec_version": "1.0", "base_image": "host-local",
                                                 "runtime": "worktree"}).json["id"]
        r = gitkit.Repo(os.path.join(self.pair.m.state, "sessions", session, "workspace"))
        for i in range(8):
            r.commit([("f", os.urandom(400000))])
        for door in self.each():
            _, out = self.run_sh(door, "stat -c %s f; sleep 2; echo ok", session_id=session)
            self.assertEqual(out, "400000\nok\n")


class HeadAnyway(Case):
    names = ("dirty", "long")
    settings = {"worktree_dirty": "head", "worktree_depth": "0"}

    @classmethod
    def make(cls):
        r = cls.ground.repo("dirty")
        r.commit([("f", b"committed\n")])
        r.write("f", b"changed\n")
        r = cls.ground.repo("long")
        for i in range(5):
            r.commit([("f", b"%d\n" % i)], "commit %d" % i)

    def test_changes_are_left_out(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "cat f", base_image="dirty")[1], "committed\n")

    def test_all_of_the_history(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "git log --format=%s | wc -l; git show HEAD~4:f", base_image="long")[1], "5\n0\n")


class Environment(Case):
    settings = {"worktree_env": "HARMLESS_VAR,HOME,ANTHROPIC_API_KEY,PATH,NOT_THERE"}
    env = {"HARMLESS_VAR": "harmless", "OTHER_VAR": "other", "HOME": "/home/of-the-service", "ANTHROPIC_API_KEY": "sk-1",
           "AWS_ACCESS_KEY_ID": "AKIA"}

    def test_only_what_is_listed(self):
        for door in self.each():
            _, out = self.run_sh(door, "env", env={"OPENAI_API_KEY": "sk-2", "MY_VAR": "ok", "PATH": "/usr/bin:/bin"})
            names = {line.split("=")[0] for line in out.splitlines()}
            self.assertEqual(names, {"PATH", "USER", "LANG", "PWD", "HARMLESS_VAR", "MY_VAR"})
            self.assertIn("PATH=/usr/bin:/bin\n", out)

    def test_the_documents_word_comes_first(self):
        for door in self.each():
            self.assertEqual(self.run_sh(door, "echo $HARMLESS_VAR", env={"HARMLESS_VAR": "mine"})[1], "mine\n")


class Ends(unittest.TestCase):
    """What is left when somebody dies."""

    def setUp(self):
        self.ground = gitkit.Ground().__enter__()
        self.addCleanup(self.ground.__exit__)
        self.repo = self.ground.repo("r")
        self.repo.commit([("f", b"f\n")])
        self.settings = {"worktree_deny_all": "true", "worktree_allowed_dirs": self.ground.base,
                         "images": "r=" + self.repo.path, "warm_runners": "1"}

    def kill_runners(self, m):
        """All runners of a mount, at once; a process 1 of theirs is among them, and may be gone sooner."""
        runners = [p for p in m.processes() if p != m.proc.pid]
        self.assertTrue(runners)
        with open(os.path.join(m.mnt, "runtimes/worktree.json")) as f:
            if json.load(f)["host"]["limits"] == "cgroup":
                self.assertTrue(self.groups_of(runners))
        for pid in runners:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return runners

    @staticmethod
    def groups_of(pids):
        return [os.path.join(top, name) for top in own_groups() if os.path.isdir(top)
                for name in os.listdir(top) if name.split("-")[0] in map(str, pids)]

    def nothing_is_left(self, m, runners):
        # The next one sweeps, and works.
        self.assertEqual(m.run({**SPEC, "base_image": "r", "command": ["cat", "f"], "env": {}}).stdout, b"f\n")
        self.assertEqual(self.groups_of(runners), [])
        names = [n for n in os.listdir(m.state) if n not in STATE]
        self.assertEqual(names, [])

    def test_kill_of_the_runner(self):
        with sbx.Mount(settings=self.settings) as m:
            before = self.repo.fingerprint()
            run = m.submit({**SPEC, "base_image": "r", "command": ["sh", "-c", "echo begun; sleep 1000"]})
            run.stream_until(b"begun")
            runners = self.kill_runners(m)
            run.wait()
            self.assertEqual(run.json()["status_reason_code"], "runner_lost", run.json())
            self.nothing_is_left(m, runners)
            self.assertEqual(self.repo.fingerprint(), before)

    def test_kill_of_the_runner_while_git_works(self):
        with sbx.Mount(settings=self.settings) as m:
            index = self.repo.at(".git/index")
            os.rename(index, index + ".good")
            os.mkfifo(index)
            run = m.submit({**SPEC, "base_image": "r", "command": ["cat", "f"]})
            fd = os.open(index, os.O_WRONLY)  # opens when git reads
            os.rename(index + ".good", index)  # for the next one
            try:
                runners = self.kill_runners(m)
                # Nobody reads from it any more: everything in git's sandbox is dead.
                poll = select.poll()
                poll.register(fd, select.POLLERR)
                self.assertTrue(poll.poll(20000 * sbx.SLOW))
            finally:
                os.close(fd)
            # It had not begun, so that another runner takes it over.
            self.assertEqual((run.wait(), run.stdout), ("0", b"f\n"))
            self.nothing_is_left(m, runners)

    def test_cancel_while_git_works(self):
        # A FIFO in the place of the index: git waits for somebody to write into it.
        with sbx.Mount(settings=self.settings) as m:
            os.unlink(self.repo.at(".git/index"))
            os.mkfifo(self.repo.at(".git/index"))
            run = m.submit({**SPEC, "base_image": "r", "command": ["cat", "f"]})
            fd = os.open(self.repo.at(".git/index"), os.O_WRONLY)  # opens when git reads
            try:
                run.ctl("cancel\n")
                run.wait()
            finally:
                os.close(fd)
            self.assertEqual(run.json()["status_reason_code"], "canceled_by_user", run.json())
            self.assertEqual(m.run({**SPEC, "command": ["echo", "ok"]}).stdout, b"ok\n")

    def test_startup_time_limit(self):
        with sbx.Mount(settings=self.settings) as m:
            os.unlink(self.repo.at(".git/index"))
            os.mkfifo(self.repo.at(".git/index"))
            run = m.submit({**SPEC, "base_image": "r", "command": ["cat", "f"], "startup_timeout_sec": 1})
            run.wait()
            self.assertEqual(run.json()["status_reason_code"], "startup_timeout", run.json())


@unittest.skipUnless(sbx.ROOT, "only root can hide a program of the host")
class Missing(unittest.TestCase):
    def without(self, script, reason):
        """A service that sees another git."""
        with gitkit.Ground() as g:
            fake = os.path.join(g.base, "git")
            with open(fake, "w") as f:
                f.write(script)
            os.chmod(fake, 0o755)
            runner = os.path.join(g.base, "runner")
            with open(runner, "w") as f:
                f.write("#!/bin/sh\nexec unshare -m sh -c 'mount --bind %s \"$(readlink -f /usr/bin/git)\"; exec \"$@\"' sh %s \"$@\"\n"
                        % (fake, sbx.RUNNER))
            os.chmod(runner, 0o755)
            with api.Apid(settings={"worktree_deny_all": "true"}, env={"SANDBOXFS_RUNNER": runner}) as a:
                row = a.runtime("worktree")
                self.assertEqual((row["available"], row["reasons"]), (False, [reason]))
                self.assertEqual(row["normalized_reasons"], ["host_prerequisite_missing"])
                self.assertIs(a.runtime("namespace")["available"], True)
                got = a.try_run({**SPEC, "command": ["true"]})
                self.assertEqual((got.status, got.code), (503, "runtime_unavailable"))

    def test_an_old_git(self):
        self.without("#!/bin/sh\necho git version 2.14.9\n", "git_too_old_or_missing")

    def test_a_git_that_does_not_run(self):
        self.without("#!/bin/sh\nexit 127\n", "git_too_old_or_missing")


if __name__ == "__main__":
    sbx.main()
