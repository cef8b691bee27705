/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables, as a list of forward migrations: version N of the schema is what the first N texts
 * made. A text that was ever released is never edited; a change is a new text at the end.
 *
 * %ROW% is a growing row number, %KEY% a 64-bit primary key, %BYTES% a string of any bytes, and
 * %LABELS% the members (key, value) of runs.labels as rows, and %NUMBER%(text) store_number() of
 * it: the words in which SQLite and PostgreSQL differ here. Times are microseconds UTC, 0 when not
 * set; columns that end in _boot say of which boot it is what stands beside them: a time of
 * CLOCK_BOOTTIME, or files of which it is not known that they are on the disk.
 */
#include <string.h>

#include "base/buf.h"
#include "store/store_i.h"

static const char version_1[] =
	/* The spec is not a column of runs: a row is rewritten whole by every change of phase,
	 * and a spec may carry megabytes of files. It also keeps ten rows on a page for ls. */
	"CREATE TABLE runs (rid %ROW%, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,"
	" uid BIGINT NOT NULL, door TEXT NOT NULL, phase BIGINT NOT NULL, reason TEXT, message "
	"TEXT,"
	" spec_version TEXT, runtime TEXT, runtime_version TEXT, base_image TEXT, image_digest "
	"TEXT,"
	" policy_hash TEXT, trust_level TEXT, network_policy TEXT, session_id TEXT, persona_id "
	"TEXT,"
	" workspace_id TEXT, workspace_group_id TEXT, scope_snapshot_id TEXT, name TEXT, labels "
	"TEXT,"
	" interactive BIGINT NOT NULL, generation BIGINT NOT NULL, claim_owner TEXT, claim_boot "
	"TEXT,"
	" claim_expires_us BIGINT NOT NULL, cancel BIGINT NOT NULL, created_us BIGINT NOT NULL,"
	" started_us BIGINT NOT NULL, finished_us BIGINT NOT NULL, queue_boot TEXT,"
	" queue_expires_us BIGINT NOT NULL, estimated_start_us BIGINT NOT NULL,"
	" changed_us BIGINT NOT NULL, has_exit_code BIGINT NOT NULL, exit_code BIGINT NOT NULL,"
	" usage_json TEXT, idempotency_key TEXT, log_bytes BIGINT NOT NULL,"
	" artifact_bytes BIGINT NOT NULL, artifact_count BIGINT NOT NULL,"
	" artifacts_gone BIGINT NOT NULL, reserved_memory_mb BIGINT NOT NULL DEFAULT 0,"
	" reserved_cpu_milli BIGINT NOT NULL DEFAULT 0);"
	/* The small, hot part: rows that are not finished, whatever the size of the rest. */
	"CREATE INDEX runs_live ON runs (phase, owner, rid) WHERE phase < 4;"
	"CREATE INDEX runs_live_persona ON runs (persona_id, phase)"
	" WHERE phase < 4 AND persona_id IS NOT NULL;"
	"CREATE INDEX runs_live_workspace ON runs (workspace_id, phase)"
	" WHERE phase < 4 AND workspace_id IS NOT NULL;"
	"CREATE INDEX runs_live_group ON runs (workspace_group_id, phase)"
	" WHERE phase < 4 AND workspace_group_id IS NOT NULL;"
	"CREATE INDEX runs_queue_expiry ON runs (queue_boot, queue_expires_us) WHERE phase = 1;"
	"CREATE INDEX runs_lease ON runs (claim_boot, claim_expires_us)"
	" WHERE claim_owner IS NOT NULL;"
	/* Written once in a run's life. */
	"CREATE INDEX runs_owner ON runs (owner, rid);"
	"CREATE INDEX runs_session ON runs (session_id, rid) WHERE session_id IS NOT NULL;"
	"CREATE INDEX runs_persona ON runs (persona_id, rid) WHERE persona_id IS NOT NULL;"
	"CREATE INDEX runs_workspace ON runs (workspace_id, rid) WHERE workspace_id IS NOT NULL;"
	"CREATE INDEX runs_group ON runs (workspace_group_id, rid)"
	" WHERE workspace_group_id IS NOT NULL;"
	"CREATE INDEX runs_image ON runs (image_digest, rid) WHERE image_digest IS NOT NULL;"
	"CREATE INDEX runs_done ON runs (phase, rid) WHERE finished_us > 0;"
	"CREATE INDEX runs_owner_done ON runs (owner, phase, rid) WHERE finished_us > 0;"
	"CREATE INDEX runs_artifacts_due ON runs (finished_us)"
	" WHERE phase >= 4 AND artifact_count > 0 AND artifacts_gone = 0;"
	"CREATE TABLE specs (rid %KEY%, spec TEXT NOT NULL);"
	/* Counters, moved by the transactions that change what they count. */
	"CREATE TABLE phase_counts (phase %KEY%, n BIGINT NOT NULL);"
	"INSERT INTO phase_counts (phase, n)"
	" VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0);"
	"CREATE TABLE usage_totals (owner TEXT PRIMARY KEY NOT NULL, runs BIGINT NOT NULL,"
	" log_bytes BIGINT NOT NULL, artifact_bytes BIGINT NOT NULL);"
	"CREATE TABLE meta (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL);"
	"CREATE TABLE idempotency (rid %ROW%, endpoint TEXT NOT NULL, owner TEXT NOT NULL,"
	" idem_key TEXT NOT NULL, fingerprint TEXT NOT NULL, object_id TEXT NOT NULL,"
	" created_us BIGINT NOT NULL, UNIQUE (endpoint, owner, idem_key));"
	"CREATE INDEX idempotency_age ON idempotency (created_us);"
	"CREATE TABLE artifacts (run_id TEXT NOT NULL, path %BYTES% NOT NULL, size BIGINT NOT NULL,"
	" UNIQUE (run_id, path));"
	"CREATE TABLE audit (rid %ROW%, at_us BIGINT NOT NULL, owner TEXT, door TEXT, action TEXT,"
	" resource TEXT, result TEXT, details TEXT);"
	"CREATE INDEX audit_age ON audit (at_us);"
	"CREATE TABLE changes (seq %ROW%, at_us BIGINT NOT NULL, kind TEXT NOT NULL,"
	" rid BIGINT NOT NULL, id TEXT NOT NULL, what TEXT NOT NULL, phase TEXT NOT NULL,"
	" owner TEXT NOT NULL, owner_hash BIGINT NOT NULL);";

