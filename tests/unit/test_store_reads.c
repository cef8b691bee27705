/* SPDX-License-Identifier: Apache-2.0 */
/* store/: lists and keys, the feed, artifacts and usage, audit, directories of runs. */
#include "store_fixture.h"

#include <poll.h>
#include <sys/inotify.h>

#include "store/store_i.h"

/* ---- lists ----------------------------------------------------------------------------------- */

struct seen {
	int64_t rows[64];
	size_t n, stop;
};

static bool see(void *ctx, const struct store_run *r)
{
	struct seen *s = ctx;

	s->rows[s->n++] = r->row;
	return s->n != s->stop;
}

/* Twelve runs: even ones alice's, each third in a session and so on; the first six finished. */
static void populate(struct store *s, int64_t rows[12])
{
	for (int i = 0; i < 12; i++) {
		store_autorun r;
		struct store_tx *tx = NULL;

		run_init(&r, i % 2 ? "bob" : "alice");
		r.session_id = i % 3 ? NULL : strdup("s");
		r.persona_id = i % 4 ? NULL : strdup("p");
		r.workspace_id = i % 4 == 1 ? strdup("w") : NULL;
		r.workspace_group_id = i % 6 == 5 ? strdup("g") : NULL;
		r.image_digest = i % 5 ? NULL : strdup("sha256:i");
		OK(store_begin(s, &tx, e));
		OK(store_tx_run_insert(tx, &r, "{}", e));
		OK(store_commit(tx, false, e));
		rows[i] = r.row;
		if (i < 6)
			assert_true(finish(s, r.id, i < 4 ? STORE_COMPLETED : STORE_FAILED));
	}
}

static void list__filters_newest_first(void **state)
{
	static const struct {
		struct store_run_filter f;
		const char *want; /* indices into rows, as hex digits */
	} rows[] = {
		{ { .limit = 1000 }, "ba9876543210" },
		{ { .limit = 3 }, "ba9" },
		{ { .limit = 1000, .user = "alice" }, "a86420" },
		{ { .limit = 1000, .user = "nobody" }, "" },
		{ { .limit = 1000, .session_id = "s" }, "9630" },
		{ { .limit = 1000, .session_id = "s", .user = "bob" }, "93" },
		{ { .limit = 1000, .persona_id = "p" }, "840" },
		{ { .limit = 1000, .workspace_id = "w", .user = "bob" }, "951" },
		{ { .limit = 1000, .workspace_id = "w", .user = "alice" }, "" },
		{ { .limit = 1000, .phase = STORE_QUEUED }, "ba9876" },
		{ { .limit = 1000, .phase = STORE_QUEUED, .user = "bob" }, "b97" },
		{ { .limit = 1000, .phase = STORE_RUNNING }, "" },
		{ { .limit = 1000, .phase = STORE_COMPLETED, .user = "alice" }, "20" },
		{ { .limit = 1000, .phase = STORE_FAILED, .session_id = "s" }, "" },
		{ { .limit = 1000, .phase = STORE_FAILED, .user = "bob" }, "5" },
	};
	struct fixture *f = *state;
	int64_t row[12];

	populate(f->s, row);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct seen s = { .n = 0 };

		OK(store_run_list(f->s, &rows[i].f, see, &s, e));
		if (s.n != strlen(rows[i].want))
			fail_msg("filter %zu: %zu rows", i, s.n);
		for (size_t k = 0; k < s.n; k++) {
			char digit[2] = { rows[i].want[k], '\0' };

			assert_int_equal(s.rows[k], row[strtol(digit, NULL, 16)]);
		}
	}
}

