# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""The same attempts once more, in containers of a real engine. What a container may answer besides is listed here, each
with its reason; everything else must end as in the other sandboxes."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import escape  # noqa: E402
import test_escape_egress as egress  # noqa: E402
import test_escape_files as files  # noqa: E402
import test_escape_kernel as kernel  # noqa: E402
import test_escape_network as network  # noqa: E402
import test_escape_process as process  # noqa: E402
from escape import sbx  # noqa: E402
import dockerkit  # noqa: E402
from dockerkit import PYTHON  # noqa: E402

E = None

# row: what it may end with, too.
ALSO = {
    # No user namespace of its own: other ids exist, and are refused by their owner.
    "setuid_0": "EPERM", "setresuid_other": "EPERM", "setgid_0": "EPERM", "chown_to_root": "EPERM",
    "groups": "[1000]", "uid_map": "[['0', '4294967295']]", "gid_map": "[['0', '4294967295']]",
    "namespaces_are_new": "['user']", "read_memory_of_host": "EPERM",
    # Process 1 can be seen, and nothing of it be opened.
    "proc_1_exe_write": "EACCES", "proc_1_root": "EACCES", "proc_1_cwd": "EACCES", "only_our_processes": "['1']",
    "proc_1_hidden": "OK",
    # The image is another one: it has no such programs, files, users.
    "setuid_program": "ENOENT", "setuid_program_caps": "ENOENT", "file_capabilities": "ENOENT",
    "setuid_of_our_own": "ENOENT", "usr_world_writable": "ENOENT", "usr_world_writable_directory": "ENOENT",
    "usr_world_writable_truncate": "ENOENT", "usr_world_writable_unlink": "ENOENT", "usr_world_writable_mmap": "ENOENT",
    "etc_is_not_the_hosts": "['root']",
    # The engine's own /dev and /sys: mqueue in the first, empty directories in the second.
    "dev_listing": "['fd', 'full', 'mqueue', 'null', 'ptmx', 'pts', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'tty', "
                   "'urandom', 'zero']",
    "no_debugfs": "[]", "no_efivars": "[]",
}
# Rows about how a sandbox of ours is built, where an engine builds otherwise; and why that is as good.
BUILT_OTHERWISE = {
    "every_mount_nosuid_nodev": "no_new_privs makes set-user-id nothing, and the devices group lets no device be opened",
    "writable_mounts": "of root's, in modes that nobody else can write to; only_workspace_and_tmp in test_docker.py tries",
    "no_propagation": "the root receives unmounts of the engine's and gives none",
    "cgroup_file_shows_a_root": "told by test_the_service_cannot_be_seen in other words",
    "no_cgroup_files": "read-only, and of the container alone",
    "root_listing": "the image's", "empty_directories": "the image's", "var_listing": "the image's",
    "terminals_are_few": "pts of the container's own, bounded by its memory",
    "proc_1_by_thread": "names alone",
    "ping_socket": "the engine allows them to everybody, and there is nobody to ping",
}
# The same of those that have a network.
EGRESS_ALSO = {}
EGRESS_BUT = {}


def setUpModule():
    global E
    E = dockerkit.start(PYTHON)


def settings():
    return dockerkit.settings(E, default_runtime="docker", default_image=PYTHON, docker_default_image=PYTHON)


def adapted(rows, also, but):
    return [escape.Row(r.name, r.code, r.expect + ((also[r.name],) if r.name in also else ()), trust=r.trust)
            for r in rows if r.name not in but]


def group(name, rows, also=ALSO, but=BUILT_OTHERWISE, more=(), spec=()):
    made = escape.group(name, adapted(rows, also, but), spec=dict(spec))

    class Group(made):
        @classmethod
        def setUpClass(cls):
            cls.settings = {**settings(), **dict(more)}
            super().setUpClass()
    Group.__name__ = Group.__qualname__ = name
    return Group


Roots = group("Roots", files.roots)
Mounts = group("Mounts", files.mounts)
Devices = group("Devices", files.devices)
Proc = group("Proc", files.proc)
Programs = group("Programs", files.programs)
Kernel = group("Kernel", kernel.rows)
Network = group("Network", network.rows)
Processes = group("Processes", process.processes)
Egress = group("Egress", egress.rows, EGRESS_ALSO, EGRESS_BUT, egress.SETTINGS, egress.SPEC)


class Table(unittest.TestCase):
    def test_every_exception_is_of_a_row(self):
        names = {r.name for rows in (files.roots, files.mounts, files.devices, files.proc, files.programs, kernel.rows,
                                     network.rows, process.processes) for r in rows}
        self.assertEqual((set(ALSO) | set(BUILT_OTHERWISE)) - names, set())
        self.assertEqual(set(ALSO) & set(BUILT_OTHERWISE), set())
        self.assertEqual((set(EGRESS_ALSO) | set(EGRESS_BUT)) - {r.name for r in egress.rows}, set())


class Others(escape.Attempts):
    @classmethod
    def setUpClass(cls):
        cls.settings = settings()
        super().setUpClass()

    neighbour = process.Neighbours.neighbour
    let_go = process.Neighbours.let_go
    reach = process.Neighbours.reach
    test_neighbour_standard = process.Neighbours.test_neighbour_standard
    test_neighbour_untrusted = process.Neighbours.test_neighbour_untrusted
    test_kill_everybody = process.Neighbours.test_kill_everybody
    test_descriptors = process.Neighbours.test_descriptors
    test_cwd_cannot_be_outside = process.Neighbours.test_cwd_cannot_be_outside
    test_cwd_planted_by_files = process.Neighbours.test_cwd_planted_by_files
    test_zz_canaries_untouched = escape.Attempts.check_canaries


if __name__ == "__main__":
    sbx.main()
