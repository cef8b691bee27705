# SPDX-License-Identifier: Apache-2.0
"""Trees with one of everything that a snapshot keeps, and what is compared of them."""
import hashlib
import os
import stat


def fill(top):
    """One of everything; the names say what. On a plain directory or on the mount."""
    at = os.fsencode(top)

    def put(name, data, mode=0o644):
        with open(os.path.join(at, name), "wb") as f:
            f.write(data)
        os.chmod(os.path.join(at, name), mode)

    put(b"plain", b"hello\n")
    put(b"empty", b"")
    put(b"script", b"#!/bin/sh\n", 0o750)
    put(b"secret", b"x", 0o400)
    put("gr\u00fc\u00df \u20ac".encode(), b"UTF-8")
    put(b"odd\xff\xfe\n\t\"", b"no text")
    put(b"n" * 250, b"a long name")
    os.makedirs(os.path.join(at, b"d" * 60, b"e" * 60, b"f" * 60))
    put(os.path.join(b"d" * 60, b"e" * 60, b"f" * 60, b"deep"), b"deep")
    os.makedirs(os.path.join(at, b"dir", b"none"))
    os.chmod(os.path.join(at, b"dir", b"none"), 0o500)
    os.link(os.path.join(at, b"plain"), os.path.join(at, b"dir", b"linked"))
    os.symlink(b"../plain", os.path.join(at, b"dir", b"link"))
    os.symlink(b"nowhere/" + b"x" * 150, os.path.join(at, b"dangling"))
    with open(os.path.join(at, b"sparse"), "wb") as f:
        f.seek(3 << 20)
        f.write(b"middle")
        f.truncate(4 << 20)
    times = (1, 1234567890123456789)
    for name in (b"plain", b"dir/none", b"dir", b"dir/link", b"d" * 60):
        os.utime(os.path.join(at, name), ns=times, follow_symlinks=False)
    os.utime(os.path.join(at, b"script"), ns=(1, -6750000000))


def show(top):
    """{path: what is kept of it}; hard links by the first of their names."""
    at, seen, all_of_it = os.fsencode(top), {}, {}
    for where, folders, files in os.walk(at):
        for name in sorted(folders + files):
            path = os.path.join(where, name)
            st = os.lstat(path)
            one = [stat.filemode(st.st_mode), st.st_mtime_ns]
            if stat.S_ISLNK(st.st_mode):
                one.append(os.readlink(path))
            elif stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    one += [st.st_size, hashlib.sha256(f.read()).hexdigest(), sorted(os.listxattr(path))]
                if st.st_nlink > 1:
                    one.append(seen.setdefault(st.st_ino, os.path.relpath(path, at)))
            all_of_it[os.path.relpath(path, at)] = one
    return all_of_it
