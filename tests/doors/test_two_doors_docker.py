# SPDX-License-Identifier: Apache-2.0
# run: limit=300
"""The table of both doors once more, with every run in a container of a real engine: a run is the same whichever
runtime carried it out."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_two_doors as two  # noqa: E402
from test_two_doors import sbx  # noqa: E402
import dockerkit  # noqa: E402
from dockerkit import PYTHON  # noqa: E402

E = None


def setUpModule():
    global E
    E = dockerkit.start(PYTHON)


def in_docker(document):
    """The same document with an image that the engine has."""
    if isinstance(document, dict):
        return {**document, "base_image": PYTHON} if document.get("base_image") == "host" else document
    raw = document if isinstance(document, bytes) else document.encode()
    for text in (b'"base_image":"host"', b'"base_image": "host"'):
        raw = raw.replace(text, b'"base_image":' + json.dumps(PYTHON).encode())
    return raw


class House(two.House):
    @classmethod
    def setUpClass(cls):
        cls.settings = dockerkit.settings(E, **{**two.House.settings, "default_runtime": "docker",
                                                "docker_default_image": PYTHON, "warm_runners": 1})
        super().setUpClass()


class Runs(House):
    row = two.Runs.row

    def test_what_is_no_image_of_an_engine(self):
        for door in self.p.both:
            with self.assertRaises(two.doors.Refused) as c:
                door.submit(two.spec("true"))
            self.assertEqual((c.exception.code, c.exception.details["field"]), ("invalid_spec", "base_image"))


two.fill(Runs, [r._replace(document=in_docker(r.document)) for r in two.RUNS])

if __name__ == "__main__":
    sbx.main()
