# SPDX-License-Identifier: Apache-2.0
"""The database of a state directory, for what no door can make or show."""
import os
import sqlite3

import sbx


def sql(state, text, *args):
    c = sqlite3.connect("file:%s/state.db?mode=ro" % state, uri=True, timeout=20 * sbx.SLOW)
    try:
        return c.execute(text, args).fetchall()
    finally:
        c.close()


def change(state, text, *args):
    """Something that the service would never write; at least one row must be concerned."""
    c = sqlite3.connect(os.path.join(state, "state.db"), timeout=20 * sbx.SLOW)
    try:
        n = c.execute(text, args).rowcount
        c.commit()
    finally:
        c.close()
    assert n != 0, "no row: %s %s" % (text, args)
    os.utime(os.path.join(state, "notify/feed"))
