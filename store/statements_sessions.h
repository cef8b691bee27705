/* SPDX-License-Identifier: Apache-2.0 */
/* The statements about sessions and snapshots; a part of statements.h, which says how to read it.
 */
#ifndef SBX_STORE_STATEMENTS_SESSIONS_H
#define SBX_STORE_STATEMENTS_SESSIONS_H

/* clang-format off */

/* X(member of struct store_session, column): behind the row number, texts first. */
#define STORE_SESSION_TEXTS(X)                                                                  \
	X(id, "id") X(user, "owner") X(door, "door") X(name, "name") X(entry, "entry")          \
	X(spec, "spec") X(runtime, "runtime") X(policy_hash, "policy_hash")                     \
	X(cloned_from, "cloned_from") X(unsynced_boot, "unsynced_boot")
#define STORE_SESSION_NUMBERS(X)                                                                \
	X(uid, "uid") X(created_us, "created_us") X(expires_us, "expires_us")                   \
	X(changed_us, "changed_us") X(ending_us, "ending_us")
#define SESSION_COLUMN(member, column) ", " column
#define SESSION_ROW                                                                             \
	"rid" STORE_SESSION_TEXTS(SESSION_COLUMN) STORE_SESSION_NUMBERS(SESSION_COLUMN)         \
	", concurrent"
#define SNAPSHOT_ROW "rid, id, name, session_id, digest, created_us, bytes, files"

#define STORE_SESSION_STATEMENTS(X)                                                             \
X(SESSION_INSERT, NULL,                                                                         \
  "INSERT INTO sessions (id, owner, door, name, entry, spec, runtime, policy_hash, "            \
  "cloned_from, unsynced_boot, uid, created_us, expires_us, changed_us, ending_us, concurrent) VALUES "        \
  "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) "                    \
  "ON CONFLICT (owner, entry) DO NOTHING RETURNING rid")                                        \
X(SESSION_GET, "sqlite_autoindex_sessions_1 (id=?)",                                            \
  "SELECT " SESSION_ROW " FROM sessions WHERE id = $1")                                         \
X(SESSION_GET_ROW, "PRIMARY KEY", "SELECT " SESSION_ROW " FROM sessions WHERE rid = $1")        \
X(SESSION_GET_ENTRY, "sqlite_autoindex_sessions_2 (owner=? AND entry=?)",                       \
  "SELECT " SESSION_ROW " FROM sessions WHERE owner = $1 AND entry = $2")                       \
X(SESSION_LIST, "PRIMARY KEY",                                                                  \
  "SELECT " SESSION_ROW " FROM sessions WHERE rid > $1 ORDER BY rid LIMIT $2")                  \
X(SESSION_LIST_OWNER, "sessions_owner (owner=? AND rid>?)",                                     \
  "SELECT " SESSION_ROW " FROM sessions WHERE owner = $1 AND rid > $2 ORDER BY rid LIMIT $3")   \
X(SESSION_LIST_BEFORE, "sessions_owner (owner=? AND rid<?)",                                    \
  "SELECT " SESSION_ROW " FROM sessions WHERE owner = $1 AND rid < $2 "                         \
  "ORDER BY rid DESC LIMIT $3")                                                                 \
X(SESSION_TIMES, "sqlite_autoindex_sessions_1 (id=?)",                                          \
  "UPDATE sessions SET expires_us = $1, ending_us = $2, "                                       \
  "changed_us = CASE WHEN changed_us >= $3 THEN changed_us + 1 ELSE $3 END WHERE id = $4 "      \
  "RETURNING rid, owner")                                                                       \
X(SESSION_DROP, "sqlite_autoindex_sessions_1 (id=?)",                                           \
  "DELETE FROM sessions WHERE id = $1 RETURNING rid, owner")                                    \
X(SESSION_RUNS, "runs_live_session (session_id=?",                                           \
  "SELECT COUNT(*) FROM runs WHERE session_id = $1 AND phase IN (1, 2, 3) AND phase < 4")       \