static const char version_2[] =
	/* Lists of administrators are sorted by the start of a run. What has ended never changes
	 * again, so these are written once, at the end; the few live rows are sorted when they are
	 * read. The phase stands in front, so that a list by phase reads nothing else, and
	 * a list of all merges four of them. */
	"DROP INDEX runs_done;"
	"DROP INDEX runs_workspace;"
	"DROP INDEX runs_group;"
	"DROP INDEX runs_image;"
	"CREATE INDEX runs_started ON runs (phase, started_us, rid) WHERE finished_us > 0;"
	"CREATE INDEX runs_started_owner ON runs (owner, phase, started_us, rid)"
	" WHERE finished_us > 0;"
	"CREATE INDEX runs_started_workspace ON runs (workspace_id, phase, started_us, rid)"
	" WHERE finished_us > 0 AND workspace_id IS NOT NULL;"
	"CREATE INDEX runs_started_group ON runs (workspace_group_id, phase, started_us, rid)"
	" WHERE finished_us > 0 AND workspace_group_id IS NOT NULL;"
	"CREATE INDEX runs_started_scope ON runs (scope_snapshot_id, phase, started_us, rid)"
	" WHERE finished_us > 0 AND scope_snapshot_id IS NOT NULL;"
	"CREATE INDEX runs_started_image ON runs (image_digest, phase, started_us, rid)"
	" WHERE finished_us > 0 AND image_digest IS NOT NULL;"
	/* A user's own runs of a workspace that many share. */
	"CREATE INDEX runs_workspace ON runs (workspace_id, owner, rid)"
	" WHERE workspace_id IS NOT NULL;"
	/* label is NAME=VALUE. */
	"CREATE TABLE run_labels (holder TEXT NOT NULL, label TEXT NOT NULL, run BIGINT NOT NULL,"
	" PRIMARY KEY (holder, label, run));"
	"INSERT INTO run_labels (holder, label, run)"
	" SELECT DISTINCT owner, key || '=' || value, rid FROM runs, %LABELS% WHERE labels IS NOT "
	"NULL;"
	/* What /metrics says, kept by the transactions that change it. */
	"DROP TABLE phase_counts;"
	"CREATE TABLE phase_counts (phase BIGINT NOT NULL, runtime TEXT NOT NULL,"
	" n BIGINT NOT NULL, PRIMARY KEY (phase, runtime));"
	"INSERT INTO phase_counts (phase, runtime, n)"
	" SELECT phase, COALESCE(runtime, ''), COUNT(*) FROM runs GROUP BY 1, 2;"
	"CREATE TABLE run_ends (runtime TEXT NOT NULL, phase BIGINT NOT NULL, reason TEXT NOT NULL,"
	" runs BIGINT NOT NULL, timed BIGINT NOT NULL DEFAULT 0, sum_us BIGINT NOT NULL DEFAULT 0"
