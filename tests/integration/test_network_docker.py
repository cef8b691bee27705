# SPDX-License-Identifier: Apache-2.0
# run: limit=400
"""Network policy allowlist in containers of a real engine: all that holds for the runtime namespace, and besides what
an engine and its rules could have to do with it."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_network as network  # noqa: E402
from test_network import nethosts, sbx  # noqa: E402
import engine  # noqa: E402

PYTHON = "python:3.11-slim"
E = None


def setUpModule():
    global E
    if engine.why_not():
        raise unittest.SkipTest(engine.why_not())
    E = engine.Engine().start()
    unittest.addModuleCleanup(E.close)
    E.make_image(PYTHON, engine.root_with_python())


class Network(network.Network):
    SETTINGS = {"default_runtime": "docker", "docker_pull": "false", "docker_default_image": PYTHON}

    def mount(self, *targets, **settings):
        return super().mount(*targets, **{**self.SETTINGS, "docker_host": E.socket, **settings})


if __name__ == "__main__":
    sbx.main()
