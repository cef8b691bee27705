/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every statement of the store, once: X(NAME, plan, text).
 *
 * `plan` is what EXPLAIN QUERY PLAN must mention, so that a query cannot come to grow with the
 * number of finished runs unseen (tests/unit/test_store_plans.c); a plan that begins with '='
 * is an exception and gives its reason. Parameters appear first in the order of their numbers.
 * "phase < 4" beside "phase = 1" says nothing new, nor does "finished_us > 0" beside a phase that
 * is terminal (a transition sets it there and nowhere else): they are conditions of partial
 * indices, which SQLite recognises only when they are spelled out.
 */
#ifndef SBX_STORE_STATEMENTS_H
#define SBX_STORE_STATEMENTS_H

#include "store/statements_sessions.h"

/* clang-format off */

/* X(type, member of struct store_run, column), behind the row number. */
#define STORE_RUN_COLUMNS(X)                                  \
	X(TEXT, id, "id")                                     \
	X(TEXT, user, "owner")                                \
	X(INT64, uid, "uid")                                  \
	X(TEXT, door, "door")                                 \
	X(PHASE, phase, "phase")                              \
	X(TEXT, reason, "reason")                             \
	X(TEXT, message, "message")                           \
	X(TEXT, spec_version, "spec_version")                 \
	X(TEXT, runtime, "runtime")                           \
	X(TEXT, runtime_version, "runtime_version")           \
	X(TEXT, base_image, "base_image")                     \
	X(TEXT, image_digest, "image_digest")                 \
	X(TEXT, policy_hash, "policy_hash")                   \
	X(TEXT, trust_level, "trust_level")                   \
	X(TEXT, network_policy, "network_policy")             \
	X(TEXT, session_id, "session_id")                     \
	X(TEXT, persona_id, "persona_id")                     \
	X(TEXT, workspace_id, "workspace_id")                 \
	X(TEXT, workspace_group_id, "workspace_group_id")     \
	X(TEXT, scope_snapshot_id, "scope_snapshot_id")       \
	X(TEXT, name, "name")                                 \
	X(TEXT, labels, "labels")                             \
	X(BOOL, interactive, "interactive")                   \
	X(INT64, generation, "generation")                    \
	X(TEXT, claim_owner, "claim_owner")                   \
	X(TEXT, claim_boot, "claim_boot")                     \
	X(INT64, claim_expires_us, "claim_expires_us")        \
	X(CANCEL, cancel, "cancel")                           \
	X(INT64, created_us, "created_us")                    \
	X(INT64, started_us, "started_us")                    \
	X(INT64, finished_us, "finished_us")                  \
	X(INT64, queue_expires_us, "queue_expires_us")        \
	X(INT64, estimated_start_us, "estimated_start_us")    \
	X(INT64, changed_us, "changed_us")                    \
	X(BOOL, has_exit_code, "has_exit_code")               \
	X(INT, exit_code, "exit_code")                        \
	X(TEXT, usage, "usage_json")                          \
	X(TEXT, idempotency_key, "idempotency_key")           \
	X(INT64, log_bytes, "log_bytes")                      \
	X(INT64, artifact_bytes, "artifact_bytes")            \
	X(INT64, artifact_count, "artifact_count")            \
	X(BOOL, artifacts_gone, "artifacts_gone")             \
	X(INT64, reserved_memory_mb, "reserved_memory_mb")    \
	X(INT64, reserved_cpu_milli, "reserved_cpu_milli")

#define COMMA_COLUMN(type, member, column) ", " column
#define RUN_ROW "rid" STORE_RUN_COLUMNS(COMMA_COLUMN)
#define RUN_KEY "rid, id, uid, phase, created_us, changed_us, interactive, session_id, " \
	"has_exit_code"

#define QUEUED "phase = 1 AND phase < 4"
#define ACTIVE "phase IN (2, 3) AND phase < 4"
#define PK     "PRIMARY KEY"
#define BY_ID  "sqlite_autoindex_runs_1 (id=?)"

/* A moment later than the row's last change, whatever the clock did: N is the parameter. */
#define LATER(n) "CASE WHEN changed_us >= $" n " THEN changed_us + 1 ELSE $" n " END"

/* store_run_list: one statement for each index that can lead, the other filters behind it. */
#define ANY(n, column) "($" n " IS NULL OR " column " = $" n ")"
#define IS(n, column)  column " = $" n
#define LIST(owner, session, persona, workspace, phase)                                         \
	"SELECT " RUN_ROW " FROM runs WHERE rid < $1 AND " owner("2", "owner") " AND "          \
	session("3", "session_id") " AND " persona("4", "persona_id") " AND "                   \
	workspace("5", "workspace_id") " AND " phase " ORDER BY rid DESC LIMIT $7"
