# SPDX-License-Identifier: Apache-2.0
"""Files that images are made of, from nothing: roots, layers, OCI layouts."""
import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import tarfile

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
BUSYBOX = shutil.which("busybox")


def member(t, name, data=b"", mode=0o644, kind=tarfile.REGTYPE, link=""):
    i = tarfile.TarInfo(name)
    i.mode, i.type, i.linkname, i.size = mode, kind, link, len(data)
    t.addfile(i, io.BytesIO(data))


def tar(fill):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        fill(t)
    return out.getvalue()


def base(t):
    """A root that can run a shell, with what only root could read in it."""
    with open(BUSYBOX, "rb") as f:
        member(t, "bin/busybox", f.read(), 0o4700)
    for name in ("sh", "cat", "ls", "id", "sleep", "touch"):
        member(t, "bin/" + name, kind=tarfile.SYMTYPE, link="busybox")
    member(t, "etc", mode=0o700, kind=tarfile.DIRTYPE)
    member(t, "etc/version", b"one\n", 0o600)
    member(t, "etc/dropped", b"x\n")
    member(t, "dev/disk", kind=tarfile.BLKTYPE)
    member(t, "caf\u00e9/\u20ac", b"euro\n")


def second(t):
    member(t, "etc/.wh.dropped")
    member(t, "etc/version", b"two\n")



def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def oci(layers):
    """The layout as a tar, and the digest of its configuration."""
    blobs = {}

    def put(data):
        blobs[sha(data)] = data
        return {"digest": sha(data), "size": len(data)}

    config = json.dumps({"architecture": ARCH, "os": "linux",
                         "rootfs": {"type": "layers", "diff_ids": [sha(x) for x in layers]}}).encode()
    manifest = put(json.dumps({"schemaVersion": 2, "config": put(config),
                               "layers": [put(gzip.compress(x, 1)) for x in layers]}).encode())

    def fill(t):
        member(t, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        member(t, "index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
        for digest, data in blobs.items():
            member(t, "blobs/sha256/" + digest[7:], data)

    return tar(fill), sha(config)


@contextlib.contextmanager
def held(path):
    """flock on this file or directory: of an image, once no runner holds it; of .lock, so that imports wait."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
