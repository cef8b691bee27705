# SPDX-License-Identifier: Apache-2.0
import conf
from conf import api


class Health(conf.Case):
    def test_T010_public_health(self):
        answer = self.a.get("/health/public", login=api.NOBODY)
        self.assertEqual(answer.status, 200)
        doc = answer.json
        self.assertIs(doc["ok"], True)
        self.assertIsInstance(doc["store"], dict)
        self.assertIsInstance(doc["redis"], dict)
        mine = self.a.get("/health")
        self.assertEqual(mine.status, 200)
        self.assertLessEqual({"ok", "store", "redis"}, set(mine.json))


if __name__ == "__main__":
    conf.main()