static void list__pages_stops_and_checks_its_limit(void **state)
{
	struct fixture *f = *state;
	struct store_run_filter filter = { .limit = 5 };
	struct seen s = { .n = 0 };
	int64_t row[12];

	populate(f->s, row);
	for (int page = 0; page < 3; page++) {
		OK(store_run_list(f->s, &filter, see, &s, e));
		filter.before_row = s.rows[s.n - 1];
	}
	assert_int_equal(s.n, 12);
	for (int i = 0; i < 12; i++)
		assert_int_equal(s.rows[i], row[11 - i]);
	s = (struct seen){ .n = 0, .stop = 2 };
	OK(store_run_list(f->s, &(struct store_run_filter){ .limit = 5 }, see, &s, e));
	assert_int_equal(s.n, 2);
	FAILS(INVALID_ARGUMENT,
	      store_run_list(f->s, &(struct store_run_filter){ .limit = 0 }, see, &s, e));
	FAILS(INVALID_ARGUMENT,
	      store_run_list(f->s, &(struct store_run_filter){ .limit = STORE_LIST_MAX + 1 }, see,
			     &s, e));
	/* What would have to look at everybody's finished runs is refused and not slow. */
	FAILS(INVALID_ARGUMENT,
	      store_run_list(f->s, &(struct store_run_filter){ .limit = 5, .phase = STORE_FAILED },
			     see, &s, e));
	FAILS(INVALID_ARGUMENT,
	      store_run_list(f->s, &(struct store_run_filter){ .limit = 5, .label = "a=b" }, see,
			     &s, e));
	FAILS(INVALID_ARGUMENT,
	      store_run_list(f->s, &(struct store_run_filter){ .limit = 5, .workspace_id = "w" },
			     see, &s, e));
}

static void keys__page_in_order_and_hide_foreign_runs(void **state)
{
	struct fixture *f = *state;
	struct store_run_key k, page[4];
	sbx_autofree char *user = NULL;
	int64_t row[12], after = 0, n = 0;
	int got;

	FAILS(RUN_NOT_FOUND, store_run_latest(f->s, NULL, &k, e));
	populate(f->s, row);
	do {
		got = store_run_keys(f->s, "bob", after, page, 4, NULL);
		assert_true(got >= 0);
		for (int i = 0; i < got; i++, n++)
			assert_int_equal(page[i].row, row[2 * n + 1]);
		after = got ? page[got - 1].row : after;
	} while (got == 4);
	assert_int_equal(n, 6);
	assert_int_equal(store_run_keys(f->s, NULL, row[9], page, 4, NULL), 2);

	OK(store_run_latest(f->s, NULL, &k, e));
	assert_int_equal(k.row, row[11]);
	OK(store_run_latest(f->s, "alice", &k, e));
	assert_int_equal(k.row, row[10]);
	FAILS(RUN_NOT_FOUND, store_run_latest(f->s, "nobody", &k, e));

	OK(store_run_key_row(f->s, row[0], &k, &user, e));
	assert_string_equal(user, "alice");
	assert_int_equal(k.uid, 1000);
	assert_int_equal(k.phase, STORE_COMPLETED);
	assert_true(k.in_session && k.has_exit_code && !k.interactive);
	OK(store_run_key(f->s, k.id, "alice", &k, e));
	OK(store_run_key(f->s, k.id, NULL, &k, e));
	FAILS(RUN_NOT_FOUND, store_run_key(f->s, k.id, "bob", &k, e));
	FAILS(RUN_NOT_FOUND, store_run_key_row(f->s, 12345, &k, NULL, e));
}

/* ---- the feed -------------------------------------------------------------------------------- */

