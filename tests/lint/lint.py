#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of CONTRIBUTING.md that a program can check. Prints TAP.

  lint.py          check the tree
  lint.py --fix    first bring C sources into their format
"""
import ast
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("SBX_BUILD_ROOT", os.path.join(ROOT, "build-asan"))
FORMAT_VERSION = 14  # of clang-format; others format a few things differently

# ---- the tables: who may know whom -------------------------------------------------------------------

# folder: (headers of other folders that it may include, prefixes of what it exports)
# A folder is matched by its longest entry, so runtimes/runner/ is not runtimes/.
PARTS = {
    "base": ((), "sbx_"),
    "mountspec": (("base/",), "ms_"),
    "store": (("base/",), "store_ log_ snap_"),
    "runtimes/net": (("base/",), "net_ egress_"),
    "runtimes": (("base/", "runtimes/net/egress.h"), "rt_ cg_ ns_ wt_ dk_"),
    "orchestrator": (("base/", "mountspec/", "store/store.h", "store/log.h", "store/sessions.h", "store/snap.h",
                      "runtimes/runtimes.h", "runtimes/net/targets.h"),
                     "orch_ admit_ pool_ dispatch_ janitor_ submit_ bound_ session_ snapshot_ upload_ image_ "
                     "archive_ intake_ findings_ images_ helper_ stage_ watching_"),
    # The supervisor of one run: above the orchestrator, whose steps it takes.
    "runtimes/runner": (("base/", "mountspec/", "store/store.h", "store/log.h", "store/sessions.h", "store/snap.h",
                         "runtimes/runtimes.h", "runtimes/net/egress.h", "orchestrator/order.h", "orchestrator/phase.h", "orchestrator/image.h",
                         "orchestrator/policy.h", "orchestrator/settings.h"),
                        "feeder_ plan_ outcome_ job_ glob_ collected_ collect_ stock_"),
    "fsd": (("base/", "mountspec/", "orchestrator/orchestrator.h", "orchestrator/sessions.h",
             "orchestrator/settings.h", "orchestrator/images.h", "orchestrator/unpack.h", "store/store.h", "store/log.h",
             "store/sessions.h", "store/snap.h", "runtimes/runtimes.h"),
            "fsd_ node_ entry_ run_ who_ is_ render text_ log_ control_ results_ parking_ stream_ "
            "status_ feed_ kicker_ writers_ acl_ dir_ real_ wait_ poll_ handle_ session_ sessions_ work_ shot_ img_ coming_ failures_ by_ pass_ serial_"),
    "apid": (("base/", "mountspec/", "orchestrator/orchestrator.h", "orchestrator/sessions.h",
              "orchestrator/upload.h", "orchestrator/settings.h", "orchestrator/images.h", "store/store.h", "store/log.h",
              "store/sessions.h", "store/snap.h"),
             "apid_ admin_ artifact_ artifacts_ auth_ body_ conns_ finished_ health_ http_ listen_ metrics_ multipart_ openapi_ reply_ image_ "
             "req_ route_ run_ runs_ runtimes_ session_ sessions_ snapshot_ snapshots_ spool_ stream_ token_ upload_ waiting_ worker_ workspace_ "
             "ws_"),
}
LIBRARIES = {part: os.path.join(part, "lib%s.a" % os.path.basename(part)) for part in PARTS}

LINES_MAX = {"product": 600, "tests": 900}
FUNCTION_MAX = 80
TOP = """.ci .clang-format .clang-tidy .editorconfig .gitignore CHANGELOG.md CONTRIBUTING.md LICENSE README.md SECURITY.md
apid base docs examples fsd meson.build meson_options.txt mountspec orchestrator quickstart runtimes scripts store systemd
test tests""".split()
WITH_SPDX = (".c", ".h", ".def", ".py", ".sh", ".build", ".service", ".mount")
SCRIPTS = ("quickstart", "test", ".ci/run", ".ci/run-debian13", "scripts/debian13", "scripts/tsan")

# Where there is no event to wait for, with the reason.
MAY_SLEEP = {
    "store/sqlite.c": "a lock of another process says nothing when it is released",
    "store/session_files.c": "a lock of another process says nothing when it is released",
    "tests/unit/test_store_queue.c": "the other process, which holds the lock for a second",
}

# Each is about one machine or one moment, so it has no place in a file that lasts.
OUT_OF_PLACE = (
    (r"(?<![\w.~$}])/(?:work|root|home/\w+|tmp/h)/", "a path of one machine"),
    (r"\b(?:TODO|FIXME|XXX|HACK)\b", "unfinished work"),
    (r"\b[Ii]ssue #?\d+|\(#\d+\)|\bGH-\d+", "a number of a tracker"),
)


# ---- helpers -----------------------------------------------------------------------------------------

def all_files():
    for where, folders, files in os.walk(ROOT):
        folders[:] = sorted(d for d in folders if not d.startswith("build") and
                            d not in (".git", "__pycache__", "corpus"))
        for name in sorted(files):
            yield os.path.relpath(os.path.join(where, name), ROOT)


FILES = list(all_files())
C_FILES = [f for f in FILES if f.endswith((".c", ".h", ".def"))]
TEXT = {}


def text(path):
    if path not in TEXT:
        with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
            TEXT[path] = f.read()
    return TEXT[path]


def is_test(path):
    return path.startswith("tests/")


def part_of(path):
    """The entry of PARTS that owns this file, or None."""
    fits = [p for p in PARTS if path.startswith(p + "/")]
    return max(fits, key=len) if fits else None


def code_only(source):
    """C without what strings and comments say; lines stay where they are."""
    def blank(m):
        s = m.group(0)
        keep = s if s.startswith("//") else re.sub(r"[^\n]", " ", s)
        return keep
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*', blank, source,
                  flags=re.S)


def line_of(source, at):
    return source.count("\n", 0, at) + 1


class Skip(Exception):
    pass


CHECKS = []


def check(f):
    CHECKS.append(f)
    return f


# ---- structure ---------------------------------------------------------------------------------------

@check
def includes_go_one_way():
    """Each folder includes only what stands below it."""
    for path in C_FILES:
        part = part_of(path)
        if is_test(path) or not part:
            continue
        allowed = PARTS[part][0]
        for m in re.finditer(r'^#\s*include "([^"]+)"', text(path), re.M):
            target = m.group(1)
            if part_of(target) == part or target.startswith(allowed or ("\0",)) and \
                    not target.endswith("_i.h"):
                continue
            yield "%s includes %s; %s may use: %s" % (path, target, part,
                                                      " ".join(allowed) or "nothing of ours")


@check
def every_folder_with_code_is_in_the_table():
    """A new folder gets its arrows written down."""
    for path in C_FILES:
        if not is_test(path) and not part_of(path):
            yield "%s: its folder is not in PARTS of tests/lint/lint.py" % path


@check
def includes_name_their_folder():
    """"folder/file.h" from the top, so that the arrows can be read."""
    for path in C_FILES:
        for m in re.finditer(r'^#\s*include "([^"/]+)"', text(path), re.M):
            if not is_test(path):
                yield "%s includes %s without its folder" % (path, m.group(1))


@check
def private_headers_stay_at_home():
    """x_i.h is for the files of its own folder, and for unit tests."""
    for path in C_FILES:
        for m in re.finditer(r'^#\s*include "([^"]+_i\.h)"', text(path), re.M):
            home = os.path.dirname(m.group(1))
            if not is_test(path) and not os.path.dirname(path).startswith(home):
                yield "%s includes %s" % (path, m.group(1))


@check
def every_source_is_built():
    """A file that no meson.build names is never compiled."""
    builds = [f for f in FILES if os.path.basename(f) == "meson.build"]
    for path in (f for f in C_FILES if f.endswith(".c")):
        near = [b for b in builds if os.path.dirname(path).startswith(os.path.dirname(b))]
        name, stem = os.path.basename(path), os.path.basename(path)[:-2]
        stem = re.sub(r"^(test|fuzz)_", "", stem)
        words = "'(?:[\\w/]*/)?(?:%s|%s)'" % (re.escape(name), re.escape(stem))
        if not any(re.search(words, text(b)) for b in near):
            yield "%s is in no meson.build" % path


def symbols(part):
    lib = os.path.join(BUILD, LIBRARIES[part])
    if not os.path.exists(lib):
        raise Skip("%s is not built" % LIBRARIES[part])
    out = subprocess.run(["nm", "-g", "--defined-only", "--no-sort", lib], text=True, check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    # Sanitizers add names of their own, which begin with two underscores.
    return {w[2] for w in map(str.split, out.splitlines()) if len(w) == 3 and w[2][:2] != "__"}


@check
def exported_symbols_have_the_prefix_of_their_part():
    """What a file exports says where it lives."""
    for part, (_, prefixes) in PARTS.items():
        for name in sorted(symbols(part)):
            if not name.startswith(tuple(prefixes.split())):
                yield "%s: %s begins with none of: %s" % (LIBRARIES[part], name, prefixes)


@check
def no_name_is_exported_twice():
    """Two parts that export one name would be linked wrongly, and silently."""
    homes = {}
    for part in PARTS:
        for name in symbols(part):
            homes.setdefault(name, []).append(part)
    for name, where in sorted(homes.items()):
        if len(where) > 1:
            yield "%s is in %s" % (name, " and ".join(where))


# ---- files -------------------------------------------------------------------------------------------

@check
def files_say_their_licence():
    """An SPDX line in the first two lines."""
    for path in FILES:
        if path.endswith(WITH_SPDX) or path in SCRIPTS:
            if "SPDX-License-Identifier: Apache-2.0" not in "".join(text(path).splitlines()[:2]):
                yield path


@check
def files_have_one_subject():
    """A file that is too long has two."""
    for path in FILES:
        if not path.endswith((".c", ".h", ".py")):
            continue
        most = LINES_MAX["tests" if is_test(path) else "product"]
        lines = text(path).count("\n")
        if lines > most:
            yield "%s has %d lines, allowed %d" % (path, lines, most)


@check
def functions_fit_a_screen():
    """From the brace in column 0 to the brace in column 0."""
    for path in (f for f in C_FILES if f.endswith(".c")):
        start = None
        for n, line in enumerate(text(path).splitlines(), 1):
            if line == "{":
                start = n
            elif line.startswith("}") and start:
                if n - start > FUNCTION_MAX:
                    yield "%s:%d: %d lines, allowed %d" % (path, start, n - start, FUNCTION_MAX)
                start = None


@check
def comments_are_block_comments():
    """// is for scratch and never committed."""
    for path in C_FILES:
        source = code_only(text(path))
        for m in re.finditer(r"//", source):
            yield "%s:%d" % (path, line_of(source, m.start()))


