# SPDX-License-Identifier: Apache-2.0
"""Every way to hand a document to runs/new and runs/check, and where its refusal is seen."""
import base64
import errno
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402

IN_MODIFY = 0x2
HELLO = {"command": ["sh", "-c", "echo hello"]}
SHELLS = {"dash": ["dash"], "bash": ["bash"], "busybox": ["busybox", "sh"]}
BIG = random.Random(7).randbytes(3 << 20)
BIG_ANSWER = "%d\n%s\n" % (len(BIG), hashlib.sha256(BIG).hexdigest()[:16])


def big_spec():
    return json.dumps({"spec_version": "1.0",
                       "files": [{"path": "in/big.bin", "content_b64": base64.b64encode(BIG).decode()}],
                       "command": ["sh", "-c", "wc -c < in/big.bin; sha256sum in/big.bin | cut -c1-16"]})


class SubmitCase(sbx.Case):
    def setUp(self):
        self.new = os.path.join(self.m.mnt, "runs/new")
        self.before = self.m.runs()
        self.tmp = tempfile.mkdtemp(prefix="sbx-submit-")
        self.addCleanup(shutil.rmtree, self.tmp)

    def file(self, name, text):
        path = os.path.join(self.tmp, name)
        with open(path, "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        return path

    def appeared(self):
        """The runs that this test made."""
        return [sbx.Run(self.m, n) for n in self.m.runs() if n not in self.before]

    def one(self, stdout=b"hello\n"):
        runs = self.appeared()
        self.assertEqual(len(runs), 1, [r.id for r in runs])
        self.assertEqual(runs[0].wait(), "0")
        self.assertEqual(runs[0].stdout, stdout)
        return runs[0]

    def none(self):
        self.assertEqual([r.id for r in self.appeared()], [])

    def sh(self, script, sh="sh", rc=0, **kw):
        p = fskit.shell(self.m, script, sh=sh, **kw)
        self.assertEqual(p.returncode, rc, p)
        return p.stdout

    def open(self, flags=os.O_RDWR, node=None):
        fd = os.open(node or self.new, flags)
        self.addCleanup(self.close, fd)
        return fd

    def close(self, fd):
        try:
            os.close(fd)
        except OSError:
            pass

    def last_error(self):
        with open(self.new, "rb", buffering=0) as f:
            return json.loads(f.read(65536))["error"]

    def assertErrno(self, number, fn, *args):
        with self.assertRaises(OSError) as c:
            fn(*args)
        self.assertEqual(errno.errorcode[c.exception.errno], errno.errorcode[number])


class Tools(SubmitCase):
    def test_echo_of_every_shell(self):
        for name, sh in SHELLS.items():
            with self.subTest(shell=name):
                self.before = self.m.runs()
                self.sh("""echo '{"command":["sh","-c","echo hello"]}' > "$MNT/runs/new" """, sh)
                self.one()

    def test_printf_without_newline(self):
        self.sh("""printf '%s' '{"command":["sh","-c","echo hello"]}' > "$MNT/runs/new" """)
        self.one()

    def test_append_redirection(self):
        self.sh("""echo '{"command":["sh","-c","echo hello"]}' >> "$MNT/runs/new" """)
        self.one()

    def test_here_document(self):
        self.sh('cat > "$MNT/runs/new" <<E\n{\n  "command": ["sh", "-c",\n    "echo hello"]\n}\nE\n')
        self.one()

    def test_cp(self):
        self.sh('cp "%s" "$MNT/runs/new"' % self.file("spec.json", json.dumps(HELLO, indent=2) + "\n"))
        self.one()

    def test_tee(self):
        out = self.sh("""printf '{"command":["sh","-c","echo hello"]}' | tee "$MNT/runs/new" """)
        self.assertIn(b"echo hello", out)
        self.one()

    def test_jq_that_writes_pretty_json(self):
        if not shutil.which("jq"):
            self.skipTest("no jq")
        self.sh("""jq -n '{command:["sh","-c","echo hello"]}' > "$MNT/runs/new" """)
        self.one()

    def test_python_with_statement(self):
        with open(self.new, "w") as f:
            json.dump(HELLO, f)
        self.one()

    def test_vim_write(self):
        if not shutil.which("vim"):
            self.skipTest("no vim")
        self.sh("""HOME=%s vim -u NONE -i NONE -es -c '%%d' -c 'normal i{"command":["sh","-c","echo hello"]}' """
                """-c 'w!' -c 'qa!' "$MNT/runs/new" """ % self.tmp)
        self.one()

    def test_ed_write(self):
        if not shutil.which("ed"):
            self.skipTest("no ed")
        self.sh("""printf '%s\\n' a '{"command":["sh","-c","echo hello"]}' . "w $MNT/runs/new" q | ed -s """)
        self.one()

    def test_sendfile_into_the_node(self):
        with open(self.file("spec.json", json.dumps(HELLO)), "rb") as f:
            os.sendfile(self.open(os.O_WRONLY), f.fileno(), 0, 4096)
        self.one()

    def test_id_is_read_back_in_shell(self):
        out = self.sh("""exec 3<>"$MNT/runs/new"; cat "%s" >&3; read id <&3; echo "$id" """
                      % self.file("spec.json", json.dumps(HELLO)))
        self.assertEqual(out.decode().strip(), self.one().id)

    def test_printf_to_open_descriptor(self):
        out = self.sh("""exec 3<>"$MNT/runs/new"
            printf '{"command":["sh","-c","echo hello"]}' >&3; read id <&3; echo "$id" """, ["bash"])
        self.assertEqual(out.decode().strip(), self.one().id)

    def test_truncation_alone_says_nothing(self):
        self.sh(': > "$MNT/runs/new"; truncate -s 0 "$MNT/runs/new"')
        self.none()

    def test_touch_of_the_node_is_harmless(self):
        self.sh('touch "$MNT/runs/new"')
        self.none()


class Pieces(SubmitCase):
    """One document of four megabytes, and small ones in unusual pieces."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.dir = tempfile.mkdtemp(prefix="sbx-submit-")
        cls.big = os.path.join(cls.dir, "big.json")
        with open(cls.big, "w") as f:
            f.write(big_spec() + "\n")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)
        super().tearDownClass()

    def test_cat_of_4_mib(self):
        self.sh('cat "%s" > "$MNT/runs/new"' % self.big)
        self.one(BIG_ANSWER.encode())

    def test_cp_of_4_mib(self):
        self.sh('cp "%s" "$MNT/runs/new"' % self.big)
        self.one(BIG_ANSWER.encode())

    def test_dd_in_blocks_of_1000_bytes(self):
        self.sh('dd if="%s" of="$MNT/runs/new" bs=1000 status=none' % self.big)
        self.one(BIG_ANSWER.encode())

    def test_sendfile_of_4_mib(self):
        fd, at = self.open(os.O_WRONLY), 0
        with open(self.big, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            while at < size:
                at += os.sendfile(fd, f.fileno(), at, size - at)
        self.one(BIG_ANSWER.encode())

    def test_one_write_of_4_mib_starts_in_that_write(self):
        with open(self.big, "rb") as f:
            data = f.read().strip()
        fd = self.open()
        self.assertEqual(os.write(fd, data), len(data))
        self.assertEqual(os.read(fd, 100).decode().strip(), self.one(BIG_ANSWER.encode()).id)

    def test_byte_by_byte_starts_at_the_last_brace(self):
        fd = self.open()
        for byte in json.dumps(HELLO).encode()[:-1]:
            os.write(fd, bytes([byte]))
        self.none()
        os.write(fd, b"}")
        self.one()

    def test_bytes_cut_inside_characters_and_escapes(self):
        text = json.dumps({"command": ["printf", "%s", "caf\u00e9 \u65e5\u672c \U0001f680 \\ \" \t"]},
                          ensure_ascii=False)
        text = text.replace("caf", "c\\u0061f")
        fd = self.open()
        for byte in text.encode():
            os.write(fd, bytes([byte]))
        self.one("caf\u00e9 \u65e5\u672c \U0001f680 \\ \" \t".encode())

    def test_document_after_document_on_one_descriptor(self):
        fd = self.open()
        ids = []
        for _ in range(3):
            os.write(fd, json.dumps(HELLO).encode())
            ids.append(os.read(fd, 100).decode().strip())
        self.assertEqual(sorted(ids), sorted(r.id for r in self.appeared()))
        self.assertEqual(len(set(ids)), 3)

    def test_newline_of_its_own_behind_the_document(self):
        fd = self.open()
        os.write(fd, json.dumps(HELLO).encode())
        os.write(fd, b"\n")
        os.write(fd, b"  \r\n\t")
        os.close(fd)
        self.one()

    def test_white_space_in_front(self):
        fd = self.open()
        os.write(fd, b"\n\n   ")
        os.write(fd, b"\t" + json.dumps(HELLO).encode())
        self.one()

    def test_good_document_after_a_refused_one(self):
        fd = self.open()
        self.assertErrno(errno.EINVAL, os.write, fd, b'{"command":7}')
        self.assertEqual(json.loads(os.read(fd, 65536))["error"]["code"], "invalid_spec")
        os.write(fd, json.dumps(HELLO).encode())
        self.assertEqual(os.read(fd, 100).decode().strip(), self.one().id)

    def test_two_openers_do_not_mix(self):
        a, b = self.open(), self.open()
        os.write(a, b'{"command":["sh","-c",')
        os.write(b, b'{"command":["echo",')
        os.write(a, b'"echo a"]}')
        os.write(b, b'"b"]}')
        for fd, text in ((a, b"a\n"), (b, b"b\n")):
            run = sbx.Run(self.m, os.read(fd, 100).decode().strip())
            run.wait()
            self.assertEqual(run.stdout, text)

    def test_many_writers_at_once(self):
        ids, errors = [], []

        def work(n):
            try:
                for i in range(4):
                    run = self.m.submit({"command": ["echo", "%d.%d" % (n, i)]})
                    ids.append((run, b"%d.%d\n" % (n, i)))
            except Exception as e:  # noqa: BLE001 -- shown below
                errors.append(e)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors, [])
        self.assertEqual(sorted(r.id for r, _ in ids), sorted(r.id for r in self.appeared()))
        for run, text in ids:
            run.wait()
            self.assertEqual(run.stdout, text)


class Flush(SubmitCase):
    def test_dup_and_close_before_the_first_byte(self):
        fd = self.open(os.O_WRONLY)
        os.close(os.dup(fd))
        os.write(fd, json.dumps(HELLO).encode())
        os.close(fd)
        self.one()

    def test_close_of_a_copy_in_the_middle_reports_and_keeps_the_half(self):
        fd = self.open()
        os.write(fd, b'{"command":["sh","-c",')
        self.assertErrno(errno.EINVAL, os.close, os.dup(fd))
        self.assertIn("not complete", json.loads(os.read(fd, 65536))["error"]["message"])
        self.none()
        os.write(fd, b'"echo hello"]}')
        os.close(fd)
        self.one()

    def test_two_processes_bring_one_document(self):
        fd = self.open()
        os.write(fd, b'{"command":["sh","-c",')
        with fskit.Child(lambda: os.write(fd, b'"echo hello"') * 0) as child:
            self.assertEqual(child.wait(), 0)
        os.write(fd, b"]}")
        os.close(fd)
        self.one()

    def test_close_after_a_complete_document_submits_nothing_more(self):
        fd = self.open()
        os.write(fd, json.dumps(HELLO).encode())
        for _ in range(3):
            os.close(os.dup(fd))
        os.close(fd)
        self.one()

    def test_half_a_document_is_an_error_of_close(self):
        fd = self.open(os.O_WRONLY)
        os.write(fd, b'{"comm')
        self.assertErrno(errno.EINVAL, os.close, fd)
        self.none()

    def test_half_a_document_fails_cp(self):
        p = fskit.shell(self.m, 'cp "%s" "$MNT/runs/new"' % self.file("half.json", '{"command":'))
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"Invalid argument", p.stderr)
        self.none()

    def test_reason_of_half_a_document_is_the_last_result(self):
        fskit.shell(self.m, 'cp "%s" "$MNT/runs/new"' % self.file("half.json", '{"command":["a"'))
        self.assertIn("not complete", self.last_error()["message"])

    def test_killed_writer_leaves_nothing(self):
        r, w = os.pipe()

        def write_half():
            fd = os.open(self.new, os.O_WRONLY)
            os.write(fd, b'{"command":["sh","-c","echo hello"]')
            os.write(w, b".")
            while True:
                os.read(r, 0) or os.sched_yield()
        with fskit.Child(write_half) as child:
            os.read(r, 1)
            child.signal(9)
            self.assertEqual(child.wait(), -9)
        os.close(r)
        os.close(w)
        self.none()

    def test_good_after_half_on_a_new_descriptor(self):
        fd = self.open(os.O_WRONLY)
        os.write(fd, b'{"command":["a"],')
        self.assertErrno(errno.EINVAL, os.close, fd)
        self.m.submit(HELLO)
        self.one()

    def test_fsync_is_no_end_of_a_document(self):
        fd = self.open()
        os.write(fd, b'{"command":["sh","-c",')
        os.fsync(fd)
        os.write(fd, b'"echo hello"]}')
        self.one()


class Scripts(SubmitCase):
    def test_cat_of_a_script(self):
        path = self.file("build.sh", "#!/bin/sh\nfor i in 1 2 3; do echo line $i; done\n")
        self.sh('cat "%s" > "$MNT/runs/new"' % path)
        self.one(b"line 1\nline 2\nline 3\n")

    def test_cp_of_a_script(self):
        self.sh('cp "%s" "$MNT/runs/new"' % self.file("x", "#!/usr/bin/env python3\nprint(6 * 7)\n"))
        self.one(b"42\n")

    def test_echo_of_a_script(self):
        self.sh("""printf '#!/bin/sh\\necho hello\\n' > "$MNT/runs/new" """, ["bash"])
        self.one()

    def test_read_starts_it_and_gives_the_id(self):
        fd = self.open()
        os.write(fd, b"#!/bin/sh\n")
        os.write(fd, b"echo hello\n")
        self.none()
        self.assertEqual(os.read(fd, 100).decode().strip(), self.one().id)

    def test_braces_in_a_script_do_not_end_it(self):
        self.sh('cat "%s" > "$MNT/runs/new"' % self.file("x", "#!/bin/sh\nf() { echo hel; }\n{ f; }\necho lo\n"))
        self.one(b"hel\nlo\n")

    def test_interpreter_line_split_over_writes(self):
        fd = self.open()
        for part in (b"#", b"!", b"/bin/sh\necho hel", b"lo\n"):
            os.write(fd, part)
        os.close(fd)
        self.one()

    def test_large_script_in_pieces(self):
        body = "#!/bin/sh\n" + "# %s\n" % ("x" * 76) * 6000 + "echo hello\n"
        self.sh('dd if="%s" of="$MNT/runs/new" bs=999 status=none' % self.file("x", body))
        self.one()

    def test_carriage_return_is_refused_at_close(self):
        fd = self.open()
        os.write(fd, b"#!/bin/sh\r\necho hello\r\n")
        self.assertErrno(errno.EINVAL, os.close, fd)
        self.assertIn("carriage return", self.last_error()["message"])
        self.none()

    def test_a_comment_is_no_script_and_fails_in_write(self):
        for name, sh in SHELLS.items():
            with self.subTest(shell=name):
                self.assertNotEqual(fskit.shell(self.m, "echo '# hello' > \"$MNT/runs/new\"", sh=sh).returncode, 0)
        self.none()


class Refusals(SubmitCase):
    BAD = ('[]', '{"command":"ls"}', '{"command":[]}', '{"command":["ls"],"timeout_sec":"x"}', 'hello',
           '"x"', '7', 'null', '{"command":["ls"]}}', '{"command":["ls"],}', "{'command':['ls']}",
           '{"command":["ls"],"comand":1}', '{"command":["ls"],"command":["id"]}')

    def test_builtin_echo_sees_every_refusal(self):
        for name, sh in SHELLS.items():
            for bad in self.BAD:
                with self.subTest(shell=name, document=bad):
                    p = fskit.shell(self.m, 'printf "%%s\\n" \'%s\' > "$MNT/runs/new"' % bad.replace("'", "'\\''"),
                                    sh=sh)
                    self.assertNotEqual(p.returncode, 0, bad)
        self.none()

    def test_cp_tee_dd_and_cat_see_a_refusal(self):
        path = self.file("bad.json", '{"command":"ls"}\n')
        for tool in ('cp "%s" "$MNT/runs/new"', 'tee "$MNT/runs/new" < "%s"', 'cat "%s" > "$MNT/runs/new"',
                     'dd if="%s" of="$MNT/runs/new" status=none'):
            with self.subTest(tool=tool):
                self.assertEqual(fskit.shell(self.m, tool % path).returncode, 1)
        self.none()

    def test_good_document_right_after(self):
        self.assertNotEqual(fskit.shell(self.m, 'echo hello > "$MNT/runs/new"').returncode, 0)
        self.m.submit(HELLO)
        self.one()

    def refused(self, doc, number=errno.EINVAL, code="invalid_spec"):
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit(doc)
        self.assertEqual((errno.errorcode[c.exception.errno], c.exception.code),
                         (errno.errorcode[number], code))
        self.none()
        return c.exception

    def test_two_documents_in_one_write(self):
        self.refused(b'{"command":["true"]}\n{"command":["true"]}\n')

    def test_text_behind_the_document(self):
        self.refused(b'{"command":["true"]} trailing')

    def test_nul_inside(self):
        self.refused(b'{"command":["tr\0ue"]}')

    def test_nul_as_escape(self):
        self.refused(b'{"command":["tr\\u0000ue"]}')

    def test_not_utf8(self):
        self.refused(b'{"command":["\xff\xfe"]}')

    def test_half_a_surrogate(self):
        self.refused(b'{"command":["\\ud800"]}')

    def test_utf16_document(self):
        self.refused(json.dumps(HELLO).encode("utf-16"))

    def test_duplicate_names(self):
        self.assertIn("command", self.refused(b'{"command":["true"],"command":["false"]}').message)

    def test_nesting_of_10000_brackets(self):
        self.refused(b'{"command":' + b"[" * 10000 + b"]" * 10000 + b"}")

    def test_10000_open_brackets_are_refused_before_their_end(self):
        self.refused(b"[" * 10000)
        self.refused(b'{"command":' + b"[" * 10000)

    def test_20_mib_is_too_large(self):
        fd = self.open()
        data = b'{"command":["true"],"name":"' + b"x" * (20 << 20) + b'"}'
        with self.assertRaises(OSError) as c:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view[:1 << 20]):]
        self.assertEqual(c.exception.errno, errno.EFBIG)
        self.assertEqual(json.loads(os.read(fd, 65536))["error"]["code"], "spec_too_large")
        self.none()

    def test_20_mib_fails_cp(self):
        path = self.file("x.json", b'{"command":["true"],"env":{"A":"' + b"x" * (20 << 20) + b'"}}')
        p = fskit.shell(self.m, 'cp "%s" "$MNT/runs/new"' % path)
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"File too large", p.stderr)

    def test_typo_names_the_nearest_field(self):
        e = self.refused({"command": ["true"], "timeout_secs": 5})
        self.assertEqual(e.details["did_you_mean"], "timeout_sec")

    def test_errno_of_every_kind_of_refusal(self):
        for doc, number, code in (
                ({"command": ["true"], "spec_version": "9.9"}, errno.EINVAL, "invalid_spec_version"),
                ({"command": ["true"], "files": [{"path": "../x", "content_b64": ""}]}, errno.EINVAL,
                 "invalid_inline_file"),
                ({"command": ["true"], "base_image": "no-such"}, errno.EINVAL, "image_not_found"),
                ({"command": ["true"], "runtime": "vz_macos"}, errno.ENODEV, "runtime_unavailable"),
                ({"command": ["true"], "network_policy": "allowlist"}, errno.EOPNOTSUPP, "policy_unsupported"),
                ({"command": ["true"], "network_policy": "allow_all"}, errno.EOPNOTSUPP, "policy_unsupported"),
                ({"command": ["true"], "session_id": "no-such"}, errno.ENOENT, "session_not_found")):
            with self.subTest(code=code):
                self.refused(doc, number, code)

    def test_network_policy_is_a_word_in_any_case(self):
        e = self.refused({"command": ["true"], "network_policy": " Allow_ALL "}, errno.EOPNOTSUPP, "policy_unsupported")
        self.assertEqual((e.details["requirement"], e.details["reasons"]), ("allow_all", ["unsupported_network_policy"]))
        run = self.m.run(dict(HELLO, network_policy=" DeNy_AlL "))
        self.assertEqual(json.loads(run.read("spec.json"))["network_policy"], "deny_all")
        self.one()

    def test_byte_order_mark_is_skipped(self):
        self.m.submit(b"\xef\xbb\xbf" + json.dumps(HELLO).encode())
        self.one()

    def test_byte_order_mark_in_pieces(self):
        fd = self.open()
        for byte in b"\xef\xbb\xbf" + json.dumps(HELLO).encode():
            os.write(fd, bytes([byte]))
        self.one()


class Keys(SubmitCase):
    def test_same_key_and_document_is_the_same_run(self):
        doc = dict(HELLO, idempotency_key="k-same")
        a = self.m.submit(doc)
        b = self.m.submit({"idempotency_key": "k-same", "timeout_sec": 300, "command": doc["command"]})
        self.assertEqual(a.id, b.id)
        self.one()

    def test_same_key_and_other_document_is_eexist(self):
        self.m.submit(dict(HELLO, idempotency_key="k-other"))
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit({"command": ["true"], "idempotency_key": "k-other"})
        self.assertEqual((c.exception.errno, c.exception.code), (errno.EEXIST, "idempotency_conflict"))
        self.assertEqual(c.exception.details["prior_id"], self.one().id)

    def test_twenty_at_once_with_one_key_are_one_run(self):
        ids, gate = [], threading.Barrier(20)

        def work():
            gate.wait()
            ids.append(self.m.submit(dict(HELLO, idempotency_key="k-race")).id)
        threads = [threading.Thread(target=work) for _ in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((len(ids), len(set(ids))), (20, 1))
        self.one()


class ReadingBack(SubmitCase):
    def test_fresh_descriptor_reads_the_last_id(self):
        run = self.m.submit(HELLO)
        with open(self.new, "rb", buffering=0) as f:
            self.assertEqual(f.read(100).decode().strip(), run.id)
            self.assertEqual(f.read(100), b"")

    def test_fresh_descriptor_reads_the_last_error(self):
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit({"command": ["ls"], "timeout_sec": 0})
        self.assertEqual(self.last_error()["message"], c.exception.message)
        self.assertIn("timeout_sec", c.exception.message)

    def test_reading_twice_changes_nothing(self):
        self.m.submit(HELLO)
        first = self.sh('cat "$MNT/runs/new"')
        self.assertEqual(self.sh('cat "$MNT/runs/new"; grep -c . "$MNT/runs/new"'), first + b"1\n")
        self.one()

    def test_reply_in_small_reads(self):
        fd = self.open()
        os.write(fd, json.dumps(HELLO).encode())
        got = b""
        while piece := os.read(fd, 5):
            got += piece
        self.assertEqual(got.decode().strip(), self.one().id)

    def test_error_is_json_with_a_newline(self):
        fd = self.open()
        self.assertErrno(errno.EINVAL, os.write, fd, b"[]")
        text = os.read(fd, 65536)
        self.assertTrue(text.endswith(b"\n"))
        self.assertEqual(set(json.loads(text)["error"]), {"code", "message", "details"})

    def test_size_is_the_size_of_the_last_result(self):
        run = self.m.submit(HELLO)
        self.assertEqual(os.stat(self.new).st_size, len(run.id) + 1)
        self.assertEqual(self.sh('wc -c < "$MNT/runs/new"').strip(), b"%d" % (len(run.id) + 1))
        self.assertEqual(self.sh('tail -c 5 "$MNT/runs/new"'), run.id[-4:].encode() + b"\n")

    def test_descriptor_cannot_seek(self):
        fd = self.open()
        self.assertErrno(errno.ESPIPE, os.lseek, fd, 0, os.SEEK_SET)
        self.assertErrno(errno.ESPIPE, os.pwrite, fd, b"{}", 0)

    def test_latest_is_the_newest_run(self):
        a = self.m.submit(HELLO)
        self.assertEqual(os.readlink(os.path.join(self.m.mnt, "runs/latest")), a.id)
        b = self.m.submit(HELLO)
        self.assertEqual(os.readlink(os.path.join(self.m.mnt, "runs/latest")), b.id)
        self.assertEqual(self.sh('cat "$MNT/runs/latest/.wait"'), b"0\n")

    def test_flags_of_the_descriptor_may_change(self):
        fd = self.open()
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
        os.write(fd, json.dumps(HELLO).encode())
        self.assertEqual(os.read(fd, 100).decode().strip(), self.one().id)


class Check(SubmitCase):
    def setUp(self):
        super().setUp()
        self.check_node = os.path.join(self.m.mnt, "runs/check")

    def tearDown(self):
        self.none()

    def test_accepted_document_shows_what_it_would_get(self):
        v = self.m.check({"command": ["true"], "timeout_sec": 3600, "trust_level": "untrusted"})
        self.assertIs(v["accepted"], True)
        self.assertEqual(v["runtime"], "namespace")
        self.assertEqual(v["timeout_sec"], 60)
        self.assertIn("timeout_sec", v["clamped"])

    def test_refused_document_shows_why_and_the_write_succeeds(self):
        v = self.m.check({"command": ["true"], "runtime": "vz_macos"})
        self.assertEqual((v["accepted"], v["error"]["code"]), (False, "runtime_unavailable"))

    def test_same_error_as_a_submission(self):
        doc = {"command": ["true"], "timeout_sec": -1}
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit(doc)
        self.assertEqual(self.m.check(doc)["error"], c.exception.reply["error"])

    def test_shell_round_trip(self):
        out = self.sh("""exec 3<>"$MNT/runs/check"; echo '{"command":["true"]}' >&3; cat <&3""")
        self.assertIs(json.loads(out)["accepted"], True)

    def test_fresh_descriptor_reads_the_last_verdict(self):
        v = self.m.check({"command": ["true"], "resources": {"memory_mb": 100}})
        with open(self.check_node) as f:
            self.assertEqual(json.load(f), v)

    def test_verdict_is_not_the_last_result_of_new(self):
        fd = self.open()
        self.assertErrno(errno.EINVAL, os.write, fd, b"[]")
        before = self.last_error()
        self.m.check({"command": ["true"]})
        self.assertEqual(self.last_error(), before)

    def test_script(self):
        fd = self.open(node=self.check_node)
        os.write(fd, b"#!/bin/sh\necho hi\n")
        self.assertIs(json.loads(os.read(fd, 65536))["accepted"], True)

    def test_what_is_no_json_fails_in_write(self):
        self.assertErrno(errno.EINVAL, os.write, self.open(node=self.check_node), b"hello")


class Talkative(sbx.Mount):
    """libfuse tells of each request on standard error, before and after."""

    def args(self):
        first, *rest = super().args()
        return [first, "-d", *rest]


class LookUps(unittest.TestCase):
    def setUp(self):
        self.m = Talkative(settings={"inotify": "false"})
        self.addCleanup(self.m.close)
        self.m.start()

    def look_ups(self):
        return len(re.findall("opcode: LOOKUP ", self.m.errors()))

    def check(self):
        """Opens and closes, and waits until the server has heard of it; gives how often the name was looked up."""
        before = self.look_ups()
        with api.watch(self.m.log_path, IN_MODIFY) as ring:
            seen = len(self.m.errors())
            os.close(os.open("check", os.O_WRONLY, dir_fd=self.runs))
            while not re.search(r"unique: (\d+), opcode: RELEASE [\s\S]*   unique: \1, success", self.m.errors()[seen:]):
                self.assertTrue(ring(20 * sbx.SLOW), self.m.errors())
        return self.look_ups() - before

    def test_one_for_each_open(self):
        """Also after a look-up that opened nothing, when the kernel has to find that it knows another."""
        self.runs = os.open(os.path.join(self.m.mnt, "runs"), os.O_PATH)
        self.addCleanup(os.close, self.runs)
        self.check()
        self.assertEqual([self.check() for _ in range(5)], [1] * 5)
        os.stat("check", dir_fd=self.runs)
        self.check()
        self.assertEqual([self.check() for _ in range(5)], [1] * 5)


class Full(SubmitCase):
    """A door that executes nothing, so that the queue fills."""
    opts = ("workers=0",)
    settings = {"queue_max_length": 2}

    def test_full_queue_is_eagain_in_write_and_says_when(self):
        for _ in range(2):
            self.m.submit(HELLO)
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit(HELLO)
        self.assertEqual((c.exception.errno, c.exception.code), (errno.EAGAIN, "queue_full"))
        self.assertGreater(c.exception.details["retry_after"], 0)
        for name, sh in SHELLS.items():
            p = fskit.shell(self.m, """echo '{"command":["true"]}' > "$MNT/runs/new" """, sh=sh)
            self.assertNotEqual(p.returncode, 0, name)
        for run in self.appeared():
            run.ctl("cancel")


if __name__ == "__main__":
    sbx.main()
