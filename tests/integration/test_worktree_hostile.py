# SPDX-License-Identifier: Apache-2.0
# run: limit=400
"""Repositories that would run a program of theirs, through configuration, hooks, attributes and the like, as
repositories of the host and as workspaces of sessions, through both doors. The trap leaves a mark where it is run on
the host, and hangs where it is run in a sandbox, so that neither goes unnoticed."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import gitkit  # noqa: E402
import sbx  # noqa: E402
from worktrees import Case  # noqa: E402


# name: what is done to a repository that has a, b and c committed.
def fsmonitor(r, trap):
    r.config('[core]\n\tfsmonitor = "%s"\n' % trap)


def hooks_path(r, trap):
    os.makedirs(r.at(".git/elsewhere"))
    for hook in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction", "post-rewrite"):
        os.symlink(trap, r.at(".git/elsewhere/" + hook))
    r.config('[core]\n\thooksPath = .git/elsewhere\n')


def hooks(r, trap):
    os.makedirs(r.at(".git/hooks"))
    for hook in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction", "fsmonitor-watchman"):
        shutil.copy(trap, r.at(".git/hooks/" + hook))
    r.config('[core]\n\tfsmonitor = .git/hooks/fsmonitor-watchman\n')


def filters(r, trap):
    r.commit([(".gitattributes", b"* filter=evil diff=evil merge=evil\n")])
    r.config('[filter "evil"]\n\tsmudge = "{0}"\n\tclean = "{0}"\n\tprocess = "{0}"\n\trequired = true\n'
             '[diff "evil"]\n\ttextconv = "{0}"\n\tcommand = "{0}"\n[merge "evil"]\n\tdriver = "{0}"\n'.format(trap))
    os.utime(r.at("a"), (1, 1))  # so that somebody has to look at its content


def attributes(r, trap):
    filters(r, trap)
    os.makedirs(r.at(".git/info"), exist_ok=True)
    with open(r.at(".git/info/attributes"), "w") as f:
        f.write("* filter=evil\n")


def include(r, trap):
    with open(r.at(".git/more"), "w") as f:
        f.write('[core]\n\tfsmonitor = "%s"\n\tsshCommand = "%s"\n' % (trap, trap))
    r.config('[include]\n\tpath = more\n[includeIf "gitdir:/**"]\n\tpath = more\n')


def worktree_config(r, trap):
    r.git("config", "extensions.worktreeConfig", "true")
    with open(r.at(".git/config.worktree"), "w") as f:
        f.write('[core]\n\tfsmonitor = "%s"\n\thooksPath = /\n' % trap)


def pack_hook(r, trap):
    r.config('[uploadpack]\n\tpackObjectsHook = "%s"\n[uploadpack]\n\tallowFilter = true\n' % trap)


def commands(r, trap):
    r.config('[core]\n\tpager = "{0}"\n\teditor = "{0}"\n\tsshCommand = "{0}"\n\tgitProxy = "{0}"\n\taskPass = "{0}"\n'
             '\talternateRefsCommand = "{0}"\n[gpg]\n\tprogram = "{0}"\n[commit]\n\tgpgSign = true\n[alias]\n'
             '\tstatus = "!{0}"\n\tclone = "!{0}"\n[credential]\n\thelper = "{0}"\n[sequence]\n\teditor = "{0}"\n'
             '[remote "origin"]\n\turl = "ext::sh -c {0}"\n\tuploadpack = "{0}"\n[trace2]\n\tnormalTarget = /workspace/x\n'
             .format(trap))


def alternates(r, trap):
    """A list of places without objects; with a command that is to be asked about them."""
    os.makedirs(r.at(".git/objects/info"), exist_ok=True)
    with open(r.at(".git/objects/info/alternates"), "w") as f:
        f.write("/etc\n/proc/self/root\n../../../../../../etc\n")
    r.config('[core]\n\talternateRefsCommand = "%s"\n' % trap)


def promisor(r, trap):
    """A partial clone, whose missing objects would be fetched by a command."""
    r.config('[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = evil\n[remote "evil"]\n'
             '\turl = "ext::sh -c {0}"\n\tpromisor = true\n\tuploadpack = "{0}"\n'.format(trap))


def submodule(r, trap):
    r.commit([(".gitmodules", b'[submodule "x"]\n\tpath = sub\n\turl = ext::sh -c ' + trap.encode() +
               b'\n\tupdate = !' + trap.encode() + b'\n')])
    r.git("update-index", "--add", "--cacheinfo", "160000," + r.head() + ",sub")
    r.git("commit", "-qm", "sub")
    os.makedirs(r.at("sub"), exist_ok=True)
    r.config('[submodule]\n\trecurse = true\n[submodule "x"]\n\tactive = true\n\tupdate = "!%s"\n' % trap)


def nested(r, trap):
    """A repository below the repository, with a bare one in it that git could find by itself."""
    os.makedirs(r.at("inner"))
    subprocess.run(["git", "init", "-q", "--bare", r.at("inner/bare")], check=True)
    with open(r.at("inner/bare/config"), "a") as f:
        f.write('[core]\n\tfsmonitor = "%s"\n\tworktree = /workspace\n' % trap)
    r.commit(message="with a bare one")


def work_tree(r, trap):
    r.config('[core]\n\tworktree = /etc\n\tbare = false\n\tfsmonitor = "%s"\n' % trap)


def links(r, trap):
    """Files of the repository that lead elsewhere."""
    os.symlink(trap, r.at(".git/post-checkout"))
    os.symlink("/proc/self/environ", r.at(".git/description"))
    os.symlink("/etc/shadow", r.at("shadow"))
    r.commit(message="a link")


TRAPS = (fsmonitor, hooks_path, hooks, filters, attributes, include, worktree_config, pack_hook, commands, alternates,
         promisor, submodule, nested, work_tree, links)
# With these a plain git on the host runs the trap, which shows that it is one.
SPRING = {"fsmonitor": "status", "hooks_path": "checkout -b x", "hooks": "checkout -b x", "filters": "status",
          "attributes": "status", "include": "status", "worktree_config": "status", "work_tree": "status"}


class Hostile(Case):
    """Repositories that would run a program of theirs, used as repositories of the host and as workspaces."""
    names = tuple(t.__name__ for t in TRAPS)

    @classmethod
    def make(cls):
        cls.before = {}
        for trap in TRAPS:
            r = cls.ground.repo(trap.__name__)
            r.commit([("a", b"a\n"), ("b", b"b\n"), ("c", b"#!/bin/sh\n", 0o755)])
            trap(r, cls.ground.trap)
            cls.before[trap.__name__] = r.fingerprint()
        cls.ground.sprung()  # committing springs some

    def good(self, door, name, **more):
        _, out = self.run_sh(door, "cat a b; git status --porcelain; git config -l; cat .git/hooks/* 2>/dev/null; true", **more)
        self.assertTrue(out.startswith("a\nb\n"), out)
        for word in ("SPOILED", "trap", "evil", "fsmonitor", "hookspath", "include", "filter.", "alternate"):
            self.assertNotIn(word, out.lower(), name)

    def test_the_traps_work(self):
        for name, command in SPRING.items():
            with self.subTest(trap=name):
                path = os.path.join(self.ground.base, "copy-" + name)
                shutil.copytree(os.path.join(self.ground.base, name), path, symlinks=True)
                subprocess.run(["git", "-C", path, *command.split()], env=dict(os.environ, TRAP_QUICK="1", **gitkit.ENV),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60)
                self.assertGreater(self.ground.sprung(), 0)

    def test_zz_nothing_was_written(self):
        for name, before in self.before.items():
            self.assertEqual(self.ground.repo(name).fingerprint(), before, name)


def as_repository(name):
    def test(self):
        for door in self.each():
            self.good(door, name, base_image=name)
            self.assertEqual(self.ground.sprung(), 0)
    return test


def as_workspace(name):
    def test(self):
        session = self.pair.a.post("/sessions", {"spec_version": "1.0", "base_image": "host-local",
                                                 "runtime": "worktree"}).json["id"]
        work = os.path.join(self.pair.m.mnt, "sessions", session, "workspace")
        shutil.copytree(os.path.join(self.ground.base, name), work, symlinks=True, dirs_exist_ok=True)
        for door in self.each():
            self.good(door, name, session_id=session)
            self.assertEqual(self.ground.sprung(), 0)
    return test


for t in TRAPS:
    setattr(Hostile, "test_%s_in_a_repository" % t.__name__, as_repository(t.__name__))
    setattr(Hostile, "test_%s_in_a_workspace" % t.__name__, as_workspace(t.__name__))


if __name__ == "__main__":
    sbx.main()