static void feed__tells_every_change_in_order(void **state)
{
	struct fixture *f = *state;
	struct store_change c[8];
	struct store_tx *tx = NULL;
	bool gap = true, done;
	int64_t last = 0, row;
	char id[37];
	char user[101];
	static const char *const what[] = { "new", "status", "cancel", "artifacts", "status" };
	static const char *const phase[] = { "queued", "starting", "starting", "starting",
					     "completed" };

	/* A name whose 63rd byte is inside a character. */
	memset(user, 'u', sizeof(user));
	memcpy(user + 61, "\xe3\x81\x82", 3);
	user[100] = '\0';
	row = submit(f->s, user, id);
	assert_true(claim(f->s, id, 5));
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_cancel(tx, id, STORE_CANCEL_TERM, &done, e));
	OK(store_tx_artifacts_add(tx, id, &(struct store_artifact){ "a", 1 }, 1, e));
	OK(store_commit(tx, false, e));
	assert_true(finish(f->s, id, STORE_COMPLETED));

	assert_int_equal(store_changes(f->s, 0, c, SBX_COUNT(c), &gap, NULL), 5);
	assert_false(gap);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(c[i].seq, i + 1);
		assert_string_equal(c[i].kind, "run");
		assert_int_equal(c[i].row, row);
		assert_string_equal(c[i].id, id);
		assert_string_equal(c[i].what, what[i]);
		assert_string_equal(c[i].phase, phase[i]);
		assert_int_equal(strlen(c[i].user), 61);
		assert_true(c[i].user_hash == store_user_hash(user));
		assert_true(c[i].at_us > 0);
	}
	assert_int_equal(store_changes(f->s, 3, c, 1, &gap, NULL), 1);
	assert_int_equal(c[0].seq, 4);
	assert_int_equal(store_changes(f->s, 5, c, 1, &gap, NULL), 0);
	assert_false(gap);
	OK(store_changes_last(f->s, &last, e));
	assert_int_equal(last, 5);
	assert_true(store_user_hash("alice") != store_user_hash("alicf"));
}

static void feed__a_reader_notices_what_was_pruned(void **state)
{
	static const struct {
		int64_t after;
		int n;
		bool gap;
	} rows[] = {
		{ 0, 3, true }, { 6, 3, true }, { 7, 3, false }, { 9, 1, false }, { 10, 0, false }
	};
	struct fixture *f = *state;
	struct store_change c[16];
	struct store_tx *tx = NULL;
	int64_t last = 0;
	bool gap;

	OK(store_begin(f->s, &tx, e));
	OK(store_tx_changes_prune(tx, 3, e)); /* nothing there yet */
	for (int i = 0; i < 10; i++)
		OK(store_tx_change(tx, "session", i, "id", "new", NULL, "alice", e));
	OK(store_tx_changes_prune(tx, 3, e));
	OK(store_tx_changes_prune(tx, 3, e));
	OK(store_commit(tx, false, e));
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		assert_int_equal(store_changes(f->s, rows[i].after, c, 16, &gap, NULL), rows[i].n);
		assert_int_equal(gap, rows[i].gap);
	}
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_changes_prune(tx, 0, e));
	OK(store_commit(tx, false, e));
	OK(store_changes_last(f->s, &last, e));
	assert_int_equal(last, 10);
	assert_int_equal(store_changes(f->s, 10, c, 16, &gap, NULL), 0);
	assert_false(gap);
	submit(f->s, "alice", NULL);
	assert_int_equal(store_changes(f->s, 10, c, 16, &gap, NULL), 1);
	assert_int_equal(c[0].seq, 11); /* a number is never used again */
}

static void feed__pruning_is_bounded(void **state)
{
	struct fixture *f = *state;
	struct store_change c;
	struct store_tx *tx = NULL;
	bool gap;

	OK(store_begin(f->s, &tx, e));
	for (int i = 0; i < STORE_CHANGES_PRUNE_MAX + 5; i++)
		OK(store_tx_change(tx, "session", i, "id", "new", NULL, "alice", e));
	OK(store_tx_changes_prune(tx, 1, e));
	OK(store_commit(tx, false, e));
	assert_int_equal(store_changes(f->s, 0, &c, 1, &gap, NULL), 1);
	assert_int_equal(c.seq, STORE_CHANGES_PRUNE_MAX + 1);
}