#define PHASE_ANY  "($6 = 0 OR phase = $6)"
#define PHASE_LIVE "phase = $6 AND phase < 4"
#define PHASE_DONE "phase = $6 AND finished_us > 0"

/*
 * store_run_keys_by: $1 is the run before, $2 what they have, $3 the owner. Everybody's runs of a
 * phase come in the order of the index that holds them, by a column that never changes there: those
 * that have the same in it as the run before (should that be gone, the next), and those that have
 * more.
 */
#define KEYS_BY(from, after, value, owner, order)                                               \
	"SELECT " RUN_KEY " FROM " from " WHERE " after " AND " value " AND " owner             \
	" ORDER BY " order " LIMIT $4"
#define ANYBODY "$3 IS NULL"
#define PLACE(column, first)                                                                    \
	"(CASE WHEN $1 > 0 THEN (SELECT before." column " FROM runs AS before "                 \
	"WHERE before.rid >= $1 ORDER BY before.rid LIMIT 1) ELSE " first " END)"
#define KEYS_ALL(column, first, value)                                                          \
	"SELECT " RUN_KEY ", " column " FROM runs WHERE rid > $1 AND " value " AND " ANYBODY     \
	" AND " column " = " PLACE(column, first) " UNION ALL "                                 \
	"SELECT " RUN_KEY ", " column " FROM runs WHERE " column " > " PLACE(column, first)     \
	" AND " value " ORDER BY " column ", rid LIMIT $4"
#define BY_LIVE     "phase = $2 AND phase < 4"
#define BY_DONE     "phase = $2 AND finished_us > 0"
#define RUNS_LABELS "run_labels, runs"

/* store_started_*: the live rows, and those of each terminal phase in the order of an index. */
#define WHERE_STARTED(phase, owner, workspace, grp, scope, image)                               \
	" FROM runs WHERE started_us >= $1 AND started_us <= $2 AND ($3 = 0 OR $3 = " phase     \
	") AND " owner("4", "owner") " AND " workspace("5", "workspace_id") " AND "             \
	grp("6", "workspace_group_id") " AND " scope("7", "scope_snapshot_id") " AND "          \
	image("8", "image_digest") " AND "
#define DONE(select, phase, ...)                                                                \
	select WHERE_STARTED(phase, __VA_ARGS__) "phase = " phase " AND finished_us > 0"
#define LIVE(select, ...)                                                                       \
	select WHERE_STARTED("phase", __VA_ARGS__) "phase IN (1, 2, 3) AND phase < 4"
#define STARTED(order, ...)                                                                     \
	LIVE("SELECT rid, started_us", __VA_ARGS__) " UNION ALL "                               \
	DONE("SELECT rid, started_us", "4", __VA_ARGS__) " UNION ALL "                          \
	DONE("SELECT rid, started_us", "5", __VA_ARGS__) " UNION ALL "                          \
	DONE("SELECT rid, started_us", "6", __VA_ARGS__) " UNION ALL "                          \
	DONE("SELECT rid, started_us", "7", __VA_ARGS__)                                        \
	" ORDER BY started_us " order ", rid " order " LIMIT $9 OFFSET $10"
#define STARTED_COUNT(...)                                                                      \
	"SELECT (" LIVE("SELECT COUNT(*)", __VA_ARGS__) ") + ("                                 \
	DONE("SELECT COUNT(*)", "4", __VA_ARGS__) ") + ("                                       \
	DONE("SELECT COUNT(*)", "5", __VA_ARGS__) ") + ("                                       \
	DONE("SELECT COUNT(*)", "6", __VA_ARGS__) ") + ("                                       \
	DONE("SELECT COUNT(*)", "7", __VA_ARGS__) ")"
/* X(NAME, index, which of the filters leads) */
#define STORE_STARTED(X)                                                                        \
	X(ALL, "runs_started (phase=? AND started_us>", ANY, ANY, ANY, ANY, ANY)                \
	X(OWNER, "runs_started_owner (owner=? AND phase=? AND started_us>",                     \
	  IS, ANY, ANY, ANY, ANY)                                                               \
	X(WORKSPACE, "runs_started_workspace (workspace_id=? AND phase=? AND started_us>",      \
	  ANY, IS, ANY, ANY, ANY)                                                               \
	X(GROUP, "runs_started_group (workspace_group_id=? AND phase=? AND started_us>",        \
	  ANY, ANY, IS, ANY, ANY)                                                               \
	X(SCOPE, "runs_started_scope (scope_snapshot_id=? AND phase=? AND started_us>",         \
	  ANY, ANY, ANY, IS, ANY)                                                               \
	X(IMAGE, "runs_started_image (image_digest=? AND phase=? AND started_us>",              \
	  ANY, ANY, ANY, ANY, IS)

