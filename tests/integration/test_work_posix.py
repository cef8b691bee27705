# SPDX-License-Identifier: Apache-2.0
"""The workspace of a session is a file system: one behaviour of POSIX after the other."""
import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import stat
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402
from workkit import WorkCase  # noqa: E402

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
PUNCH, KEEP, ZERO = 2, 1, 16


def renameat2(a, b, flags):
    if sbx.libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags) < 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def fallocate(fd, mode, off, length):
    if sbx.libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(length)) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


class Files(WorkCase):
    def test_write_and_read_back(self):
        data = os.urandom(3 << 20)
        self.s.write("f", data)
        self.assertEqual(self.s.read("f"), data)
        with open(self.s.disk("f"), "rb") as f:
            self.assertEqual(f.read(), data)
        self.assertEqual(os.stat(self.path("f")).st_size, len(data))

    def test_append_goes_to_the_end(self):
        a = os.open(self.path("f"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        b = os.open(self.path("f"), os.O_WRONLY | os.O_APPEND)
        for i in range(100):
            os.write((a, b)[i % 2], b"%02d\n" % i)
        os.close(a)
        os.close(b)
        self.assertEqual(self.s.read("f"), b"".join(b"%02d\n" % i for i in range(100)))

    def test_holes_read_as_zeros(self):
        with open(self.path("f"), "wb") as f:
            f.seek(1 << 20)
            f.write(b"x")
        self.assertEqual(self.s.read("f"), b"\0" * (1 << 20) + b"x")
        self.assertLess(os.stat(self.path("f")).st_blocks * 512, 1 << 20)

    def test_seek_data_and_hole(self):
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        os.pwrite(fd, b"x" * 4096, 1 << 20)
        self.assertEqual(os.lseek(fd, 0, os.SEEK_DATA), 1 << 20)
        self.assertEqual(os.lseek(fd, 1 << 20, os.SEEK_HOLE), (1 << 20) + 4096)
        self.assertErrno(errno.ENXIO, os.lseek, fd, 1 << 21, os.SEEK_DATA)

    def test_truncate_by_path_by_descriptor_and_at_open(self):
        self.s.write("f", b"0123456789")
        os.truncate(self.path("f"), 4)
        self.assertEqual(self.s.read("f"), b"0123")
        with open(self.path("f"), "r+b") as f:
            f.truncate(6)
            self.assertEqual(f.read(), b"0123\0\0")
        os.close(os.open(self.path("f"), os.O_WRONLY | os.O_TRUNC))
        self.assertEqual(os.stat(self.path("f")).st_size, 0)

    def test_exclusive_create(self):
        os.close(os.open(self.path("f"), os.O_CREAT | os.O_EXCL))
        self.assertErrno(errno.EEXIST, os.open, self.path("f"), os.O_CREAT | os.O_EXCL)

    def test_mode_of_what_is_made(self):
        old = os.umask(0o027)
        self.addCleanup(os.umask, old)
        os.close(os.open(self.path("f"), os.O_CREAT | os.O_WRONLY, 0o777))
        os.mkdir(self.path("d"), 0o777)
        os.mkfifo(self.path("p"), 0o666)
        for name, mode in (("f", 0o750), ("d", 0o750), ("p", 0o640)):
            self.assertEqual(oct(stat.S_IMODE(os.stat(self.path(name)).st_mode)), oct(mode), name)
            self.assertEqual(oct(stat.S_IMODE(os.stat(self.s.disk(name)).st_mode)), oct(mode), name)

    def test_made_unreadable_and_written_all_the_same(self):
        fd = os.open(self.path("f"), os.O_CREAT | os.O_WRONLY, 0o400)
        os.write(fd, b"x")
        os.close(fd)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("f")).st_mode), 0o400)

    def test_set_id_bits_are_never_there(self):
        self.s.write("f", b"")
        os.chmod(self.path("f"), 0o6755)
        os.mkdir(self.path("d"))
        os.chmod(self.path("d"), 0o7777)
        self.assertEqual(oct(stat.S_IMODE(os.stat(self.path("f")).st_mode)), "0o755")
        self.assertEqual(oct(stat.S_IMODE(os.stat(self.path("d")).st_mode)), "0o1777")
        os.chmod(self.s.disk("f"), 0o6755)  # as a sandbox would
        self.assertFalse(os.stat(self.path("f")).st_mode & 0o6000)

    def test_chown_to_its_owner_only(self):
        self.s.write("f", b"")
        os.chown(self.path("f"), os.getuid(), os.getgid())
        os.chown(self.path("f"), -1, -1)
        self.assertErrno(errno.EPERM, os.chown, self.path("f"), 12345, -1)
        self.assertErrno(errno.EPERM, os.chown, self.path("f"), -1, 12345)

    def test_times(self):
        self.s.write("f", b"")
        os.symlink("f", self.path("l"))
        os.utime(self.path("f"), ns=(1_000_000_001, 2_000_000_002))
        os.utime(self.path("l"), ns=(3_000_000_003, 4_000_000_004), follow_symlinks=False)
        st, lst = os.stat(self.path("f")), os.lstat(self.path("l"))
        self.assertEqual((st.st_atime_ns, st.st_mtime_ns), (1_000_000_001, 2_000_000_002))
        self.assertEqual((lst.st_atime_ns, lst.st_mtime_ns), (3_000_000_003, 4_000_000_004))
        os.utime(self.path("f"))
        self.assertGreater(os.stat(self.path("f")).st_mtime, 1e9)

    def test_mtime_moves_with_a_write(self):
        self.s.write("f", b"a")
        os.utime(self.path("f"), ns=(1, 1))
        self.s.write("f", b"b")
        self.assertGreater(os.stat(self.path("f")).st_mtime, 1e9)

    def test_unlinked_file_lives_while_it_is_open(self):
        with open(self.path("f"), "w+b") as f:
            f.write(b"still here")
            f.flush()
            os.unlink(self.path("f"))
            self.assertFalse(os.path.exists(self.path("f")))
            self.assertEqual(os.fstat(f.fileno()).st_nlink, 0)
            f.write(b" and there")
            f.truncate(13)
            os.fchmod(f.fileno(), 0o600)
            f.seek(0)
            self.assertEqual(f.read(), b"still here an")

    def test_file_replaced_by_rename_lives_while_it_is_open(self):
        self.s.write("a", b"old")
        self.s.write("b", b"new")
        with open(self.path("a"), "rb") as f:
            os.rename(self.path("b"), self.path("a"))
            self.assertEqual((f.read(), self.s.read("a")), (b"old", b"new"))
            self.assertEqual(os.fstat(f.fileno()).st_size, 3)

    def test_fallocate(self):
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        os.posix_fallocate(fd, 0, 1 << 16)
        self.assertEqual(os.fstat(fd).st_size, 1 << 16)
        os.pwrite(fd, b"x" * (1 << 16), 0)
        fallocate(fd, PUNCH | KEEP, 4096, 4096)
        fallocate(fd, ZERO, 16384, 4096)
        data = os.pread(fd, 1 << 16, 0)
        self.assertEqual((data[4095:4097], data[8191:8193], data[16384:16386]), (b"x\0", b"\0x", b"\0\0"))
        self.assertErrno(errno.EOPNOTSUPP, fallocate, fd, KEEP, 0, 1 << 20)

    def test_copy_file_range(self):
        data = os.urandom(1 << 20)
        self.s.write("a", data)
        with open(self.path("a"), "rb") as a, open(self.path("b"), "wb") as b:
            left = len(data)
            while left:
                left -= os.copy_file_range(a.fileno(), b.fileno(), left)
        self.assertEqual(self.s.read("b"), data)

    def test_fsync(self):
        with open(self.path("f"), "wb") as f:
            f.write(b"x")
            os.fsync(f.fileno())
            os.fdatasync(f.fileno())
        fd = os.open(self.s.work, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def test_mapping_shared_for_writing(self):
        self.s.write("f", b"a" * 8192)
        with open(self.path("f"), "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
            m[4096:4100] = b"mmap"
            m.flush()
        self.assertEqual(self.s.read("f")[4094:4102], b"aammapaa")
        with open(self.s.disk("f"), "rb") as f:
            self.assertEqual(f.read()[4096:4100], b"mmap")

    def test_large_offsets(self):
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        self.assertErrno((errno.EFBIG, errno.ENOSPC, errno.EINVAL), os.pwrite, fd, b"x", (1 << 62) - 1)
        self.assertEqual(os.fstat(fd).st_size, 0)


class Names(WorkCase):
    def test_directories(self):
        os.makedirs(self.path("a/b/c"))
        self.assertErrno(errno.ENOTEMPTY, os.rmdir, self.path("a"))
        self.assertErrno(errno.EEXIST, os.mkdir, self.path("a"))
        self.assertErrno(errno.ENOTDIR, os.rmdir, self.s_file("f"))
        self.assertErrno(errno.EISDIR, os.unlink, self.path("a/b/c"))
        os.removedirs(self.path("a/b/c"))
        self.assertEqual(os.listdir(self.s.work), ["f"])

    def s_file(self, name):
        self.s.write(name, b"")
        return self.path(name)

    def test_link_counts(self):
        self.s_file("a")
        os.link(self.path("a"), self.path("b"))
        self.assertEqual(os.stat(self.path("a")).st_nlink, 2)
        self.assertTrue(os.path.samefile(self.path("a"), self.path("b")))
        self.s.write("b", b"both")
        self.assertEqual(self.s.read("a"), b"both")
        os.unlink(self.path("a"))
        self.assertEqual((os.stat(self.path("b")).st_nlink, self.s.read("b")), (1, b"both"))
        os.mkdir(self.path("d"))
        self.assertEqual(os.stat(self.path("d")).st_nlink, 2)

    def test_rename_replaces(self):
        self.s.write("a", b"a")
        self.s.write("b", b"b")
        os.rename(self.path("a"), self.path("b"))
        self.assertEqual((os.listdir(self.s.work), self.s.read("b")), (["b"], b"a"))

    def test_rename_of_directories(self):
        os.makedirs(self.path("a/x"))
        os.makedirs(self.path("b/y"))
        os.mkdir(self.path("empty"))
        self.assertErrno(errno.ENOTEMPTY, os.rename, self.path("a"), self.path("b"))
        os.rename(self.path("a"), self.path("empty"))
        os.rename(self.path("empty"), self.path("b/y/a"))
        self.assertTrue(os.path.isdir(self.path("b/y/a/x")))
        self.assertErrno(errno.EINVAL, os.rename, self.path("b"), self.path("b/y/z"))

    def test_rename_flags(self):
        self.s.write("a", b"a")
        self.s.write("d/b", b"b")
        self.assertErrno(errno.EEXIST, renameat2, self.path("a"), self.path("d/b"), NOREPLACE)
        renameat2(self.path("a"), self.path("c"), NOREPLACE)
        renameat2(self.path("c"), self.path("d/b"), EXCHANGE)
        self.assertEqual((self.s.read("c"), self.s.read("d/b")), (b"b", b"a"))
        renameat2(self.path("c"), self.path("d"), EXCHANGE)
        self.assertEqual((self.s.read("c/b"), self.s.read("d")), (b"a", b"b"))
        self.assertErrno(errno.ENOENT, renameat2, self.path("c"), self.path("none"), EXCHANGE)
        self.assertErrno(errno.EINVAL, renameat2, self.path("c"), self.path("e"), WHITEOUT)

    def test_files_below_a_renamed_directory_stay_open_and_named(self):
        self.s.write("a/b/f", b"1")
        with open(self.path("a/b/f"), "r+b", buffering=0) as f:
            os.rename(self.path("a"), self.path("z"))
            f.write(b"2")
            self.assertEqual(self.s.read("z/b/f"), b"2")
            self.assertEqual(os.readlink("/proc/self/fd/%d" % f.fileno()), self.path("z/b/f"))

    def test_working_directory_moves_along(self):
        os.makedirs(self.path("a/b"))
        out = self.s.shell("cd a/b; mv ../../a ../../z; touch here; ls ../../z/b; pwd -P")
        self.assertEqual(out.split(), ["here", self.path("z/b")])

    def test_out_of_the_workspace_it_is_another_file_system(self):
        self.s_file("a")
        for fn in (os.rename, os.link):
            self.assertErrno((errno.EXDEV, errno.EPERM), fn, self.path("a"), os.path.join(self.s.dir, "a"))
            self.assertErrno((errno.EXDEV, errno.EPERM), fn, os.path.join(self.m.mnt, "README"), self.path("r"))
        os.symlink("a", self.path("l"))
        os.link(self.path("l"), self.path("m"), follow_symlinks=False)
        self.assertEqual(os.readlink(self.path("m")), "a")

    def test_symlinks(self):
        self.s.write("d/f", b"x")
        for target in ("d/f", "./d/../d/f", "nowhere", "d", "x" * 255, "a/" * 500 + "b"):
            os.symlink(target, self.path("l"))
            shown = os.readlink(self.path("l"))
            self.assertEqual(shown, target if target != "./d/../d/f" else "d/f")
            self.assertEqual(os.lstat(self.path("l")).st_size, len(shown))
            self.assertEqual(os.readlink(self.s.disk("l")), target)
            os.unlink(self.path("l"))
        os.symlink("../d", self.path("d/up"))
        self.assertEqual(self.s.read("d/up/up/f"), b"x")

    def test_fifos_and_sockets_are_the_kernels(self):
        os.mkfifo(self.path("p"))
        r = os.open(self.path("p"), os.O_RDONLY | os.O_NONBLOCK)
        w = os.open(self.path("p"), os.O_WRONLY)
        os.write(w, b"through")
        self.assertEqual(os.read(r, 100), b"through")
        os.close(r)
        os.close(w)
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            fd = os.open(self.s.work, os.O_PATH)
            self.addCleanup(os.close, fd)
            listener.bind("/proc/self/fd/%d/sock" % fd)
            listener.listen()
            client.connect("/proc/self/fd/%d/sock" % fd)
        self.assertTrue(stat.S_ISSOCK(os.stat(self.path("sock")).st_mode))

    def test_devices_cannot_be_made(self):
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            self.assertErrno(errno.EPERM, os.mknod, self.path("dev"), kind | 0o666, os.makedev(1, 3))
        os.mknod(self.path("plain"), stat.S_IFREG | 0o644)
        self.assertTrue(os.path.isfile(self.path("plain")))

    def test_names_of_any_bytes(self):
        names = [b"x" * 255, b"\xff\xfe", b"a\nb", b" ", b"...", b"caf\xc3\xa9", b"-rf", b"\\", b"*"]
        for name in names:
            with open(os.path.join(os.fsencode(self.s.work), name), "wb") as f:
                f.write(name)
        self.assertEqual(sorted(os.listdir(os.fsencode(self.s.work))), sorted(names))
        self.assertErrno(errno.ENAMETOOLONG, open, os.fsencode(self.path("")) + b"x" * 256, "wb")

    def test_names_that_come_and_go(self):
        for _ in range(3):
            self.assertFalse(os.path.exists(self.path("f")))
            self.s.write("f", b"")
            self.assertTrue(os.path.exists(self.path("f")))
            os.unlink(self.path("f"))


class Listings(WorkCase):
    def test_numbers_and_kinds_agree_with_stat(self):
        self.s.write("d/f", b"")
        os.symlink("f", self.path("d/l"))
        os.mkfifo(self.path("d/p"))
        with os.scandir(self.path("d")) as it:
            for e in it:
                st = os.lstat(e.path)
                self.assertEqual((e.inode(), e.is_dir(), e.is_symlink()),
                                 (st.st_ino, False, stat.S_ISLNK(st.st_mode)))

    def test_large_directory_while_it_changes(self):
        os.mkdir(self.path("d"))
        for i in range(2000):
            os.close(os.open(self.path("d", "stays%04d" % i), os.O_CREAT))
        seen = []
        with os.scandir(self.path("d")) as it:
            for i, e in enumerate(it):
                seen.append(e.name)
                if i < 500:
                    self.s.write("d/new%d" % i, b"")
        stays = [n for n in seen if n.startswith("stays")]
        self.assertEqual(sorted(stays), ["stays%04d" % i for i in range(2000)])

    def test_rm_of_what_is_being_listed(self):
        for i in range(300):
            self.s.write("d/%d" % i, b"")
        with os.scandir(self.path("d")) as it:
            for e in it:
                os.unlink(e.path)
        os.rmdir(self.path("d"))

    def test_listing_again_shows_what_is_new(self):
        for i in range(50):
            self.s.write("f%d" % i, b"")
            self.assertEqual(len(os.listdir(self.s.work)), i + 1)

    def test_statfs_counts_the_workspace(self):
        before = os.statvfs(self.s.work)
        self.s.write("f", os.urandom(8 << 20))
        after = os.statvfs(self.s.work)
        self.assertEqual(before.f_blocks, after.f_blocks)
        self.assertAlmostEqual((before.f_bavail - after.f_bavail) * before.f_frsize, 8 << 20, delta=1 << 16)


class Attributes(WorkCase):
    def test_of_users(self):
        self.s.write("f", b"")
        os.mkdir(self.path("d"))
        for name in ("f", "d"):
            p = self.path(name)
            self.assertEqual(os.listxattr(p), [])
            os.setxattr(p, "user.a", b"1" * 1000)
            os.setxattr(p, "user.b", b"")
            self.assertEqual(sorted(os.listxattr(p)), ["user.a", "user.b"])
            self.assertEqual(os.getxattr(p, "user.a"), b"1" * 1000)
            self.assertErrno(errno.EEXIST, os.setxattr, p, "user.a", b"2", os.XATTR_CREATE)
            self.assertErrno(errno.ENODATA, os.setxattr, p, "user.c", b"2", os.XATTR_REPLACE)
            os.removexattr(p, "user.a")
            self.assertErrno(errno.ENODATA, os.getxattr, p, "user.a")

    def test_others_are_refused(self):
        self.s.write("f", b"")
        for name in ("trusted.x", "security.x", "system.posix_acl_access"):
            self.assertErrno((errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL), os.setxattr, self.path("f"), name, b"x")
            self.assertErrno((errno.ENODATA, errno.EOPNOTSUPP), os.getxattr, self.path("f"), name)
        os.symlink("f", self.path("l"))
        self.assertErrno((errno.EPERM, errno.EOPNOTSUPP), os.setxattr, self.path("l"), "user.x", b"", 0,
                         follow_symlinks=False)


class Locks(WorkCase):
    def test_flock_and_record_locks_between_processes(self):
        self.s.write("f", b"x")
        with open(self.path("f"), "r+b") as f:
            for lock in (fcntl.flock, fcntl.lockf):
                lock(f, fcntl.LOCK_EX)

                def refused(lock=lock):
                    with open(self.path("f"), "r+b") as g:
                        try:
                            lock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        except BlockingIOError:
                            return 7
                    return 0
                with fskit.Child(refused) as child:
                    self.assertEqual(child.wait(), 7)
                lock(f, fcntl.LOCK_UN)
                with fskit.Child(refused) as child:
                    self.assertEqual(child.wait(), 0)

    def test_waiting_for_a_lock_holds_up_nobody_else(self):
        self.s.write("f", b"x")
        with open(self.path("f"), "r+b") as f:
            fcntl.flock(f, fcntl.LOCK_EX)

            def wait():
                with open(self.path("f"), "rb") as g:
                    fcntl.flock(g, fcntl.LOCK_EX)
            children = [fskit.Child(wait) for _ in range(20)]
            for i in range(100):
                self.s.write("g%d" % (i % 3), b"x")
            self.assertFalse(any(c.ended() for c in children))
            fcntl.flock(f, fcntl.LOCK_UN)
            for c in children:
                c.wait()


class Watched(WorkCase):
    def test_inotify_of_what_goes_through_the_mount(self):
        with fskit.Inotify() as i:
            i.add(self.s.work, i.CREATE | i.CLOSE_WRITE | i.DELETE)
            self.s.write("f", b"x")
            os.unlink(self.path("f"))
            for mask in (i.CREATE, i.CLOSE_WRITE, i.DELETE):
                i.wait(lambda p, m, n, mask=mask: m & mask and n == "f")

    def test_poll_of_a_file_says_ready(self):
        self.s.write("f", b"x")
        with open(self.path("f"), "rb") as f:
            p = select.poll()
            p.register(f, select.POLLIN)
            self.assertTrue(p.poll(0))


class Together(WorkCase):
    def test_many_threads_in_one_directory(self):
        errors = []

        def work(k):
            try:
                for i in range(100):
                    self.s.write("d/%d-%d" % (k, i), b"x" * i)
                    os.rename(self.path("d/%d-%d" % (k, i)), self.path("d/%d=%d" % (k, i)))
                    if i % 2:
                        os.unlink(self.path("d/%d=%d" % (k, i)))
            except OSError as e:
                errors.append(e)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors, [])
        self.assertEqual(len(os.listdir(self.path("d"))), 400)

    def test_two_names_of_one_file_moved_onto_each_other(self):
        self.s.write("a", b"x")
        os.link(self.path("a"), self.path("b"))
        os.rename(self.path("a"), self.path("b"))
        self.assertEqual((self.s.read("a"), self.s.read("b")), (b"x", b"x"))


class Full(WorkCase):
    settings = {"workspace_cap_mb": 16}

    def test_cap(self):
        cap = os.statvfs(self.s.work).f_blocks * os.statvfs(self.s.work).f_frsize
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        self.assertErrno(errno.ENOSPC, os.truncate, fd, cap + 1)
        self.assertErrno(errno.ENOSPC, os.posix_fallocate, fd, 0, cap + 1)
        os.truncate(fd, cap)
        self.assertErrno(errno.ENOSPC, os.pwrite, fd, b"x", cap)
        os.pwrite(fd, b"x", cap - 1)
        self.assertErrno(errno.ENOSPC, self.s.write, "g", b"x")
        os.truncate(fd, cap - 1)
        self.s.write("g", b"x")
        os.unlink(self.path("g"))
        self.assertEqual(os.statvfs(self.s.work).f_bavail * os.statvfs(self.s.work).f_frsize // 4096, 0)

    def test_room_comes_back(self):
        for _ in range(5):
            self.s.write("f", b"x" * (10 << 20))
            os.unlink(self.path("f"))
            self.s.write("g", b"x" * (10 << 20))
            self.s.write("g", b"")
        self.s.write("h", b"x" * (10 << 20))

    def test_what_a_run_left_counts(self):
        self.s.write("small", b"x")
        self.assertEqual(self.s.run("head -c 12000000 /dev/zero > big"), "0")
        self.assertErrno(errno.ENOSPC, self.s.write, "f", b"x" * (8 << 20))
        os.unlink(self.path("big"))
        self.s.write("f", b"x" * (8 << 20))


if __name__ == "__main__":
    sbx.main()