/* Waits for the watch; false when nothing came in `ms`. */
static bool rings(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

static void feed__rings_after_commits_of_any_process(void **state)
{
	struct fixture *f = *state;
	sbx_autoclose int fd = store_feed_watch(f->s, NULL);
	struct store_ticket ticket;
	struct store_tx *tx = NULL;
	store_autorun r;
	pid_t pid;

	assert_true(fd >= 0);
	assert_false(rings(fd, 0));
	submit(f->s, "alice", NULL);
	assert_true(rings(fd, 5000));
	store_feed_drain(fd);
	assert_false(rings(fd, 0));

	OK(store_begin(f->s, &tx, e)); /* no change: no ring */
	OK(store_tx_meta_set(tx, "k", "v", e));
	OK(store_commit(tx, true, e));
	assert_false(rings(fd, 0));

	run_init(&r, "alice");
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_insert(tx, &r, "{}", e));
	OK(store_commit_early(tx, &ticket, e));
	assert_true(ticket.touched);
	assert_false(rings(fd, 0)); /* committed, and told only when settled */
	OK(store_settle(f->s, ticket, e));
	assert_true(rings(fd, 5000));
	store_feed_drain(fd);

	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct store *s = NULL;

		if (store_open(f->dir, NULL, &s, NULL) < 0)
			_exit(1);
		_exit(try_submit(s, "bob", true, NULL, NULL) < 0 ? 2 : 0);
	}
	assert_true(rings(fd, 5000));
	assert_int_equal(wait_child(pid), 0);
}

/* ---- artifacts, usage, audit ----------------------------------------------------------------- */

struct artifacts {
	char text[256];
};

static bool see_artifact(void *ctx, const struct store_artifact *a)
{
	struct artifacts *s = ctx;
	size_t n = strlen(s->text);

	(void)snprintf(s->text + n, sizeof(s->text) - n, "%s=%lld;", a->path, (long long)a->size);
	return true;
}

static bool see_usage(void *ctx, const struct store_usage *u)
{
	struct artifacts *s = ctx;
	size_t n = strlen(s->text);

	(void)snprintf(s->text + n, sizeof(s->text) - n, "%s:%lld/%lld/%lld;", u->user,
		       (long long)u->runs, (long long)u->log_bytes, (long long)u->artifact_bytes);
	return true;
}

static void add(struct store *s, const char *id, const struct store_artifact *list, size_t n)
{
	struct store_tx *tx = NULL;

	OK(store_begin(s, &tx, e));
	OK(store_tx_artifacts_add(tx, id, list, n, e));
	OK(store_commit(tx, false, e));
}

static void artifacts__are_counted_once_and_given_back(void **state)
{
	static const struct store_artifact list[] = { { "b/\xff\xfe", 5 }, { "a", 10 } };
	struct fixture *f = *state;
	struct artifacts seen = { .text = "" };
	struct store_tx *tx = NULL;
	char id[37];
	int64_t bytes = -1;

	submit(f->s, "alice", id);
	add(f->s, id, list, 2);
	add(f->s, id, &(struct store_artifact){ "a", 12 }, 1); /* again, with another size */
	OK(store_usage_bytes(f->s, "alice", &bytes, e));
	assert_int_equal(bytes, 17);
	OK(store_artifact_list(f->s, id, see_artifact, &seen, e));
	assert_string_equal(seen.text, "a=12;b/\xff\xfe=5;");
	{
		store_autorun r = { .row = 0 };

		OK(store_run_get(f->s, id, &r, e));
		assert_int_equal(r.artifact_count, 2);
		assert_int_equal(r.artifact_bytes, 17);
		assert_false(r.artifacts_gone);
	}
	for (int i = 0; i < 2; i++) {
		OK(store_begin(f->s, &tx, e));
		OK(store_tx_artifacts_drop(tx, id, e));
		OK(store_commit(tx, false, e));
		OK(store_usage_bytes(f->s, "alice", &bytes, e));
		assert_int_equal(bytes, 0);
	}
	seen.text[0] = '\0';
	OK(store_artifact_list(f->s, id, see_artifact, &seen, e));
	assert_string_equal(seen.text, "");

	OK(store_begin(f->s, &tx, e));
	FAILS(RUN_NOT_FOUND,
	      store_tx_artifacts_add(tx, "01890a5d-ac96-774b-bcce-b302099a8057", list, 2, e));
	FAILS(STORE_UNAVAILABLE, store_commit(tx, false, e));
}

