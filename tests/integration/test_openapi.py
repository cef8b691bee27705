# SPDX-License-Identifier: Apache-2.0
# run: limit=180
"""The description of the HTTP API, judged by two validators that know nothing of us."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402

PRINTER = os.path.join(os.path.abspath(sbx.BUILD), "tests", "unit", "test_openapi")
PACKAGES = ("@apidevtools/swagger-parser@10.1.1", "@seriousme/openapi-schema-validator@2.11.0")
JUDGE = """
import SwaggerParser from "@apidevtools/swagger-parser";
import { Validator } from "@seriousme/openapi-schema-validator";
const schema = await new Validator().validate(process.argv[2]);
if (!schema.valid) { console.log(JSON.stringify(schema.errors)); process.exit(1); }
const api = await SwaggerParser.validate(process.argv[2]);
console.log(api.openapi, Object.keys(api.paths).length);
"""


class OpenApi(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="sbx-openapi-")
        self.addCleanup(shutil.rmtree, self.dir)
        for tool in ("node", "npm"):
            if not shutil.which(tool):
                self.skipTest("there is no " + tool)
        try:
            got = subprocess.run(["npm", "install", "--prefix", self.dir, "--no-audit", "--no-fund", "--silent",
                                  "--ignore-scripts", *PACKAGES], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            self.skipTest("the npm registry does not answer")
        if got.returncode:
            self.skipTest("npm cannot install the validators: " + " ".join(got.stdout.split())[:200])

    def judge(self, text):
        path, script = os.path.join(self.dir, "openapi.json"), os.path.join(self.dir, "judge.mjs")
        for name, content in ((path, text), (script, JUDGE)):
            with open(name, "w", encoding="utf-8") as f:
                f.write(content)
        return subprocess.run(["node", script, path], cwd=self.dir, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)

    def test_two_validators_accept_it(self):
        text = subprocess.run([PRINTER, "--print"], stdout=subprocess.PIPE, text=True, check=True).stdout
        got = self.judge(text)
        self.assertEqual(got.returncode, 0, got.stdout[-2000:])
        self.assertTrue(got.stdout.startswith("3.1.0 "), got.stdout)
        # And they can say no.
        got = self.judge(text.replace('"#/components/schemas/RunPage"', '"#/components/schemas/Nothing"'))
        self.assertNotEqual(got.returncode, 0)
        got = self.judge(text.replace('"in":"path"', '"in":"nowhere"'))
        self.assertNotEqual(got.returncode, 0)


if __name__ == "__main__":
    sbx.main()