#define STARTED_ROWS(name, plan, ...)                                                           \
	X(STARTED_##name##_DESC, plan, STARTED("DESC", __VA_ARGS__))                            \
	X(STARTED_##name##_ASC, plan, STARTED("ASC", __VA_ARGS__))                              \
	X(STARTED_##name##_COUNT, plan, STARTED_COUNT(__VA_ARGS__))

#define IDEM_WHERE                                                                              \
	" FROM idempotency WHERE created_us >= $1 AND created_us <= $2 AND "                    \
	ANY("3", "endpoint") " AND " ANY("4", "owner") " AND " ANY("5", "idem_key")
#define IDEM_PAGE(order)                                                                        \
	"SELECT endpoint, owner, idem_key, fingerprint, object_id, created_us" IDEM_WHERE       \
	" ORDER BY created_us " order ", rid " order " LIMIT $6 OFFSET $7"

/* How long runs took: the bounds of a histogram. X(number, microseconds) */
#define STORE_BUCKET_LIST(X)                                                                    \
	X(0, 10000) X(1, 50000) X(2, 100000) X(3, 500000) X(4, 1000000) X(5, 5000000)           \
	X(6, 10000000) X(7, 30000000) X(8, 60000000) X(9, 300000000) X(10, 600000000)           \
	X(11, 3600000000)
#define BUCKET_NAME(n, us) ", b" #n
#define BUCKET_ADD(n, us)  ", b" #n " = run_ends.b" #n " + excluded.b" #n

#define STORE_STATEMENTS(X)                                                                     \
X(RUN_INSERT, NULL,                                                                             \
  "INSERT INTO runs (queue_boot" STORE_RUN_COLUMNS(COMMA_COLUMN) ") VALUES "                    \
  "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, "\
  "$21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, "  \
  "$39, $40, $41, $42, $43, $44, $45) RETURNING rid")                                           \
X(SPEC_INSERT, NULL, "INSERT INTO specs (rid, spec) VALUES ($1, $2)")                           \
X(SPEC_GET, PK,                                                                                 \
  "SELECT spec FROM specs WHERE rid = (SELECT rid FROM runs WHERE id = $1)")                    \
X(RUN_GET, BY_ID, "SELECT " RUN_ROW " FROM runs WHERE id = $1")                                 \
X(RUN_GET_ROW, PK, "SELECT " RUN_ROW " FROM runs WHERE rid = $1")                               \
X(KEY_GET, BY_ID, "SELECT " RUN_KEY ", owner FROM runs WHERE id = $1")                          \
X(KEY_GET_ROW, PK, "SELECT " RUN_KEY ", owner FROM runs WHERE rid = $1")                        \
X(KEY_LATEST, PK, "SELECT " RUN_KEY " FROM runs WHERE rid > 0 ORDER BY rid DESC LIMIT 1")       \
X(KEY_LATEST_OWNER, "runs_owner",                                                               \
  "SELECT " RUN_KEY " FROM runs WHERE owner = $1 ORDER BY rid DESC LIMIT 1")                    \
X(KEYS, PK, "SELECT " RUN_KEY " FROM runs WHERE rid > $1 ORDER BY rid LIMIT $2")                \
X(KEYS_OWNER, "runs_owner",                                                                     \
  "SELECT " RUN_KEY " FROM runs WHERE rid > $1 AND owner = $2 ORDER BY rid LIMIT $3")           \
X(KEYS_LIVE, "runs_live (phase=? AND owner=? AND rid>?)",                                       \
  KEYS_ALL("owner", "''", BY_LIVE))                                                             \
X(KEYS_LIVE_OWNER, "runs_live (phase=? AND owner=? AND rid>?)",                                 \
  KEYS_BY("runs", "rid > $1", BY_LIVE, "owner = $3", "rid"))                                    \
X(KEYS_DONE, "runs_started (phase=? AND started_us=? AND rid>?)",                               \
  KEYS_ALL("started_us", "-1", BY_DONE))                                                        \
X(KEYS_DONE_OWNER, "runs_owner_done (owner=? AND phase=? AND rid>?)",                           \
  KEYS_BY("runs", "rid > $1", BY_DONE, "owner = $3", "rid"))                                    \
X(KEYS_SESSION, "runs_session (session_id=? AND rid>?)",                                        \
  KEYS_BY("runs", "rid > $1", "session_id = $2", ANY("3", "owner"), "rid"))                     \
X(KEYS_LABEL, "run_labels_number (number=? AND run>?)",                                         \
  KEYS_BY(RUNS_LABELS, "run > $1", "number = $2 AND rid = run", ANYBODY, "run"))                \
X(KEYS_LABEL_OWNER, "sqlite_autoindex_run_labels_1 (holder=? AND number=? AND run>?)",          \
  KEYS_BY(RUNS_LABELS, "run > $1", "number = $2 AND rid = run", "holder = $3", "run"))          \
X(LABEL_NEXT, "run_labels_number (number>?)",                                                   \
  "SELECT number, label FROM run_labels WHERE number > $1 AND ($2 IS NULL OR holder = $2) "     \
  "ORDER BY number, run LIMIT 1")                                                               \
X(LABEL_NEXT_OWNER, "sqlite_autoindex_run_labels_1 (holder=? AND number>?)",                    \
  "SELECT number, label FROM run_labels WHERE number > $1 AND holder = $2 "                     \
  "ORDER BY number, run LIMIT 1")                                                               \
X(USER_NEXT, PK,                                                                                \
  "SELECT num, owner FROM usage_totals WHERE num > $1 AND runs > 0 ORDER BY num LIMIT 1")       \
X(USER_FIND, "sqlite_autoindex_usage_totals_1 (owner=?)",                                       \
  "SELECT num, owner FROM usage_totals WHERE owner = $1 AND runs > 0")                          \
X(USER_GET, PK, "SELECT num, owner FROM usage_totals WHERE num = $1")                           \
X(LOG_FACTS, BY_ID,                                                                             \
  "SELECT phase, started_us, finished_us, has_exit_code, exit_code, runtime, reason "           \
  "FROM runs WHERE id = $1")                                                                    \
X(CAS_READ, BY_ID,                                                                              \
  "SELECT rid, owner, phase, generation, log_bytes, COALESCE(runtime, ''), started_us "          \
  "FROM runs WHERE id = $1")                                                                    \
X(CAS_WRITE, PK,                                                                                \
  "UPDATE runs SET phase = $1, reason = COALESCE($2, reason), message = COALESCE($3, message), "\
  "usage_json = COALESCE($4, usage_json), runtime_version = COALESCE($5, runtime_version), "    \
  "image_digest = COALESCE($6, image_digest), "                                                 \
  "started_us = CASE WHEN $7 >= 0 THEN $7 ELSE started_us END, "                                \
  "finished_us = CASE WHEN $8 >= 0 THEN $8 ELSE finished_us END, "                              \
  "has_exit_code = CASE WHEN $9 = 1 THEN 1 ELSE has_exit_code END, "                            \
  "exit_code = CASE WHEN $9 = 1 THEN $10 ELSE exit_code END, "                                  \
  "log_bytes = CASE WHEN $11 > 0 THEN $11 ELSE log_bytes END, "                                 \
  "artifact_bytes = CASE WHEN $12 > 0 THEN $12 ELSE artifact_bytes END, "                       \
  "artifact_count = CASE WHEN $13 > 0 THEN $13 ELSE artifact_count END, "                       \
  "generation = generation + $14, "                                                             \
  "claim_owner = CASE WHEN $15 = 1 THEN $16 ELSE claim_owner END, "                             \
  "claim_boot = CASE WHEN $15 = 1 THEN $17 ELSE claim_boot END, "                               \
  "claim_expires_us = CASE WHEN $15 = 1 THEN $18 ELSE claim_expires_us END, "                   \
  "queue_expires_us = CASE WHEN $19 > 0 THEN $19 ELSE queue_expires_us END, "                   \
  "queue_boot = CASE WHEN $19 > 0 THEN $20 ELSE queue_boot END, "                               \
  "changed_us = " LATER("21") " WHERE rid = $22 AND phase = $23 AND generation = $24 "          \
  "RETURNING rid")                                                                              \
X(RENEW, BY_ID,                                                                                 \
  "UPDATE runs SET claim_expires_us = $1 WHERE id = $2 AND generation = $3 "                    \
  "AND claim_owner IS NOT NULL AND phase < 4 RETURNING rid")                                    \
X(CANCEL, BY_ID,                                                                                \
  "UPDATE runs SET cancel = $1, changed_us = " LATER("2") " WHERE id = $3 AND phase < 4 "       \
  "AND cancel < $1 RETURNING rid, owner, phase")                                                \
X(SET_RESERVED, BY_ID,                                                                          \
  "UPDATE runs SET reserved_memory_mb = $1, reserved_cpu_milli = $2 WHERE id = $3 "             \
  "RETURNING rid")                                                                              \
X(RESERVED, "runs_live",                                                                        \
  "SELECT COALESCE(CAST(SUM(reserved_memory_mb) AS BIGINT), 0), "                               \
  "COALESCE(CAST(SUM(reserved_cpu_milli) AS BIGINT), 0) FROM runs WHERE " ACTIVE)               \
X(PHASE_ADD, NULL,                                                                              \
  "INSERT INTO phase_counts (phase, runtime, n) VALUES ($1, $2, 1) "                            \
  "ON CONFLICT (phase, runtime) DO UPDATE SET n = phase_counts.n + 1")                          \
X(PHASE_MOVE, NULL,                                                                             \
  "INSERT INTO phase_counts (phase, runtime, n) VALUES ($1, $2, 1), ($3, $2, -1) "              \
  "ON CONFLICT (phase, runtime) DO UPDATE SET n = phase_counts.n + excluded.n")                 \
X(PHASE_COUNTS, "=a row for each phase and runtime, and all are wanted",                        \
  "SELECT phase, runtime, n FROM phase_counts ORDER BY phase, runtime")                         \
X(COUNT_ALL, "sqlite_autoindex_phase_counts_1 (phase=?)",                                       \
  "SELECT COALESCE(CAST(SUM(n) AS BIGINT), 0) FROM phase_counts WHERE phase IN ($1, $2)")       \
X(END_ADD, NULL,                                                                                \
  "INSERT INTO run_ends (runtime, phase, reason, runs, timed, sum_us"                           \
  STORE_BUCKET_LIST(BUCKET_NAME) ") "                                                           \
  "VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) "     \
  "ON CONFLICT (runtime, phase, reason) DO UPDATE SET runs = run_ends.runs + 1, "               \
  "timed = run_ends.timed + excluded.timed, sum_us = run_ends.sum_us + excluded.sum_us"         \
  STORE_BUCKET_LIST(BUCKET_ADD))                                                                \
X(ENDS, "=a row for each runtime, phase and reason, and all are wanted",                        \
  "SELECT runtime, phase, reason, runs, timed, sum_us" STORE_BUCKET_LIST(BUCKET_NAME)           \
  " FROM run_ends ORDER BY runtime, phase, reason")                                             \
X(COUNTER_ADD, NULL,                                                                            \
  "INSERT INTO counters (name, n) VALUES ($1, $2) "                                             \
  "ON CONFLICT (name) DO UPDATE SET n = counters.n + excluded.n")                               \
X(COUNTERS, "=a row for each counter, and all are wanted",                                      \
  "SELECT name, n FROM counters ORDER BY name")                                                 \
X(COUNT_OWNER, "runs_live (phase=? AND owner=?)",                                               \
  "SELECT COUNT(*) FROM runs WHERE phase IN ($1, $2) AND owner = $3 AND phase < 4")             \
X(COUNT_PERSONA, "runs_live_persona",                                                           \
  "SELECT COUNT(*) FROM runs WHERE phase IN ($1, $2) AND persona_id = $3 AND phase < 4")        \
X(COUNT_WORKSPACE, "runs_live_workspace",                                                       \
  "SELECT COUNT(*) FROM runs WHERE phase IN ($1, $2) AND workspace_id = $3 AND phase < 4")      \
X(COUNT_GROUP, "runs_live_group",                                                               \
  "SELECT COUNT(*) FROM runs WHERE phase IN ($1, $2) AND workspace_group_id = $3 AND phase < 4")\
X(QUEUE_NEXT_USER, "runs_live (phase=? AND owner>?)",                                           \
  "SELECT owner FROM runs WHERE owner > $1 AND " QUEUED " ORDER BY owner LIMIT 1")              \
X(QUEUE_HEAD, "runs_live (phase=? AND owner=? AND rid>?)",                                                \
  "SELECT " RUN_ROW " FROM runs WHERE owner = $1 AND rid > $2 AND " QUEUED " "                  \
  "ORDER BY rid LIMIT 1")                                                                       \
X(QUEUE_NEXT, "runs_live (phase=? AND owner=? AND rid>?)",                                                \
  "SELECT " RUN_ROW " FROM runs WHERE rid IN (SELECT rid FROM runs WHERE owner = $1 "           \
  "AND rid > $2 AND " QUEUED " ORDER BY rid LIMIT 1000) AND (session_id IS NULL "               \
  "OR NOT EXISTS (SELECT 1 FROM runs AS other WHERE other.session_id = runs.session_id "        \
  "AND other.phase IN (2, 3) AND other.phase < 4) "                                             \
  "OR EXISTS (SELECT 1 FROM sessions WHERE sessions.id = runs.session_id "                      \
  "AND sessions.concurrent > 0)) ORDER BY rid LIMIT 1")                                         \
X(QUEUE_POSITION, "runs_live (phase=? AND owner=? AND rid<?)",                                  \
  "SELECT COUNT(*) FROM runs WHERE owner = $1 AND rid < $2 AND " QUEUED)                        \
X(QUEUE_LATE, "runs_queue_expiry (queue_boot=? AND queue_expires_us<?)",                        \
  "SELECT " RUN_ROW " FROM runs WHERE queue_boot = $1 AND queue_expires_us < $2 "               \
  "AND phase = 1 ORDER BY queue_expires_us LIMIT 1")                                            \
X(QUEUE_BEFORE_BOOT, "runs_queue_expiry (queue_boot<?)",                                        \
  "SELECT " RUN_ROW " FROM runs WHERE queue_boot < $1 AND phase = 1 LIMIT 1")                   \
X(QUEUE_AFTER_BOOT, "runs_queue_expiry (queue_boot>?)",                                         \
  "SELECT " RUN_ROW " FROM runs WHERE queue_boot > $1 AND phase = 1 LIMIT 1")                   \
X(LEASE_LATE, "runs_lease (claim_boot=? AND claim_expires_us<?)",                               \
  "SELECT " RUN_ROW " FROM runs WHERE claim_boot = $1 AND claim_expires_us < $2 "               \
  "AND claim_owner IS NOT NULL ORDER BY claim_expires_us LIMIT 1")                              \
X(LEASE_BEFORE_BOOT, "runs_lease (claim_boot<?)",                                               \
  "SELECT " RUN_ROW " FROM runs WHERE claim_boot < $1 AND claim_owner IS NOT NULL LIMIT 1")     \
X(LEASE_AFTER_BOOT, "runs_lease (claim_boot>?)",                                                \
  "SELECT " RUN_ROW " FROM runs WHERE claim_boot > $1 AND claim_owner IS NOT NULL LIMIT 1")     \
X(DEADLINES, "runs_queue_expiry",                                                               \
  "SELECT (SELECT queue_expires_us FROM runs WHERE queue_boot = $1 AND phase = 1 "              \
  "ORDER BY queue_expires_us LIMIT 1), "                                                        \
  "(SELECT 1 FROM runs WHERE queue_boot < $1 AND phase = 1 LIMIT 1), "                          \
  "(SELECT 1 FROM runs WHERE queue_boot > $1 AND phase = 1 LIMIT 1), "                          \
  "(SELECT claim_expires_us FROM runs WHERE claim_boot = $1 AND claim_owner IS NOT NULL "       \
  "ORDER BY claim_expires_us LIMIT 1), "                                                        \
  "(SELECT 1 FROM runs WHERE claim_boot < $1 AND claim_owner IS NOT NULL LIMIT 1), "            \
  "(SELECT 1 FROM runs WHERE claim_boot > $1 AND claim_owner IS NOT NULL LIMIT 1)")             \
X(LIST_ALL, PK, LIST(ANY, ANY, ANY, ANY, PHASE_ANY))                                            \
X(LIST_OWNER, "runs_owner (owner=?", LIST(IS, ANY, ANY, ANY, PHASE_ANY))                        \
X(LIST_SESSION, "runs_session (session_id=?", LIST(ANY, IS, ANY, ANY, PHASE_ANY))               \
X(LIST_PERSONA, "runs_persona (persona_id=?", LIST(ANY, ANY, IS, ANY, PHASE_ANY))               \
X(LIST_WORKSPACE, "runs_workspace (workspace_id=? AND owner=?",                                 \
  LIST(IS, ANY, ANY, IS, PHASE_ANY))                                                            \
X(LIST_LIVE, "runs_live (phase=?", LIST(ANY, ANY, ANY, ANY, PHASE_LIVE))                        \
X(LIST_OWNER_DONE, "runs_owner_done (owner=? AND phase=?",                                      \
  LIST(IS, ANY, ANY, ANY, PHASE_DONE))                                                          \
X(LIST_LABEL, "sqlite_autoindex_run_labels_1 (holder=? AND number=? AND run<?)",               \
  "SELECT " RUN_ROW " FROM run_labels, runs WHERE run < $1 AND holder = $2 AND number = $3 "    \
  "AND rid = run AND " ANY("4", "session_id") " AND " ANY("5", "persona_id") " AND "            \
  ANY("6", "workspace_id") " AND ($7 = 0 OR phase = $7) ORDER BY run DESC LIMIT $8")            \
X(LABEL_ADD, NULL,                                                                              \
  "INSERT INTO run_labels (holder, label, run, number) VALUES ($1, $2, $3, $4) "                \
  "ON CONFLICT (holder, number, run) DO NOTHING")                                               \
X(WORKSPACE_COUNT, "runs_workspace (workspace_id=? AND owner=?)",                               \
  "SELECT COUNT(*) FROM runs WHERE workspace_id = $1 AND owner = $2")                           \
STORE_STARTED(STARTED_ROWS)                                                                     \
X(META_GET, "sqlite_autoindex_meta_1", "SELECT value FROM meta WHERE name = $1")                \
X(META_SET, NULL,                                                                               \
  "INSERT INTO meta (name, value) VALUES ($1, $2) "                                             \
  "ON CONFLICT (name) DO UPDATE SET value = excluded.value")                                    \
X(IDEM_PUT, NULL,                                                                               \
  "INSERT INTO idempotency (endpoint, owner, idem_key, fingerprint, object_id, created_us) "    \
  "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (endpoint, owner, idem_key) DO UPDATE SET "      \
  "fingerprint = excluded.fingerprint, object_id = excluded.object_id, "                        \
  "created_us = excluded.created_us WHERE idempotency.created_us < $7 RETURNING created_us")    \
X(IDEM_GET, "sqlite_autoindex_idempotency_1",                                                   \
  "SELECT fingerprint, object_id, created_us FROM idempotency "                                 \
  "WHERE endpoint = $1 AND owner = $2 AND idem_key = $3 AND created_us >= $4")                  \
X(IDEM_DESC, "idempotency_age (created_us>? AND created_us<?)", IDEM_PAGE("DESC"))              \
X(IDEM_ASC, "idempotency_age (created_us>? AND created_us<?)", IDEM_PAGE("ASC"))                \
X(IDEM_COUNT, "idempotency_age (created_us>? AND created_us<?)", "SELECT COUNT(*)" IDEM_WHERE)  \
X(IDEM_PRUNE, PK,                                                                               \
  "DELETE FROM idempotency WHERE rid IN "                                                       \
  "(SELECT rid FROM idempotency WHERE created_us < $1 ORDER BY created_us LIMIT $2) "           \
  "RETURNING rid")                                                                              \
X(RUNS_OLD, PK,                                                                                 \
  "SELECT id, rid, created_us, phase >= 4 AND finished_us < $1 FROM runs "                      \
  "WHERE rid > $2 ORDER BY rid LIMIT 1000")                                                     \
X(RUN_REMOVE, BY_ID,                                                                            \
  "DELETE FROM runs WHERE id = $1 AND phase >= 4")                                              \
X(SPEC_REMOVE, PK,                                                                              \
  "DELETE FROM specs WHERE rid = $1")                                                           \
X(LABEL_REMOVE, "sqlite_autoindex_run_labels_1 (holder=? AND number=? AND run=?)",               \
  "DELETE FROM run_labels WHERE holder = $1 AND label = $2 AND run = $3 AND number = $4")                       \
X(PHASE_TAKE, NULL,                                                                             \
  "INSERT INTO phase_counts (phase, runtime, n) VALUES ($1, $2, -1) "                           \
  "ON CONFLICT (phase, runtime) DO UPDATE SET n = phase_counts.n - 1")                          \
X(ARTIFACT_PUT, NULL,                                                                           \
  "INSERT INTO artifacts (run_id, path, size) VALUES ($1, $2, $3) "                             \
  "ON CONFLICT (run_id, path) DO UPDATE SET size = excluded.size")                              \
X(ARTIFACT_LIST, "sqlite_autoindex_artifacts_1 (run_id=?)",                                     \
  "SELECT path, size FROM artifacts WHERE run_id = $1 ORDER BY path")                           \
X(ARTIFACT_SUM, "sqlite_autoindex_artifacts_1 (run_id=?)",                                      \
  "SELECT COUNT(*), COALESCE(CAST(SUM(size) AS BIGINT), 0) FROM artifacts WHERE run_id = $1")   \
X(ARTIFACT_DROP, "sqlite_autoindex_artifacts_1 (run_id=?)",                                     \
  "DELETE FROM artifacts WHERE run_id = $1")                                                    \
X(ARTIFACTS_SET, BY_ID,                                                                         \
  "UPDATE runs SET artifact_count = $1, artifact_bytes = $2, artifacts_gone = 0, "              \
  "changed_us = " LATER("3") " WHERE id = $4 RETURNING rid, owner, phase")                      \
X(ARTIFACTS_GONE, BY_ID,                                                                        \
  "UPDATE runs SET artifacts_gone = 1, changed_us = " LATER("1") " WHERE id = $2 "              \
  "RETURNING rid, owner, phase")                                                                \
X(ARTIFACTS_DUE, "runs_artifacts_due (finished_us<?)",                                          \
  "SELECT id FROM runs WHERE finished_us < $1 AND phase >= 4 AND artifact_count > 0 "           \
  "AND artifacts_gone = 0 ORDER BY finished_us LIMIT $2")                                       \
X(ARTIFACT_RUNS, "sqlite_autoindex_artifacts_1 (run_id>?)",                                     \
  "SELECT DISTINCT run_id FROM artifacts WHERE run_id > $1 ORDER BY run_id LIMIT $2")           \
X(ARTIFACT_FORGET, "sqlite_autoindex_artifacts_1 (run_id=? AND path=?)",                        \
  "DELETE FROM artifacts WHERE run_id = $1 AND path = $2")                                      \
X(USAGE_WRONG, "=by the janitor, now and then: all artifacts are added up",                     \
  "SELECT u.owner FROM usage_totals u WHERE u.artifact_bytes <> "                               \
  "(SELECT CAST(COALESCE(SUM(a.size), 0) AS BIGINT) FROM runs r "                               \
  "JOIN artifacts a ON a.run_id = r.id WHERE r.owner = u.owner) LIMIT $1")                      \
X(USAGE_REAL, "=of a user whose total is wrong: what there is of theirs is added up",           \
  "SELECT u.artifact_bytes, (SELECT CAST(COALESCE(SUM(a.size), 0) AS BIGINT) FROM runs r "      \
  "JOIN artifacts a ON a.run_id = r.id WHERE r.owner = u.owner) FROM usage_totals u "           \
  "WHERE u.owner = $1")                                                                         \
X(USAGE_ADD, NULL,                                                                              \
  "INSERT INTO usage_totals (owner, runs, log_bytes, artifact_bytes) VALUES ($1, $2, $3, $4) "  \
  "ON CONFLICT (owner) DO UPDATE SET runs = usage_totals.runs + excluded.runs, "                \
  "log_bytes = usage_totals.log_bytes + excluded.log_bytes, "                                   \
  "artifact_bytes = usage_totals.artifact_bytes + excluded.artifact_bytes")                     \
X(USAGE_GET, "sqlite_autoindex_usage_totals_1",                                                 \
  "SELECT runs, log_bytes, artifact_bytes FROM usage_totals WHERE owner = $1")                  \
X(USAGE_ASC, "sqlite_autoindex_usage_totals_1",                                                 \
  "SELECT owner, runs, log_bytes, artifact_bytes FROM usage_totals ORDER BY owner "             \
  "LIMIT $1 OFFSET $2")                                                                         \
X(USAGE_DESC, "sqlite_autoindex_usage_totals_1",                                                \
  "SELECT owner, runs, log_bytes, artifact_bytes FROM usage_totals ORDER BY owner DESC "        \
  "LIMIT $1 OFFSET $2")                                                                         \
X(USAGE_COUNT, "=a row for each user, and all are counted",                                     \
  "SELECT COUNT(*) FROM usage_totals")                                                          \
X(AUDIT_ADD, NULL,                                                                              \
  "INSERT INTO audit (at_us, owner, door, action, resource, result, details) "                  \
  "VALUES ($1, $2, $3, $4, $5, $6, $7)")                                                        \
X(AUDIT_PRUNE, PK,                                                                              \
  "DELETE FROM audit WHERE rid IN "                                                             \
  "(SELECT rid FROM audit WHERE at_us < $1 ORDER BY at_us LIMIT $2)")                           \
X(CHANGE_ADD, NULL,                                                                             \
  "INSERT INTO changes (at_us, kind, rid, id, what, phase, owner, owner_hash) "                 \
  "VALUES ($1, $2, $3, $4, $5, $6, $7, $8)")                                                    \
X(CHANGES, PK,                                                                                  \
  "SELECT seq, at_us, kind, rid, id, what, phase, owner, owner_hash FROM changes "              \
  "WHERE seq > $1 ORDER BY seq LIMIT $2")                                                       \
X(CHANGES_RANGE, PK,                                                                            \
  "SELECT (SELECT seq FROM changes WHERE seq > 0 ORDER BY seq LIMIT 1), "                       \
  "(SELECT seq FROM changes WHERE seq > 0 ORDER BY seq DESC LIMIT 1)")                          \
X(CHANGE_NEWEST, PK,                                                                            \
  "SELECT at_us FROM changes WHERE seq > 0 ORDER BY seq DESC LIMIT 1")                          \
X(CHANGES_PRUNE, PK, "DELETE FROM changes WHERE seq <= $1")                                     \
STORE_SESSION_STATEMENTS(X)

/* clang-format on */

enum sql_id {
#define X(name, plan, text) SQL_##name,
	STORE_STATEMENTS(X)
#undef X
		SQL__COUNT,
};

#endif