static void artifacts__due_oldest_first(void **state)
{
	struct fixture *f = *state;
	char id[4][37], *due[4] = { NULL };
	int64_t now = sbx_now_us();
	struct store_tx *tx = NULL;

	for (int i = 0; i < 4; i++) {
		struct store_transition end = { .id = id[i],
						.from = STORE_MASK_LIVE,
						.generation = -1,
						.to = STORE_COMPLETED,
						.finished_us = now - i * 1000 };

		submit(f->s, "alice", id[i]);
		if (i != 3) /* the last has none */
			add(f->s, id[i], &(struct store_artifact){ "a", 1 }, 1);
		assert_true(move(f->s, &end));
	}
	assert_int_equal(store_artifacts_due(f->s, now, due, 4, NULL), 2);
	assert_string_equal(due[0], id[2]);
	assert_string_equal(due[1], id[1]);
	free(due[0]);
	free(due[1]);
	assert_int_equal(store_artifacts_due(f->s, now + 1, due, 1, NULL), 1);
	free(due[0]);
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_artifacts_drop(tx, id[2], e));
	OK(store_commit(tx, false, e));
	assert_int_equal(store_artifacts_due(f->s, now + 1, due, 4, NULL), 2);
	assert_string_equal(due[0], id[1]);
	free(due[0]);
	free(due[1]);
}

static void usage__adds_up_per_user(void **state)
{
	struct fixture *f = *state;
	int64_t n = -1;
	struct artifacts seen = { .text = "" };
	char id[37];

	submit(f->s, "bob", NULL);
	submit(f->s, "alice", id);
	submit(f->s, "alice", NULL);
	assert_true(move(f->s, &(struct store_transition){ .id = id,
							   .from = STORE_MASK_LIVE,
							   .generation = -1,
							   .to = STORE_RUNNING,
							   .log_bytes = 30 }));
	assert_true(move(f->s, &(struct store_transition){ .id = id,
							   .from = STORE_MASK_LIVE,
							   .generation = -1,
							   .to = STORE_COMPLETED,
							   .log_bytes = 100 }));
	add(f->s, id, &(struct store_artifact){ "a", 7 }, 1);
	OK(store_usage_list(f->s, NULL, false, 0, 10, see_usage, &seen, e));
	assert_string_equal(seen.text, "alice:2/100/7;bob:1/0/0;");
	seen.text[0] = '\0';
	OK(store_usage_list(f->s, NULL, true, 1, 10, see_usage, &seen, e));
	OK(store_usage_list(f->s, "bob", true, 0, 10, see_usage, &seen, e));
	OK(store_usage_list(f->s, "bob", true, 1, 10, see_usage, &seen, e));
	OK(store_usage_list(f->s, "carol", true, 0, 10, see_usage, &seen, e));
	assert_string_equal(seen.text, "alice:2/100/7;bob:1/0/0;");
	OK(store_usage_count(f->s, NULL, &n, e));
	assert_int_equal(n, 2);
	OK(store_usage_count(f->s, "carol", &n, e));
	assert_int_equal(n, 0);
}