X(SESSION_RUNS_ACTIVE, "runs_live_session (session_id=?",                                           \
  "SELECT COUNT(*) FROM runs WHERE session_id = $1 AND phase IN (2, 3) AND phase < 4")          \
X(SESSION_EXPIRES, "sessions_expires",                                                          \
  "SELECT " SESSION_ROW " FROM sessions WHERE expires_us > 0 AND ending_us = 0 "                \
  "ORDER BY expires_us LIMIT $1")                                                               \
X(SESSION_ENDING, "sessions_ending (ending_us>?",                                               \
  "SELECT " SESSION_ROW " FROM sessions WHERE ending_us > 0 "                                   \
  "AND (ending_us, rid) > ($1, $2) ORDER BY ending_us, rid LIMIT $3")                           \
X(SESSION_UNSYNCED, "sessions_unsynced (unsynced_boot=?)",                                      \
  "SELECT " SESSION_ROW " FROM sessions WHERE unsynced_boot IN ($1, '') "                       \
  "AND ending_us < $2 LIMIT $3")                                                                \
X(SESSION_TORN, "sessions_unsynced",                                                            \
  "SELECT " SESSION_ROW " FROM sessions WHERE unsynced_boot IS NOT NULL "                       \
  "AND unsynced_boot NOT IN ($1, '') AND ending_us < $2 ORDER BY unsynced_boot LIMIT $3")       \
X(SESSION_MARK, "sqlite_autoindex_sessions_1 (id=?)",                                           \
  "UPDATE sessions SET unsynced_boot = $1 WHERE id = $2 AND ending_us < $3")                    \
X(SESSION_UNCANCELLED, "runs_live_session (session_id=?",                                           \
  "SELECT id FROM runs WHERE session_id = $1 AND phase IN (1, 2, 3) AND phase < 4 "             \
  "AND cancel = 0")                                                                             \
X(SNAPSHOT_INSERT, NULL,                                                                        \
  "INSERT INTO snapshots (id, name, session_id, digest, created_us, bytes, files) "             \
  "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (session_id, name) DO NOTHING "              \
  "RETURNING rid")                                                                              \
X(SNAPSHOT_GET, "sqlite_autoindex_snapshots_1 (id=?)",                                          \
  "SELECT " SNAPSHOT_ROW " FROM snapshots WHERE id = $1 AND session_id = $2")                   \
X(SNAPSHOT_GET_NAME, "sqlite_autoindex_snapshots_2 (session_id=? AND name=?)",                  \
  "SELECT " SNAPSHOT_ROW " FROM snapshots WHERE name = $1 AND session_id = $2")                 \
X(SNAPSHOT_GET_ROW, "PRIMARY KEY", "SELECT " SNAPSHOT_ROW " FROM snapshots WHERE rid = $1")     \
X(SNAPSHOT_LIST, "snapshots_session (session_id=? AND rid>?)",                                  \
  "SELECT " SNAPSHOT_ROW " FROM snapshots WHERE session_id = $1 AND rid > $2 "                  \
  "ORDER BY rid LIMIT $3")                                                                      \
X(SNAPSHOT_DROP, "sqlite_autoindex_snapshots_1 (id=?)",                                         \
  "DELETE FROM snapshots WHERE id = $1 RETURNING rid, session_id")                              \
X(SNAPSHOTS_DROP, "snapshots_session (session_id=?)",                                           \
  "DELETE FROM snapshots WHERE session_id = $1")                                                \
X(SNAPSHOT_TOTALS, "snapshots_session (session_id=?)",                                          \
  "SELECT COUNT(*), COALESCE(CAST(SUM(bytes) AS BIGINT), 0) FROM snapshots "                    \
  "WHERE session_id = $1")                                                                      \
X(SNAPSHOT_KNOWN, "sqlite_autoindex_snapshots_1 (id=?)",                                        \
  "SELECT 1 FROM snapshots WHERE id = $1")

/* clang-format on */

#endif
