# SPDX-License-Identifier: Apache-2.0
"""Repositories for the tests of the worktree runtime: plain ones, and ones whose configuration, hooks and
attributes run a trap: a program that leaves a mark on the host, spoils what it is asked for, and then hangs."""
import os
import shutil
import subprocess
import tempfile

ENV = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.invalid", "GIT_COMMITTER_NAME": "t",
       "GIT_COMMITTER_EMAIL": "t@example.invalid", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}


class Repo:
    def __init__(self, path, *options):
        self.path = path
        if os.path.exists(path + "/.git"):
            return
        os.makedirs(path, exist_ok=True)
        subprocess.run(["git", "init", "-q", "-b", "main", "--template=", *options, path], check=True,
                       env=dict(os.environ, **ENV))

    def git(self, *args, check=True, text=None):
        p = subprocess.run(["git", "-C", self.path, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           input=text, env=dict(os.environ, **ENV), check=False)
        assert not check or p.returncode == 0, p.stdout
        return p.stdout.decode()

    def at(self, name):
        return os.path.join(self.path, name)

    def write(self, name, data, mode=0o644):
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        with open(self.at(name), "wb") as f:
            f.write(data)
        os.chmod(self.at(name), mode)

    def commit(self, files=(), message="a commit"):
        """files: (name, content, mode) or (name, content)."""
        for name, data, *mode in files:
            self.write(name, data, *mode)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.head()

    def head(self):
        return self.git("rev-parse", "HEAD").strip()

    def config(self, text):
        """Further lines of its configuration, as an attacker would write them."""
        with open(self.at(".git/config"), "a") as f:
            f.write(text)

    def fingerprint(self):
        """Everything that would differ if somebody had written into it."""
        found = {}
        for where, dirs, files in os.walk(self.path):
            for name in dirs + files:
                st = os.lstat(os.path.join(where, name))
                found[os.path.relpath(os.path.join(where, name), self.path)] = (
                    st.st_ino, st.st_mode, st.st_size, st.st_uid, st.st_mtime_ns)
        return found


class Ground:
    """A directory for repositories, with a trap. Use as a context manager."""

    def __enter__(self):
        self.base = os.path.realpath(tempfile.mkdtemp(prefix="sbx-repos-"))
        os.chmod(self.base, 0o755)
        self.marks = os.path.join(self.base, "marks")
        os.mkdir(self.marks)
        os.chmod(self.marks, 0o777)
        # Below /usr/local a sandbox sees it too.
        home = "/usr/local/share" if os.access("/usr/local/share", os.W_OK) else self.base
        self.traps = tempfile.mkdtemp(prefix="sbx-trap-", dir=home)
        os.chmod(self.traps, 0o755)
        self.trap = os.path.join(self.traps, "trap")
        with open(self.trap, "w") as f:
            f.write("#!/bin/sh\ntouch %s/sprung.$$\necho SPOILED\necho SPOILED >&2\n"
                    "[ -n \"$TRAP_QUICK\" ] || exec sleep 1000\n" % self.marks)
        os.chmod(self.trap, 0o755)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.base, ignore_errors=True)
        shutil.rmtree(self.traps, ignore_errors=True)

    def repo(self, name, *options):
        return Repo(os.path.join(self.base, name), *options)

    def sprung(self):
        """How often the trap was run where it could reach the host; forgets them."""
        marks = os.listdir(self.marks)
        for name in marks:
            os.unlink(os.path.join(self.marks, name))
        return len(marks)