static int64_t count_rows(struct fixture *f, const char *table)
{
	SBX_AUTO(store_conn_closep) struct store_conn *c = NULL;
	struct sql_stmt *st = NULL;
	char sql[64];
	int64_t n;

	(void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM %s", table);
	OK(store_conn_open(f->s->sql, f->s->database, SQL_READ, &c, e));
	OK(c->sql->prepare(c->db, sql, &st, e));
	assert_int_equal(c->sql->step(st, NULL), 1);
	n = c->sql->column_int(st, 0);
	c->sql->finalize(st);
	return n;
}

static void audit__is_kept_and_pruned_in_portions(void **state)
{
	struct fixture *f = *state;
	struct store_tx *tx = NULL;

	OK(store_begin(f->s, &tx, e));
	for (int i = 1; i <= 10; i++)
		OK(store_tx_audit(tx,
				  &(struct store_audit){ .at_us = i,
							 .user = "alice",
							 .door = "fs",
							 .action = "submit",
							 .resource = "run",
							 .result = "ok",
							 .details = i % 2 ? "{}" : NULL },
				  e));
	OK(store_tx_audit_prune(tx, 8, 3, e));
	OK(store_commit(tx, false, e));
	assert_int_equal(count_rows(f, "audit"), 7);
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_audit_prune(tx, 8, 100, e));
	OK(store_commit(tx, false, e));
	assert_int_equal(count_rows(f, "audit"), 3);
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool count_dirs(void *ctx, const char *id)
{
	assert_true(sbx_id_valid(id));
	return ++*(int *)ctx < 3;
}

static void run_dir__life(void **state)
{
	struct fixture *f = *state;
	char id[37], path[160];
	struct stat st;
	int fd, n = 0;

	sbx_id_new(id);
	FAILS(RUN_NOT_FOUND, store_run_dir(f->s, id, false, e));
	assert_int_equal(store_run_ring(f->s, id), -SBX_E_RUN_NOT_FOUND);
	for (int i = 0; i < 2; i++) {
		fd = store_run_dir(f->s, id, true, NULL);
		assert_true(fd >= 0);
		assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
		assert_int_equal(mkdirat(fd, "artifacts", 0700), i ? -1 : 0);
		(void)close(fd);
	}
	(void)snprintf(path, sizeof(path), "%s/runs/%s", f->dir, id);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	(void)snprintf(path, sizeof(path), "%s/runs/lost+found", f->dir);
	assert_int_equal(mkdir(path, 0700), 0);
	OK(store_run_dirs(f->s, count_dirs, &n, e));
	assert_int_equal(n, 1); /* what is no id is not shown */
	OK(store_run_dir_remove(f->s, id, e));
	OK(store_run_dir_remove(f->s, id, e));
	FAILS(RUN_NOT_FOUND, store_run_dir(f->s, id, false, e));
}

static void run_dir__takes_no_path_for_an_id(void **state)
{
	static const char *const bad[] = {
		"",
		".",
		".notify",
		"..",
		"../runs",
		"/etc",
		"01890a5d-ac96-774b-bcce",
		"01890A5D-AC96-774B-BCCE-B302099A8057",
		"01890a5d-ac96-774b-bcce-b302099a8057/..",
	};
	struct fixture *f = *state;
	char id[37], path[160];

	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		FAILS(RUN_NOT_FOUND, store_run_dir(f->s, bad[i], true, e));
		FAILS(RUN_NOT_FOUND, store_run_dir_remove(f->s, bad[i], e));
		assert_int_equal(store_run_ring(f->s, bad[i]), -SBX_E_RUN_NOT_FOUND);
	}
	/* A link with the name of a run is not followed. */
	sbx_id_new(id);
	(void)snprintf(path, sizeof(path), "%s/runs/%s", f->dir, id);
	assert_int_equal(symlink("/tmp", path), 0);
	assert_true(store_run_dir(f->s, id, false, NULL) < 0);
	assert_true(store_run_dir(f->s, id, true, NULL) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(list__filters_newest_first),
		STORE_TEST(list__pages_stops_and_checks_its_limit),
		STORE_TEST(keys__page_in_order_and_hide_foreign_runs),
		STORE_TEST(feed__tells_every_change_in_order),
		STORE_TEST(feed__a_reader_notices_what_was_pruned),
		STORE_TEST(feed__pruning_is_bounded),
		STORE_TEST(feed__rings_after_commits_of_any_process),
		STORE_TEST(artifacts__are_counted_once_and_given_back),
		STORE_TEST(artifacts__due_oldest_first),
		STORE_TEST(usage__adds_up_per_user),
		STORE_TEST(audit__is_kept_and_pruned_in_portions),
		STORE_TEST(run_dir__life),
		STORE_TEST(run_dir__takes_no_path_for_an_id),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