#define X(n, us) ", b" #n " BIGINT NOT NULL DEFAULT 0"
	STORE_BUCKET_LIST(X)
#undef X
		", PRIMARY KEY (runtime, phase, reason));"
		"INSERT INTO run_ends (runtime, phase, reason, runs)"
		" SELECT COALESCE(runtime, ''), phase, COALESCE(reason, 'unknown'), COUNT(*) FROM "
		"runs"
		" WHERE finished_us > 0 GROUP BY 1, 2, 3;"
		"CREATE TABLE counters (name TEXT PRIMARY KEY NOT NULL, n BIGINT NOT NULL);";

static const char version_3[] =
	"CREATE TABLE sessions (rid %ROW%, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,"
	" door TEXT NOT NULL, name TEXT, entry TEXT, spec TEXT NOT NULL, runtime TEXT,"
	" policy_hash TEXT, cloned_from TEXT, uid BIGINT NOT NULL, created_us BIGINT NOT NULL,"
	" expires_us BIGINT NOT NULL, changed_us BIGINT NOT NULL, ending_us BIGINT NOT NULL,"
	" concurrent BIGINT NOT NULL, UNIQUE (owner, entry));"
	"CREATE INDEX sessions_owner ON sessions (owner, rid);"
	"CREATE INDEX sessions_expires ON sessions (expires_us) WHERE expires_us > 0;"
	"CREATE INDEX sessions_ending ON sessions (ending_us) WHERE ending_us > 0;"
	"CREATE INDEX runs_live_session ON runs (session_id, phase)"
	" WHERE phase < 4 AND session_id IS NOT NULL;"
	"CREATE TABLE snapshots (rid %ROW%, id TEXT NOT NULL UNIQUE, name TEXT,"
	" session_id TEXT NOT NULL, digest TEXT NOT NULL, created_us BIGINT NOT NULL,"
	" bytes BIGINT NOT NULL, files BIGINT NOT NULL, UNIQUE (session_id, name));"
	"CREATE INDEX snapshots_session ON snapshots (session_id, rid);";

static const char version_4[] =
	/* A directory of runs with a label is known by the label's number, which is made of it: so
	 * it is the same for ever and for everybody, and a place in the list of labels. */
	"CREATE TABLE numbered_labels (holder TEXT NOT NULL, number BIGINT NOT NULL,"
	" label TEXT NOT NULL, run BIGINT NOT NULL, PRIMARY KEY (holder, number, run));"
	"INSERT INTO numbered_labels (holder, number, label, run)"
	" SELECT holder, %NUMBER%(label), label, run FROM run_labels;"
	"DROP TABLE run_labels;"
	"ALTER TABLE numbered_labels RENAME TO run_labels;"
	/* Administrators look for the label of anybody's runs. */
	"CREATE INDEX run_labels_number ON run_labels (number, run);"
	/* Users are known by a number, too. */
	"CREATE TABLE numbered_totals (num %ROW%, owner TEXT NOT NULL UNIQUE, runs BIGINT NOT NULL,"
	" log_bytes BIGINT NOT NULL, artifact_bytes BIGINT NOT NULL);"
	"INSERT INTO numbered_totals (owner, runs, log_bytes, artifact_bytes)"
	" SELECT owner, runs, log_bytes, artifact_bytes FROM usage_totals ORDER BY owner;"
	"DROP TABLE usage_totals;"
	"ALTER TABLE numbered_totals RENAME TO usage_totals;";

