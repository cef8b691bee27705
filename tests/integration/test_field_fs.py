# SPDX-License-Identifier: Apache-2.0
"""Field cases about writing documents into the mount and reading made-up files from it. The name of a
test begins with the number of its case."""
import contextlib
import hashlib
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import field  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402
from field import py, sh, spec  # noqa: E402


class F01(field.Case):
    BAD = ("[]", '{"command":"ls"}', '{"command":[]}', '{"command":["ls"],"timeout_sec":"x"}', "hello")

    def write_fails(self, shell, script='printf "%s\\n" "$1" > "$MNT/runs/new"'):
        before = self.m.runs()
        for bad in self.BAD:
            p = subprocess.run([*shell, "-c", script, "sh", bad], env=dict(os.environ, MNT=self.m.mnt),
                               stderr=subprocess.PIPE)
            self.assertNotEqual(p.returncode, 0, bad)
            self.assertTrue(p.stderr, bad)
            with open(os.path.join(self.m.mnt, "runs/new")) as f:
                said = json.load(f)
            self.assertEqual(said["error"]["code"], "invalid_spec", bad)
            self.assertTrue(said["error"]["message"])
        self.assertEqual(self.m.runs(), before)
        self.alive()

    def test_F01_printf_in_sh(self):
        self.write_fails(["sh"])

    def test_F01_printf_in_bash(self):
        self.write_fails(["bash"])

    def test_F01_echo_in_busybox(self):
        self.write_fails(["busybox", "sh"], 'echo "$1" > "$MNT/runs/new"')

    def test_F01_the_reason_names_the_field(self):
        self.refused('{"command":["ls"],"timeout_sec":"x"}', "invalid_spec", "timeout_sec")
        self.refused('{"command":"ls"}', "invalid_spec", "command")

    def half(self, argv):
        before = self.m.runs()
        with tempfile.NamedTemporaryFile(suffix=".json") as half:
            half.write(b'{"command":')
            half.flush()
            p = subprocess.run([a.replace("HALF", half.name).replace("NEW", self.m.mnt + "/runs/new") for a in argv],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertNotEqual(p.returncode, 0, argv)
        self.assertEqual(self.m.runs(), before)
        self.alive()

    def test_F01_half_a_document_by_cp(self):
        self.half(["cp", "HALF", "NEW"])

    def test_F01_half_a_document_by_dd(self):
        self.half(["dd", "if=HALF", "of=NEW", "conv=notrunc", "status=none"])

    def test_F01_half_a_document_by_cat_and_tee(self):
        self.half(["bash", "-o", "pipefail", "-c", "cat HALF | tee NEW >/dev/null"])

    def test_F01_half_a_document_fails_in_close(self):
        before = self.m.runs()
        fd = os.open(self.m.mnt + "/runs/new", os.O_WRONLY)
        os.write(fd, b'{"comm')
        with self.assertRaises(OSError):
            os.close(fd)
        self.assertEqual(self.m.runs(), before)
        self.alive()


class F03(field.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data = random.Random(7).randbytes(3 * 1024 * 1024)
        cls.want = b"3145728\n%s\n" % hashlib.sha256(data).hexdigest()[:16].encode()
        cls.tmp = tempfile.mkdtemp(prefix="sbx-f03-")
        cls.big = os.path.join(cls.tmp, "big.json")
        with open(cls.big, "w") as f:
            f.write(json.dumps({"spec_version": "1.0", "files": [{"path": "in/big.bin", "content_b64": field.b64(data)}],
                                "command": ["sh", "-c", "wc -c < in/big.bin; sha256sum in/big.bin | cut -c1-16"]}) + "\n")

    @classmethod
    def tearDownClass(cls):
        os.unlink(cls.big)
        os.rmdir(cls.tmp)
        super().tearDownClass()

    def by(self, script):
        before = set(self.m.runs())
        p = fskit.shell(self.m, 'big="%s"; %s' % (self.big, script), timeout=60)
        self.assertEqual((p.returncode, p.stderr), (0, b""))
        new = set(self.m.runs()) - before
        self.assertEqual(len(new), 1)
        r = sbx.Run(self.m, new.pop())
        self.ended(r, 0, "completed", timeout=60)
        self.assertEqual(r.stdout.replace(b" ", b""), self.want)

    def test_F03_by_cat(self):
        self.by('cat "$big" > "$MNT/runs/new"')

    def test_F03_by_cp(self):
        self.by('cp "$big" "$MNT/runs/new"')

    def test_F03_by_dd_in_blocks_of_1000(self):
        self.by('dd if="$big" of="$MNT/runs/new" bs=1000 status=none')

    def test_F03_by_busybox_cat(self):
        self.by('busybox cat "$big" > "$MNT/runs/new"')


class F04(field.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_ = cls.m.run(sh("i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i; done"))
        cls.expected = b"".join(b"line %d\n" % i for i in range(1, 5001))

    def agree(self, name, content=None):
        path = self.run_.path(name)
        script = r'''f="$F"; stat -c %s "$f"; cat "$f" | wc -c; busybox cat "$f" | wc -c; wc -c < "$f"
cp "$f" "$T" && stat -c %s "$T"; dd if="$f" bs=7 status=none | wc -c; tail -c +1 "$f" | wc -c
busybox wc -c < "$f"; busybox dd if="$f" bs=7 2>/dev/null | wc -c'''
        with tempfile.TemporaryDirectory() as tmp:
            p = subprocess.run(["sh", "-c", script], env=dict(os.environ, F=path, T=tmp + "/c"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
        sizes = [int(n) for n in p.stdout.split()]
        self.assertEqual(len(sizes), 9)
        self.assertEqual(set(sizes), {os.stat(path).st_size}, p.stdout)
        data = self.run_.read(name)
        self.assertEqual(len(data), sizes[0])
        if content is not None:
            self.assertEqual(data, content)
        fd = os.open(path, os.O_RDONLY)
        try:
            n = os.fstat(fd).st_size
            self.assertEqual(n, len(data))
            self.assertEqual(os.pread(fd, 9, n), b"")
            self.assertEqual(os.pread(fd, 9, n + 10**9), b"")
            self.assertEqual(os.pread(fd, 10**7, 0), data)
            self.assertEqual(os.pread(fd, 11, max(0, n - 11)), data[-11:])
        finally:
            os.close(fd)
        tail = subprocess.run(["tail", "-c", "11", path], stdout=subprocess.PIPE).stdout
        head = subprocess.run(["head", "-c", "3", path], stdout=subprocess.PIPE).stdout
        self.assertEqual((tail, head), (data[-11:], data[:3]))
        grep = subprocess.run(["grep", "-c", ".", path], stdout=subprocess.PIPE).stdout
        self.assertEqual(int(grep), sum(1 for line in data.splitlines() if line))

    def test_F04_log(self):
        self.agree("log", self.expected)

    def test_F04_stdout(self):
        self.agree("stdout", self.expected)

    def test_F04_status_json(self):
        self.agree("status.json")
        json.loads(self.run_.read("status.json"))

    def test_F04_frames(self):
        self.agree("log.ndjson")

    def test_F04_other_made_up_files(self):
        for name in ("spec.json", "why", "exit_code", "status"):
            with self.subTest(name):
                self.agree(name)

    def test_F04_status_read_in_small_steps_while_the_run_changes(self):
        r = self.m.submit(sh("read x; echo $x", interactive=True))
        r.wait_phase("running")
        fd = os.open(r.path("status.json"), os.O_RDONLY)
        try:
            doc = os.read(fd, 7)
            with open(r.path("stdin"), "wb", buffering=0) as f:
                f.write(b"go\n")
            self.ended(r, 0, "completed")
            while part := os.read(fd, 7):
                doc += part
        finally:
            os.close(fd)
        self.assertEqual(json.loads(doc)["phase"], "running")
        self.assertEqual(r.json()["phase"], "completed")


class F08(field.Case):
    def timed(self, argv, limit=5, **kw):
        return subprocess.run(["timeout", str(limit * int(sbx.SLOW)), *argv], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, **kw)

    def test_F08_killed_and_started_again_without_cleaning_up(self):
        with sbx.Mount() as m:
            r = m.run(sh("echo before"))
            m.kill()
            with self.assertRaises(OSError) as c:
                os.listdir(m.mnt)
            self.assertEqual(c.exception.errno, 107)  # ENOTCONN, at once
            m.start()
            self.assertEqual(m.runs(), [r.id])
            self.assertEqual(r.log, b"before\n")
            self.assertEqual(self.timed(["df", m.mnt]).returncode, 0)
            self.assertEqual(self.timed(["ls", m.mnt + "/runs"]).returncode, 0)
            self.assertEqual(m.run(sh("echo after")).log, b"after\n")
            # One mount, not one on top of a dead one.
            with open("/proc/self/mountinfo") as f:
                self.assertEqual(sum(" %s " % m.mnt in line for line in f), 1)

    def test_F08_df_answers_under_load(self):
        runs = [self.m.submit(sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done")) for _ in range(8)]
        for _ in range(20):
            p = self.timed(["df", self.m.mnt])
            self.assertEqual(p.returncode, 0, p.stderr)
        for r in runs:
            self.ended(r, 0, "completed", timeout=60)

    def test_F08_state_inside_the_mount_point_is_refused(self):
        base = tempfile.mkdtemp(prefix="sbx-f08-")
        try:
            conf = os.path.join(base, "conf")
            open(conf, "w").close()
            mnt = os.path.join(base, "mnt")
            os.mkdir(mnt)
            for state in (mnt, mnt + "/state", mnt + "/a/../b"):
                p = self.timed([sbx.SANDBOXFS, "-f", "-o", "state=%s,config=%s" % (state, conf), mnt], 20)
                self.assertNotIn(p.returncode, (0, 124), state)
                self.assertIn(b"inside the mount point", p.stderr)
                self.assertEqual(len(p.stderr.strip().splitlines()), 1, p.stderr)
            link = os.path.join(base, "link")
            os.symlink(mnt, link)
            p = self.timed([sbx.SANDBOXFS, "-f", "-o", "state=%s/s,config=%s" % (link, conf), mnt], 20)
            self.assertNotIn(p.returncode, (0, 124))
            self.assertEqual(os.listdir(mnt), [])
        finally:
            fskit.shell(self.m, 'umount -l "$D/mnt" 2>/dev/null; rm -rf --one-file-system "$D"'.replace("$D", base))

    def test_F08_started_from_a_shell_inside_the_mount_point(self):
        with sbx.Mount() as m:
            m.stop()
            args = m.args()
            log = open(m.log_path, "ab")
            with log:
                m.proc = subprocess.Popen(args, cwd=m.mnt, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            m.wait_mounted()
            self.assertEqual(m.run(sh("echo fine")).log, b"fine\n")

    def test_F08_term_unmounts_though_a_shell_sits_inside(self):
        with sbx.Mount() as m:
            m.run(sh("true"))
            shell = subprocess.Popen(["sh", "-c", "echo in; read x"], cwd=os.path.join(m.mnt, "runs"),
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                self.assertEqual(shell.stdout.readline(), b"in\n")
                self.assertEqual(m.stop(), 0)
                self.assertFalse(m.is_mounted())
            finally:
                shell.communicate(b"x\n")
            m.start()
            self.assertEqual(len(m.runs()), 1)


class F26(field.Case):
    PROGRAM = ("import os,time\no=os.write\no(1,b'a'*65535+b'\\xe3\\x81'); time.sleep(0.3); "
               "o(1,b'\\x82\\n\\xff\\xfe\\x80\\x00Z\\n\\xed\\xa0\\x80'); o(1,b'\\xf0\\x9f'); time.sleep(0.3); "
               "o(1,b'\\x99\\x82\\n'); o(2,b'\\xc3')")

    def test_F26_log_bytes_are_exact(self):
        r = self.m.submit(py(self.PROGRAM))
        self.ended(r, 0, "completed")
        for name, data in (("file", r.stdout), ("frames", field.output(r, "stdout"))):
            with self.subTest(name):
                self.assertEqual(len(data), 65553)
                self.assertTrue(hashlib.sha256(data).hexdigest().startswith("0137e3ec0473e5a2"))
                self.assertNotIn("\ufffd".encode(), data)
        self.assertEqual((r.stderr, field.output(r, "stderr")), (b"\xc3", b"\xc3"))

    def test_F26_characters_are_whole_in_text_frames(self):
        r = self.m.submit(py(self.PROGRAM))
        self.ended(r, 0, "completed")
        # What is no text comes as base64, and only then.
        for f in r.frames():
            if f.get("encoding") == "base64":
                import base64
                with self.assertRaises(UnicodeDecodeError):
                    base64.b64decode(f["data"]).decode()
        self.assertIn("base64", [f.get("encoding") for f in r.frames()])
        # A character that comes in two writes is not split over two frames.
        r2 = self.m.submit(py("import os,time\nfor b in '\u3042\U0001f642\u00e9'.encode():\n"
                              "  os.write(1,bytes([b])); time.sleep(0.02)"))
        self.ended(r2, 0, "completed")
        text = [f for f in r2.frames() if f["type"] == "stdout"]
        self.assertEqual({f["encoding"] for f in text}, {"utf8"})
        self.assertEqual("".join(f["data"] for f in text), "\u3042\U0001f642\u00e9")
        self.assertNotIn("", [f["data"] for f in text])
        seqs = [f["seq"] for f in r.frames()]
        self.assertEqual(seqs, list(range(1, len(seqs) + 1)))


class F28(field.Case):
    settings = {"queue_max_length": 1000}
    SCRIPT = "printf 'alpha\\nomega'; printf E >&2"
    ROUNDS = 200

    def follow(self, r):
        """All of .stream, by reads that wait."""
        with open(r.path(".stream"), "rb") as f:
            return f.read()

    def complete(self, r, frames):
        outs = [f for f in frames if f["type"] in ("stdout", "stderr")]
        self.assertEqual("".join(f["data"] for f in outs if f["type"] == "stdout"), "alpha\nomega")
        self.assertEqual("".join(f["data"] for f in outs if f["type"] == "stderr"), "E")
        self.assertEqual((frames[0]["event"], frames[-1]["event"]), ("start", "end"))
        self.assertEqual(frames[-1]["data"], {"exit_code": 0})

    def test_F28_last_bytes_200_times(self):
        """Half with a follower that waits, half with a reader that comes right after the end; thirty at
        a time."""
        followed, errors = {}, []

        def follower(r):
            try:
                followed[r.id] = self.follow(r)
            except OSError as e:
                errors.append(e)

        for base in range(0, self.ROUNDS, 40):
            runs = [self.m.submit(sh(self.SCRIPT)) for _ in range(40)]
            threads = [threading.Thread(target=follower, args=(r,)) for r in runs[::2]]
            for t in threads:
                t.start()
            for r in runs:
                self.assertEqual(r.wait(60), "0")
                # The status is terminal, so the log is complete.
                self.assertEqual((r.stdout, r.stderr), (b"alpha\nomega", b"E"))
                self.assertEqual(len(r.log), 12)
            for t in threads:
                t.join(60 * sbx.SLOW)
                self.assertFalse(t.is_alive())
            for i, r in enumerate(runs):
                late = r.read("log.ndjson")
                self.complete(r, [json.loads(line) for line in late.splitlines()])
                if i % 2 == 0:
                    # Who followed from the start saw the same as who comes after the end.
                    self.assertEqual(followed[r.id], late)
                else:
                    self.assertEqual(self.follow(r), late)
        self.assertEqual(errors, [])


class F33(field.Case):
    def raw(self, timeout):
        return '{"spec_version":"1.0","command":["echo","ran"],"timeout_sec":%s}' % timeout

    def effective(self, document):
        r = self.m.submit(document)
        self.ended(r, 0, "completed")
        return json.loads(r.read("spec.json"))

    def test_F33_nul_in_the_command(self):
        self.refused('{"command":["sh","-c","echo A\\u0000B"]}', "invalid_spec")

    def test_F33_nul_in_the_environment(self):
        self.refused('{"command":["true"],"env":{"X":"a\\u0000b"}}', "invalid_spec")

    def test_F33_nul_in_a_file_name(self):
        self.refused('{"command":["true"],"files":[{"path":"a\\u0000.txt","content_b64":""}]}', "invalid_spec")

    def test_F33_nul_byte_in_the_document(self):
        self.refused(b'{"command":["echo","a\0b"]}', "invalid_spec")

    def test_F33_nul_in_a_field_name(self):
        self.refused('{"command":["true"],"timeout_sec\\u0000x":3}', "invalid_spec")

    def test_F33_timeout_0(self):
        self.refused(self.raw("0"), "invalid_spec", "timeout_sec")

    def test_F33_timeout_negative(self):
        self.refused(self.raw("-1"), "invalid_spec", "timeout_sec")

    def test_F33_timeout_half_a_second(self):
        self.refused(self.raw("0.5"), "invalid_spec", "timeout_sec")

    def test_F33_timeout_beyond_all_numbers(self):
        self.refused(self.raw("1e400"), "invalid_spec")

    def test_F33_timeout_nan(self):
        self.refused(self.raw("NaN"), "invalid_spec")

    def test_F33_timeout_infinity(self):
        for word in ("Infinity", "-Infinity", "inf"):
            self.refused(self.raw(word), "invalid_spec")

    def test_F33_timeout_string(self):
        self.refused(self.raw('"60"'), "invalid_spec", "timeout_sec")

    def test_F33_timeout_true(self):
        self.refused(self.raw("true"), "invalid_spec", "timeout_sec")

    def test_F33_timeout_2147483648(self):
        self.refused(self.raw("2147483648"), "invalid_spec", "timeout_sec")

    def test_F33_timeout_2_to_the_63(self):
        self.refused(self.raw("9223372036854775808"), "invalid_spec", "timeout_sec")

    def test_F33_timeout_null_is_the_default(self):
        self.assertEqual(self.effective(self.raw("null"))["timeout_sec"],
                         self.effective('{"command":["echo","ran"]}')["timeout_sec"])

    def test_F33_timeout_with_exponent(self):
        self.assertEqual(self.effective(self.raw("6e1"))["timeout_sec"], 60)
        # 1000, which the trust level lowers.
        self.assertEqual(self.effective(self.raw("1e3"))["timeout_sec"], 300)

    def test_F33_values_above_the_trust_level_are_lowered_and_shown(self):
        doc = self.effective(json.dumps(spec(command=["true"], timeout_sec=3600, trust_level="untrusted",
                                             resources={"cpu": 64, "memory_mb": 100000})))
        self.assertEqual((doc["timeout_sec"], doc["resources"]["cpu"], doc["resources"]["memory_mb"]),
                         (60, 1, 1024))

    def resources(self, text, word):
        self.refused('{"command":["true"],"resources":{%s}}' % text, "invalid_spec", word)

    def test_F33_memory_negative(self):
        self.resources('"memory_mb":-1', "memory_mb")

    def test_F33_memory_0(self):
        self.resources('"memory_mb":0', "memory_mb")

    def test_F33_memory_1e30(self):
        self.resources('"memory_mb":1e30', "memory_mb")

    def test_F33_cpu_0(self):
        self.resources('"cpu":0', "cpu")

    def test_F33_cpu_negative(self):
        self.resources('"cpu":-2', "cpu")

    def test_F33_cpu_string(self):
        self.resources('"cpu":"1"', "cpu")

    def test_F33_half_a_surrogate_pair(self):
        self.refused('{"command":["echo","\\ud800"]}', "invalid_spec")
        self.refused('{"command":["echo","\\udc00x"]}', "invalid_spec")

    def test_F33_bytes_that_are_no_utf8(self):
        self.refused(b'{"command":["echo","\xff\xfe"]}', "invalid_spec")

    def test_F33_the_same_key_twice(self):
        self.refused('{"command":["false"],"timeout_sec":5,"timeout_sec":6}', "invalid_spec", "timeout_sec")

    def test_F33_100000_nested_brackets(self):
        self.refused("[" * 100000, "invalid_spec")
        self.refused('{"command":' + "[" * 100000, "invalid_spec")
        self.refused('{"x":' * 100000, "invalid_spec")

    def test_F33_text_behind_the_object(self):
        self.refused('{"command":["echo","ran"]} x', "invalid_spec")
        self.refused('{"command":["echo","ran"]}{"command":["echo","ran"]}', "invalid_spec")

    def test_F33_byte_order_mark(self):
        r = self.m.submit(b'\xef\xbb\xbf{"command":["echo","ran"]}')
        self.ended(r, 0, "completed")
        self.assertEqual(r.log, b"ran\n")

    def tearDown(self):
        self.assertIsNone(self.m.proc.poll())


class F34(field.Case):
    LIST = "ls -lAR | cat"
    # Exact names and sizes, NUL between them.
    EXACT = ("import os,sys\nfor d,_,fs in sorted(os.walk(b'.')):\n  for f in sorted(fs):\n"
             "    p=os.path.join(d,f); sys.stdout.buffer.write(p[2:]+b'\\0'+b'%d'%os.stat(p).st_size+b'\\0')")

    def bad(self, *files, word="files", code="invalid_inline_file"):
        entries = [{"path": p, "content_b64": c} for p, c in files]
        self.refused(sh(self.LIST, files=entries), code, word)

    def good(self, *files):
        entries = [{"path": p, "content_b64": c} for p, c in files]
        r = self.m.submit(py(self.EXACT, files=entries))
        self.ended(r, 0, "completed")
        got = r.stdout.split(b"\0")[:-1]
        got = dict(zip([g.decode() for g in got[::2]], [int(n) for n in got[1::2]]))
        import base64
        want = {p: len(base64.b64decode(c + "=" * (-len(c) % 4))) for p, c in files}
        self.assertEqual(got, want)

    def test_F34_dot_dot(self):
        self.bad(("ok", ""), ("../x", "QQ=="), word="files[1]")

    def test_F34_dot_dot_in_the_middle(self):
        self.bad(("a/../../x", "QQ=="), word="files[0]")

    def test_F34_absolute(self):
        self.bad(("/etc/x", "QQ=="), word="files[0]")

    def test_F34_two_slashes(self):
        self.bad(("//x", "QQ=="), word="files[0]")

    def test_F34_empty(self):
        self.bad(("", "QQ=="), word="files[0]")

    def test_F34_dot(self):
        self.bad((".", "QQ=="), word="files[0]")

    def test_F34_slash_at_the_end(self):
        self.bad(("a/", "QQ=="), word="files[0]")

    def test_F34_dot_in_the_middle(self):
        self.bad(("a/./b", "QQ=="), word="files[0]")

    def test_F34_name_of_255_bytes(self):
        self.good(("x" * 255, "QQ=="))

    def test_F34_name_of_256_bytes(self):
        self.bad(("x" * 256, "QQ=="), word="files[0]")

    def test_F34_name_of_86_characters_and_258_bytes(self):
        self.bad(("\u4f60" * 86, "QQ=="), word="files[0]")

    def test_F34_40_nested_folders(self):
        self.good(("/".join(["d"] * 40) + "/f", "QQ=="))

    def test_F34_name_that_looks_like_an_option(self):
        self.good(("-rf", "QQ=="))

    def test_F34_name_with_a_space(self):
        self.good(("a b", "QQ=="))

    def test_F34_name_with_a_newline(self):
        self.good(("new\nline", "QQ=="))

    def test_F34_two_spellings_of_cafe(self):
        self.good(("caf\u00e9", "QQ=="), ("cafe\u0301", "QUI="))

    def test_F34_file_and_folder_of_one_name(self):
        self.bad(("a", "QQ=="), ("a/b", "QQ=="), word="files[")
        self.bad(("a/b", "QQ=="), ("a", "QQ=="), word="files[")

    def test_F34_the_same_path_twice(self):
        self.bad(("a", "QQ=="), ("b", ""), ("a", "QUI="), word="files[")

    def test_F34_content_that_is_no_base64(self):
        self.bad(("a", "@@@"), word="files[0]")

    def test_F34_base64_without_padding(self):
        self.good(("a", "QQ"))

    def test_F34_base64_with_a_newline(self):
        self.bad(("a", "QQ==\n"), word="files[0]")

    def test_F34_empty_file(self):
        self.good(("a", ""))

    def test_F34_1001_files(self):
        self.bad(*[("f%d" % i, "") for i in range(1001)], code="invalid_spec")

    def test_F34_1000_files(self):
        self.good(*[("f%d" % i, "QQ==") for i in range(1000)])

    def test_F34_nothing_is_written_outside(self):
        self.assertFalse(os.path.exists(os.path.join(self.m.state, "x")))
        left = [n for n in os.listdir(os.path.join(self.m.state, "runs")) if n not in self.m.runs()]
        self.assertEqual(left, [])


class F35(field.Case):
    settings = {"queue_max_length": 200}
    BODY = {"spec_version": "1.0", "command": ["sh", "-c", "sleep 0.5; echo once"]}

    def key(self):
        return "key-%016x" % random.getrandbits(64)

    def at_once(self, document, n=20):
        """n submissions at one moment: the ids that they were answered with."""
        ids, errors = [], []
        gate = threading.Barrier(n)

        def one():
            gate.wait()
            try:
                ids.append(self.m.submit(document).id)
            except OSError as e:
                errors.append((e.errno, getattr(e, "reply", None)))

        threads = [threading.Thread(target=one) for _ in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60 * sbx.SLOW)
        self.assertEqual(errors, [])
        self.assertEqual(len(ids), n)
        return ids

    def test_F35_20_at_once_are_one_run(self):
        document = dict(self.BODY, idempotency_key=self.key())
        before = set(self.m.runs())
        ids = self.at_once(document)
        self.assertEqual(len(set(ids)), 1)
        r = sbx.Run(self.m, ids[0])
        self.ended(r, 0, "completed")
        self.assertEqual(r.log, b"once\n")
        # The same again after it has ended.
        self.assertEqual(set(self.at_once(document)), {r.id})
        self.assertEqual(set(self.m.runs()) - before, {r.id})
        self.assertEqual(r.log, b"once\n")

    def conflict(self, key, prior):
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit({"spec_version": "1.0", "command": ["true"], "idempotency_key": key})
        self.assertEqual((c.exception.errno, c.exception.code), (17, "idempotency_conflict"))
        self.assertEqual(c.exception.details["prior_id"], prior.id)
        self.assertEqual(c.exception.details["key"], key)
        self.assertRegex(c.exception.details["prior_created_at"], r"^\d{4}-\d\d-\d\dT.*Z$")

    def test_F35_another_document_is_a_conflict_in_every_phase(self):
        key = self.key()
        r = self.m.submit(dict(self.BODY, idempotency_key=key))
        self.conflict(key, r)
        r.wait_phase(("running", "completed"))
        self.conflict(key, r)
        self.ended(r, 0, "completed")
        self.conflict(key, r)

    def test_F35_of_20_different_documents_one_wins(self):
        key, won, lost = self.key(), [], []
        gate = threading.Barrier(20)

        def one(i):
            gate.wait()
            try:
                won.append(self.m.submit({"command": ["echo", str(i)], "idempotency_key": key}))
            except sbx.Refused as e:
                lost.append(e)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60 * sbx.SLOW)
        self.assertEqual((len(won), len(lost)), (1, 19))
        for e in lost:
            self.assertEqual((e.code, e.details["prior_id"]), ("idempotency_conflict", won[0].id))
        self.ended(won[0], 0, "completed")

    def test_F35_spacing_and_order_do_not_count(self):
        key = self.key()
        first = self.m.submit('{"command":["true"],"timeout_sec":20,"idempotency_key":"%s"}' % key)
        second = self.m.submit('{ "idempotency_key" : "%s",\n "timeout_sec":2e1, "spec_version":"1.0",'
                               '"command" : [ "true" ] }\n' % key)
        self.assertEqual(first.id, second.id)
        self.ended(first, 0, "completed")

    @unittest.skipUnless(sbx.ROOT, "needs other users")
    def test_F35_keys_of_other_users_are_independent(self):
        document = dict(self.BODY, idempotency_key=self.key())
        ids = [self.m.submit(document).id]
        for uid in (fskit.ALICE, fskit.BOB):
            ids.append(fskit.submit_as(uid, self.m, document).id)
            self.assertEqual(fskit.submit_as(uid, self.m, document).id, ids[-1])
        self.assertEqual(len(set(ids)), 3)
        for i in ids:
            self.ended(sbx.Run(self.m, i), 0, "completed")

    def test_F35_the_key_survives_a_restart(self):
        with sbx.Mount() as m:
            document = dict(self.BODY, idempotency_key=self.key())
            first = m.submit(document)
            m.kill()
            m.start()
            self.assertEqual(m.submit(document).id, first.id)
            self.assertEqual(first.wait(), "0")
            self.assertEqual(first.log, b"once\n")
            self.assertEqual(m.runs(), [first.id])

    def test_F35_a_refused_document_does_not_use_up_the_key(self):
        key = self.key()
        self.refused({"command": [], "idempotency_key": key})
        self.refused({"command": ["true"], "base_image": "no-such-image", "idempotency_key": key}, "image_not_found")
        r = self.m.submit({"command": ["true"], "idempotency_key": key})
        self.ended(r, 0, "completed")

    def test_F35_empty_and_huge_keys_are_refused(self):
        self.refused({"command": ["true"], "idempotency_key": ""}, "invalid_spec", "idempotency_key")
        self.refused({"command": ["true"], "idempotency_key": "k" * 10240}, "invalid_spec", "idempotency_key")


if __name__ == "__main__":
    sbx.main()