@check
def headers_compile_alone():
    """A header includes what it needs."""
    libs = "fuse3 json-c sqlite3 libseccomp inih libcrypto cmocka".split()
    flags = subprocess.run(["pkg-config", "--cflags"] + libs, text=True, check=True,
                           stdout=subprocess.PIPE).stdout.split()
    for path in (f for f in C_FILES if f.endswith(".h") and not is_test(f)):
        done = subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64",
                               "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-fsyntax-only", "-I.",
                               "-x", "c", "-include", path, os.devnull] + flags, cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            yield "%s: %s" % (path, done.stdout.strip().splitlines()[:3])


@check
def sources_are_formatted():
    """clang-format has nothing to change (lint.py --fix does it)."""
    exe = shutil.which("clang-format")
    if not exe:
        raise Skip("clang-format is not installed")
    version = re.search(r"version (\d+)", subprocess.run([exe, "--version"], text=True,
                                                         stdout=subprocess.PIPE).stdout)
    if not version or int(version.group(1)) != FORMAT_VERSION:
        raise Skip("clang-format is not version %d" % FORMAT_VERSION)
    for path in (f for f in C_FILES if f.endswith((".c", ".h"))):
        done = subprocess.run([exe, "--dry-run", "-Werror", path], cwd=ROOT, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode:
            where = re.findall(r":(\d+):\d+: error", done.stderr)
            yield "%s: lines %s" % (path, " ".join(where[:8]) + (" ..." if len(where) > 8 else ""))


@check
def scripts_parse():
    """sh -n for shell, compile() for Python."""
    for path in FILES:
        if path.endswith(".sh") or path in SCRIPTS:
            shell = "bash" if text(path).startswith("#!/bin/bash") else "sh"
            done = subprocess.run([shell, "-n", path], cwd=ROOT, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                yield "%s: %s" % (path, done.stdout.strip())
        elif path.endswith(".py"):
            try:
                compile(text(path), path, "exec")
            except SyntaxError as e:
                yield "%s: %s" % (path, e)


# ---- manners -----------------------------------------------------------------------------------------

def sleeps(path):
    """Lines on which a file sleeps by itself; a program that it has in a string does not count."""
    if path.endswith((".c", ".h")):
        source = code_only(text(path))
        for m in re.finditer(r"\b(?:u?sleep|nanosleep|clock_nanosleep)\s*\(", source):
            yield line_of(source, m.start())
    elif path.endswith(".py"):
        for node in ast.walk(ast.parse(text(path))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "sleep":
                yield node.lineno
    elif path.endswith(".sh") or path in SCRIPTS:
        for m in re.finditer(r"(?m)^\s*sleep\b", text(path)):
            yield line_of(text(path), m.start())


@check
def nothing_sleeps():
    """Wait for the event; MAY_SLEEP has the exceptions."""
    for path in FILES:
        for line in () if path in MAY_SLEEP else sleeps(path):
            yield "%s:%d" % (path, line)


@check
def the_top_is_tidy():
    """What a command leaves where it was started is not committed by accident."""
    git = subprocess.run(["git", "-C", ROOT, "ls-files"], stdout=subprocess.PIPE, text=True)
    for name in sorted({path.split("/")[0] for path in git.stdout.splitlines()}):
        if name not in TOP:
            yield "%s: not a part; TOP in lint.py has those" % name


@check
def nothing_is_out_of_place():
    """No paths of one machine, no unfinished work, no tracker numbers."""
    for path in FILES:
        if path == "tests/lint/lint.py" or path == "LICENSE":
            continue
        for pattern, what in OUT_OF_PLACE:
            for m in re.finditer(pattern, text(path)):
                yield "%s:%d: %s: %s" % (path, line_of(text(path), m.start()), what, m.group(0))


@check
def links_lead_somewhere():
    """Every relative link of a Markdown page names a file that exists."""
    for path in (f for f in FILES if f.endswith(".md")):
        for m in re.finditer(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text(path)):
            target = m.group(1)
            if "://" in target or target.startswith("mailto:"):
                continue
            if not os.path.exists(os.path.join(ROOT, os.path.dirname(path), target)):
                yield "%s:%d: %s" % (path, line_of(text(path), m.start()), target)


def rows_of_the_tree():
    """docs/mount.md's rows, made from tree.def."""
    paths = {"ROOT": ""}
    for m in re.finditer(r'^X\((\w+),\s*(\w+),\s*"([^"]*)",\s*(\w+),\s*(\d+),\s*\w+,\s*(\w+),'
                         r'\s*\w+,\s*\w+,\s*\w+,\s*"([^"]*)"\)', text("mountspec/tree.def"), re.M):
        sym, parent, name, kind, mode, listed, doc = m.groups()
        if parent == "NONE":
            continue
        name = {"RUN": "ID", "RUNTIME": "NAME.json", "SESSION": "NAME", "SESS_BY_ID": "ID", "SESS_RUN": "ID",
                "SHOT": "NAME", "BY_PHASE_OF": "PHASE", "BY_LABEL_OF": "KEY=VALUE", "BY_SESS_OF": "NAME",
                "BY_USER_OF": "NAME", "SESS_WORK_LINK": "workspace", "IMAGE": "NAME"}.get(
                    sym, "ID" if re.match("BY_.*_RUN", sym) else name).replace("<name>", "NAME")
        paths[sym] = paths[parent] + name + ("/" if kind == "DIR" else "")
        yield "| `%s`%s | %s | %s |" % (paths[sym], "" if listed == "true" else " +", mode,
                                        doc.replace("|", "\\|"))


@check
def docs_show_the_tree():
    """docs/mount.md has exactly the rows of mountspec/tree.def."""
    wanted = list(rows_of_the_tree())
    found = [line for line in text("docs/mount.md").splitlines()
             if re.match(r"\| `[^`]+`( \+)? \| \d{4,5} \|", line)]
    if not wanted:
        yield "mountspec/tree.def cannot be read any more"
    for row in wanted:
        if row not in found:
            yield "docs/mount.md lacks this row: " + row
    for row in found:
        if row not in wanted:
            yield "docs/mount.md has a row too many: " + row

def route_rows():
    """docs/api.md's rows, made from routes.def."""
    for method, path, access, summary in re.findall(
            r'^X\("(\w+)",\s+"([^"]+)",\s+(\w+),.*"([^"]+)"\)$', text("apid/routes.def"), re.M):
        yield "| `%s` | `%s` | %s | %s |" % (method, path, access.lower(), summary)


@check
def docs_show_the_routes():
    """docs/api.md has exactly the rows of apid/routes.def."""
    wanted = list(route_rows())
    found = [line for line in text("docs/api.md").splitlines() if re.match(r"\| `(GET|POST|PUT|PATCH|DELETE)` \|", line)]
    for row in wanted:
        if row not in found:
            yield "docs/api.md lacks this row: " + row
    for row in found:
        if row not in wanted:
            yield "docs/api.md has a row too many: " + row


@check
def parameters_are_described():
    """Every parameter of a query that apid/ reads is a row of apid/params.def."""
    rows = set(re.findall(r'^X\(\w+,\s*"query",\s*"(\w+)"', text("apid/params.def"), re.M))
    for path in (f for f in C_FILES if f.startswith("apid/")):
        for at in re.finditer(r'\breq_query(?:_int)?\(q, "(\w+)"', text(path)):
            if at.group(1) not in rows:
                yield "%s:%d: %s" % (path, line_of(text(path), at.start()), at.group(1))


@check
def every_page_is_in_the_index():
    """README.md leads to every page of docs/."""
    for path in (f for f in FILES if f.startswith("docs/") and f.endswith(".md")):
        if "(%s)" % path not in text("README.md"):
            yield "README.md does not link to %s" % path


# ---- main --------------------------------------------------------------------------------------------

def fix():
    """Section lines are shortened first: the formatter breaks a comment that is too wide in two."""
    for path in (f for f in C_FILES if f.endswith((".c", ".h"))):
        source = text(path)
        joined = re.sub(r"^(/\* -{4} .*?[^-\s])\s*\n?\s*\*?\s*-*\s*\n?\s*\*/$",
                        lambda m: (m.group(1) + " " + "-" * 96)[:97] + " */"
                        if len(m.group(1)) < 94 else m.group(0), source, flags=re.M)
        if joined != source:
            with open(os.path.join(ROOT, path), "w", encoding="utf-8") as f:
                f.write(joined)
    subprocess.run(["clang-format", "-i"] + [f for f in C_FILES if f.endswith((".c", ".h"))],
                   cwd=ROOT, check=True)


def main():
    if sys.argv[1:] == ["--fix"]:
        fix()
        TEXT.clear()
    bad = 0
    for n, f in enumerate(CHECKS, 1):
        name = f.__name__
        try:
            found = list(f())
        except Skip as e:
            print("ok %d - %s # SKIP %s" % (n, name, e))
            continue
        print("%sok %d - %s" % ("not " if found else "", n, name))
        if found:
            bad += 1
            print("# " + f.__doc__.splitlines()[0])
        for line in found:
            print("#   " + str(line).replace("\n", " "))
    print("1..%d" % len(CHECKS))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
