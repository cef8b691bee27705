# SPDX-License-Identifier: Apache-2.0
"""Every row of rows.tsv is a test or stands in skipped.tsv with the reason, and nothing stands there twice."""
import ast
import os
import re
import unittest

import conf

HERE = os.path.dirname(os.path.abspath(__file__))


def table(name, columns):
    with open(os.path.join(HERE, name)) as f:
        head, *rows = [line.rstrip("\n").split("\t") for line in f if not line.startswith("#")]
    assert head == columns, head
    assert all(len(r) == len(columns) and all(r) for r in rows), [r for r in rows if len(r) != len(columns)]
    return rows


def tests():
    """(id, file) of every test method that carries an id."""
    for name in sorted(os.listdir(HERE)):
        if not re.fullmatch(r"test_\w+\.py", name):
            continue
        with open(os.path.join(HERE, name)) as f:
            tree = ast.parse(f.read())
        for node in ast.walk(tree):
            m = isinstance(node, ast.FunctionDef) and re.match(r"test_(T\d{3})_\w", node.name)
            if m:
                yield m.group(1), name


class Rows(unittest.TestCase):
    def setUp(self):
        self.rows = table("rows.tsv", ["id", "area"])
        self.skipped = table("skipped.tsv", ["id", "reason"])
        self.tests = list(tests())

    def test_every_row_is_a_test_or_says_why_not(self):
        done = {i for i, _ in self.tests} | {i for i, _ in self.skipped}
        self.assertEqual([i for i, _ in self.rows if i not in done], [])

    def test_no_row_is_both(self):
        self.assertEqual(sorted({i for i, _ in self.tests} & {i for i, _ in self.skipped}), [])

    def test_nothing_stands_twice(self):
        for ids in ([i for i, _ in self.rows], [i for i, _ in self.tests], [i for i, _ in self.skipped]):
            self.assertEqual(sorted(i for i in set(ids) if ids.count(i) > 1), [])

    def test_only_rows_are_named(self):
        known = {i for i, _ in self.rows}
        self.assertEqual([i for i, _ in self.tests + self.skipped if i not in known], [])

    def test_a_test_stands_in_the_file_of_its_area(self):
        area = dict(self.rows)
        wrong = [(i, name) for i, name in self.tests if name != "test_%s.py" % area[i].replace("-", "_")]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    conf.main()
