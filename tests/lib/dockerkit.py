# SPDX-License-Identifier: Apache-2.0
"""What tests with a container engine begin with: an engine for the module, with images by name, the settings that lead
to it, and how runs in it are looked at."""
import unittest

import engine

SHELL, BARE, PYTHON = "shell:1", "bare:1", "python:3.11-slim"
ROOTS = {SHELL: engine.root_with_shell, BARE: engine.root_without_shell, PYTHON: engine.root_with_python}


def start(*images, why_not=None, closing=unittest.addModuleCleanup, **options):
    """In setUpModule(): an engine that has these images, until the module's tests are over. They are skipped when there
    can be none, or when why_not says why they cannot be done. In setUpClass(): with closing=cls.addClassCleanup."""
    why = engine.why_not() or why_not
    if why:
        raise unittest.SkipTest(why)
    e = engine.Engine(**options)
    closing(e.close)  # also of one that does not come up
    e.start()
    for name in images:
        e.make_image(name, ROOTS[name]())
    return e


def settings(e, **more):
    """Of a service that uses this engine (or what stands in front of it), and fetches nothing."""
    return {"docker_host": e.socket, "docker_pull": "false", **more}


class Runs:
    """For a TestCase."""

    def ended(self, run, phase="completed", reason="completed", code=0):
        run.wait(60)
        doc = run.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"], doc["exit_code"]), (phase, reason, code),
                         (doc["message"], run.log))
        return doc