static const char version_5[] = "ALTER TABLE sessions ADD COLUMN unsynced_boot TEXT;"
				"CREATE INDEX sessions_unsynced ON sessions (unsynced_boot)"
				" WHERE unsynced_boot IS NOT NULL;";

static const char *const migrations[] = { version_1, version_2, version_3, version_4, version_5 };

/* Text around the words; the word's name stands between two percent signs. */
static const struct {
	const char *name;
	enum sql_word word;
} words[] = {
	{ "%ROW%", SQL_WORD_ROW },	 { "%KEY%", SQL_WORD_KEY },
	{ "%BYTES%", SQL_WORD_BYTES },	 { "%LABELS%", SQL_WORD_LABELS },
	{ "%NUMBER%", SQL_WORD_NUMBER },
};

int64_t store_schema_newest(void)
{
	return (int64_t)SBX_COUNT(migrations);
}

static void spell(const struct sql_driver *sql, const char *text, struct sbx_buf *out)
{
	while (*text) {
		size_t plain = strcspn(text, "%");
		size_t i;

		sbx_buf_add(out, text, plain);
		text += plain;
		for (i = 0; *text && i < SBX_COUNT(words); i++) {
			if (strncmp(text, words[i].name, strlen(words[i].name)) != 0)
				continue;
			sbx_buf_puts(out, sql->words[words[i].word]);
			text += strlen(words[i].name);
			break;
		}
		if (*text && i == SBX_COUNT(words))
			sbx_buf_add(out, text++, 1);
	}
}

/* These two are prepared here and not kept: the table may not exist before. */
static int read_version(struct store_conn *c, int64_t *ret, struct sbx_error *e)
{
	struct sql_stmt *st = NULL;
	int r = c->sql->prepare(c->db, "SELECT version FROM schema_version", &st, e);

	if (r == 0)
		r = c->sql->step(st, e);
	if (r >= 0)
		*ret = r ? c->sql->column_int(st, 0) : 0;
	c->sql->finalize(st);
	return r < 0 ? r : 0;
}

static int write_version(struct store_conn *c, int64_t version, struct sbx_error *e)
{
	sbx_autobuf b = SBX_BUF_INIT(256);

	sbx_buf_printf(&b,
		       "DELETE FROM schema_version;"
		       "INSERT INTO schema_version (version) VALUES (%lld)",
		       (long long)version);
	return c->sql->exec(c->db, b.data ? b.data : "", e);
}

static int apply(struct store_conn *c, int64_t from, int64_t to, struct sbx_error *e)
{
	int r;

	for (int64_t v = from; v < to; v++) {
		sbx_autobuf b = SBX_BUF_INIT(64 << 10);

		spell(c->sql, migrations[v], &b);
		if (sbx_buf_failed(&b))
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to make the tables");
		r = c->sql->exec(c->db, b.data, e);
		if (r < 0)
			return sbx_error_wrap(e, r, "schema version %lld", (long long)v + 1);
	}
	return write_version(c, to, e);
}

static int migrate_locked(struct store_conn *c, bool may_make, int64_t newest, struct sbx_error *e)
{
	int64_t version = 0;
	int r;

	r = c->sql->exec(c->db,
			 "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)", e);
	if (r == 0)
		r = read_version(c, &version, e);
	if (r < 0)
		return r;
	if (version > newest)
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"the database has schema version %lld, which is newer than this "
				"program's %lld; use a newer program",
				(long long)version, (long long)newest);
	if (version == 0 && !may_make)
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"the database has no tables yet; start a door on it first");
	return version == newest ? 0 : apply(c, version, newest, e);
}

int store_migrate(struct store_conn *c, bool may_make, int64_t newest, struct sbx_error *e)
{
	/* Under the write lock from the first look at the version, so that of two programs that
	 * start at once one migrates and the other finds it done. */
	int r = c->sql->begin(c->db, e);

	if (r < 0)
		return r;
	r = migrate_locked(c, may_make, newest, e);
	if (r == 0)
		return c->sql->commit(c->db, e);
	c->sql->rollback(c->db);
	return r;
}
