/* SPDX-License-Identifier: Apache-2.0 */
/* store/: lists by start and by label, keys, tallies of ends, and databases of older programs. */
#include "store_fixture.h"

#include "store/store_i.h"

/* ---- runs by their start --------------------------------------------------------------------- */

enum { RUNS = 40 };

/* What the test knows of a run, to say by itself which list it belongs to. */
struct known {
	int64_t row, started_us;
	enum store_phase phase;
	bool alice, workspace, group, scope, image;
};

struct seen {
	int64_t rows[RUNS + 1];
	size_t n;
};

static bool see(void *ctx, const struct store_run *r)
{
	struct seen *s = ctx;

	assert_true(s->n < RUNS + 1);
	s->rows[s->n++] = r->row;
	return true;
}

static void start(struct store *s, struct known *k, const char *id, enum store_phase to)
{
	struct store_transition t = { .id = id,
				      .from = STORE_MASK_LIVE,
				      .generation = -1,
				      .to = to,
				      .reason = "completed",
				      .started_us = k->started_us };

	assert_true(move(s, &t));
	k->phase = to;
}

/* Starts that are not in the order of rows, some at the same moment, some never. */
static void populate(struct store *s, struct known k[RUNS])
{
	for (int i = 0; i < RUNS; i++) {
		store_autorun r;
		struct store_tx *tx = NULL;

		k[i] = (struct known){ .phase = STORE_QUEUED,
				       .alice = i % 2,
				       .workspace = i % 3 == 0,
				       .group = i % 4 == 0,
				       .scope = i % 5 == 0,
				       .image = i % 3 == 1 };
		run_init(&r, k[i].alice ? "alice" : "bob");
		r.workspace_id = k[i].workspace ? strdup("w") : NULL;
		r.workspace_group_id = k[i].group ? strdup("g") : NULL;
		r.scope_snapshot_id = k[i].scope ? strdup("s") : NULL;
		r.image_digest = k[i].image ? strdup("i") : NULL;
		OK(store_begin(s, &tx, e));
		OK(store_tx_run_insert(tx, &r, "{}", e));
		OK(store_commit(tx, false, e));
		k[i].row = r.row;
		if (i % 7 == 6)
			continue;
		k[i].started_us = 1000 + (i * 17) % 23;
		start(s, &k[i], r.id,
		      (enum store_phase)(STORE_STARTING + i % (STORE_PHASE__COUNT - 2)));
	}
}

static bool belongs(const struct known *k, const struct store_started *f)
{
	int64_t from = f->from_us ? f->from_us : f->to_us ? 1 : 0;

	return (!f->user || (strcmp(f->user, "alice") == 0) == k->alice) &&
	       (!f->workspace_id || k->workspace) && (!f->workspace_group_id || k->group) &&
	       (!f->scope_snapshot_id || k->scope) && (!f->image_digest || k->image) &&
	       (!f->phase || f->phase == k->phase) && k->started_us >= from &&
	       (!f->to_us || k->started_us <= f->to_us);
}

static int by_start(const void *a, const void *b)
{
	const struct known *x = a, *y = b;

	if (x->started_us != y->started_us)
		return x->started_us < y->started_us ? -1 : 1;
	return x->row < y->row ? -1 : 1;
}

static void check(struct store *s, const struct known sorted[RUNS], struct store_started f)
{
	int64_t want[RUNS], count = -1;
	size_t n = 0;

	for (int i = 0; i < RUNS; i++) {
		const struct known *k = &sorted[f.ascending ? i : RUNS - 1 - i];

		if (belongs(k, &f))
			want[n++] = k->row;
	}
	OK(store_started_count(s, &f, &count, e));
	assert_int_equal(count, n);
	/* Page by page, beyond the end too. */
	for (f.limit = 3, f.offset = 0; f.offset < RUNS + 3; f.offset += 3) {
		struct seen got = { .n = 0 };
		size_t left = n > (size_t)f.offset ? n - (size_t)f.offset : 0;

		OK(store_started_list(s, &f, see, &got, e));
		assert_int_equal(got.n, left < 3 ? left : 3);
		for (size_t i = 0; i < got.n; i++)
			assert_int_equal(got.rows[i], want[(size_t)f.offset + i]);
	}
}

static void started__every_filter_and_both_orders(void **state)
{
	static const struct store_started filters[] = {
		{ .user = NULL },
		{ .user = "alice" },
		{ .workspace_id = "w" },
		{ .workspace_group_id = "g" },
		{ .scope_snapshot_id = "s" },
		{ .image_digest = "i" },
		{ .from_us = 1010 },
		{ .to_us = 1010 },
		{ .from_us = 1005, .to_us = 1015, .user = "bob" },
		{ .user = "alice", .workspace_id = "w" },
		{ .image_digest = "i", .user = "bob", .to_us = 1020 },
	};
	struct fixture *f = *state;
	struct known k[RUNS];

	populate(f->s, k);
	qsort(k, RUNS, sizeof(k[0]), by_start);
	for (size_t i = 0; i < SBX_COUNT(filters); i++)
		for (int phase = 0; phase < STORE_PHASE__COUNT; phase++)
			for (int up = 0; up < 2; up++) {
				struct store_started one = filters[i];

				one.phase = (enum store_phase)phase;
				one.ascending = up;
				check(f->s, k, one);
			}
	FAILS(INVALID_ARGUMENT,
	      store_started_list(f->s, &(struct store_started){ .limit = STORE_LIST_MAX + 1 }, see,
				 k, e));
}

/* ---- labels and workspaces ------------------------------------------------------------------- */

static int64_t submit_tagged(struct store *s, const char *user, const char *labels,
			     const char *workspace)
{
	struct store_tx *tx = NULL;
	store_autorun r;

	run_init(&r, user);
	r.labels = labels ? strdup(labels) : NULL;
	r.workspace_id = workspace ? strdup(workspace) : NULL;
	OK(store_begin(s, &tx, e));
	OK(store_tx_run_insert(tx, &r, "{}", e));
	OK(store_commit(tx, false, e));
	return r.row;
}

static void labels__find_the_users_own_runs(void **state)
{
	struct fixture *f = *state;
	struct store_run_filter by = { .user = "alice", .label = "ci=17", .limit = 10 };
	int64_t a = submit_tagged(f->s, "alice", "{\"ci\":\"17\",\"on\":\"x\"}", NULL);
	int64_t b = submit_tagged(f->s, "alice", "{\"ci\":\"17\"}", "w");
	struct seen s = { .n = 0 };
	int64_t n = -1;

	submit_tagged(f->s, "bob", "{\"ci\":\"17\"}", "w");
	submit_tagged(f->s, "alice", "{\"ci\":\"18\"}", "w");
	submit_tagged(f->s, "alice", "{}", NULL);
	OK(store_run_list(f->s, &by, see, &s, e));
	assert_int_equal(s.n, 2);
	assert_int_equal(s.rows[0], b);
	assert_int_equal(s.rows[1], a);
	by.before_row = b;
	OK(store_run_list(f->s, &by, see, &s, e));
	assert_int_equal(s.n, 3);
	assert_int_equal(s.rows[2], a);
	by = (struct store_run_filter){
		.user = "alice", .label = "ci=17", .workspace_id = "w", .limit = 10
	};
	OK(store_run_list(f->s, &by, see, &s, e));
	assert_int_equal(s.n, 4);
	by.phase = STORE_COMPLETED;
	OK(store_run_list(f->s, &by, see, &s, e));
	assert_int_equal(s.n, 4);
	OK(store_workspace_count(f->s, "w", "alice", &n, e));
	assert_int_equal(n, 2);
	OK(store_workspace_count(f->s, "w", "carol", &n, e));
	assert_int_equal(n, 0);
}

/* ---- idempotency keys ------------------------------------------------------------------------ */

struct keys {
	char text[256];
};

static bool see_key(void *ctx, const struct store_idem_row *r)
{
	struct keys *k = ctx;
	size_t n = strlen(k->text);

	(void)snprintf(k->text + n, sizeof(k->text) - n, "%s/%s/%s@%lld ", r->endpoint, r->user,
		       r->key, (long long)r->created_us);
	assert_string_equal(r->fingerprint, "print");
	assert_string_equal(r->object_id, "object");
	return true;
}

static void idem__lists_by_age(void **state)
{
	static const struct {
		struct store_idem_filter f;
		const char *want;
		int total;
	} rows[] = {
		{ { .limit = 10 }, "runs/bob/k3@30 sessions/alice/k2@20 runs/alice/k1@10 ", 3 },
		{ { .limit = 10, .ascending = true },
		  "runs/alice/k1@10 sessions/alice/k2@20 runs/bob/k3@30 ",
		  3 },
		{ { .limit = 1, .offset = 1 }, "sessions/alice/k2@20 ", 3 },
		{ { .limit = 10, .endpoint = "runs" }, "runs/bob/k3@30 runs/alice/k1@10 ", 2 },
		{ { .limit = 10, .user = "alice", .key = "k2" }, "sessions/alice/k2@20 ", 1 },
		{ { .limit = 10, .from_us = 11, .to_us = 30 },
		  "runs/bob/k3@30 sessions/alice/k2@20 ",
		  2 },
		{ { .limit = 10, .user = "nobody" }, "", 0 },
	};
	static const char *const keys[][3] = { { "runs", "alice", "k1" },
					       { "sessions", "alice", "k2" },
					       { "runs", "bob", "k3" } };
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	struct store_idem prior;
	bool fresh;

	OK(store_begin(f->s, &tx, e));
	for (int i = 0; i < 3; i++)
		OK(store_tx_idem_put(tx, keys[i][0], keys[i][1], keys[i][2], "print", "object",
				     10 * (i + 1), 0, &fresh, &prior, e));
	OK(store_commit(tx, false, e));
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct keys k = { .text = "" };
		int64_t n = -1;

		OK(store_idem_list(f->s, &rows[i].f, see_key, &k, e));
		assert_string_equal(k.text, rows[i].want);
		OK(store_idem_count(f->s, &rows[i].f, &n, e));
		assert_int_equal(n, rows[i].total);
	}
}

/* ---- tallies --------------------------------------------------------------------------------- */

struct ends {
	struct store_ends of[8];
	size_t n;
};

static bool see_end(void *ctx, const struct store_ends *t)
{
	struct ends *s = ctx;

	assert_true(s->n < SBX_COUNT(s->of));
	s->of[s->n] = *t;
	/* Borrowed until the next row: kept as what the test compares. */
	s->of[s->n].runtime = strcmp(t->runtime, "namespace") == 0 ? "namespace" : "";
	s->of[s->n].reason = strcmp(t->reason, "completed") == 0 ? "completed" : "other";
	s->n++;
	return true;
}

static void end(struct store *s, const char *runtime, int64_t took_us, const char *reason)
{
	struct store_tx *tx = NULL;
	struct store_transition t = { .from = STORE_MASK_LIVE,
				      .generation = -1,
				      .to = STORE_COMPLETED,
				      .reason = reason,
				      .started_us = took_us < 0 ? 0 : 5000000,
				      .finished_us = 5000000 + took_us };
	store_autorun r;

	run_init(&r, "alice");
	r.runtime = runtime ? strdup(runtime) : NULL;
	OK(store_begin(s, &tx, e));
	OK(store_tx_run_insert(tx, &r, "{}", e));
	OK(store_commit(tx, false, e));
	t.id = r.id;
	assert_true(move(s, &t));
	assert_false(move(s, &t));
}

static void ends__are_counted_with_their_times(void **state)
{
	struct fixture *f = *state;
	struct ends s = { .n = 0 };

	end(f->s, "namespace", 10000, "completed");
	end(f->s, "namespace", 10001, "completed");
	end(f->s, "namespace", INT64_C(4000000000), "completed");
	end(f->s, "namespace", -1, "queue_ttl_expired");
	end(f->s, NULL, 1, NULL);
	OK(store_ends(f->s, see_end, &s, e));
	assert_int_equal(s.n, 3);
	assert_string_equal(s.of[0].runtime, "");
	assert_string_equal(s.of[1].reason, "completed");
	assert_int_equal(s.of[1].runs, 3);
	assert_int_equal(s.of[1].timed, 3);
	assert_int_equal(s.of[1].sum_us, INT64_C(4000020001));
	assert_int_equal(s.of[1].bucket[0], 1);
	for (int i = 1; i < STORE_BUCKETS; i++)
		assert_int_equal(s.of[1].bucket[i], 2);
	assert_int_equal(s.of[2].runs, 1);
	assert_int_equal(s.of[2].timed, 0);
	assert_int_equal(s.of[2].bucket[STORE_BUCKETS - 1], 0);
	for (int i = 1; i < STORE_BUCKETS; i++)
		assert_true(store_bucket_us[i] > store_bucket_us[i - 1]);
}

static bool see_counter(void *ctx, const char *name, int64_t n)
{
	struct keys *k = ctx;
	size_t len = strlen(k->text);

	(void)snprintf(k->text + len, sizeof(k->text) - len, "%s=%lld ", name, (long long)n);
	return true;
}

static bool see_runtime(void *ctx, const char *runtime, enum store_phase phase, int64_t n)
{
	char text[64];

	(void)snprintf(text, sizeof(text), "%s:%s", runtime, store_phase_name(phase));
	return see_counter(ctx, text, n);
}

static void counters__by_name_and_by_runtime(void **state)
{
	struct fixture *f = *state;
	struct keys k = { .text = "" };
	struct store_tx *tx = NULL;

	OK(store_begin(f->s, &tx, e));
	OK(store_tx_counter_add(tx, "b", 2, e));
	OK(store_tx_counter_add(tx, "a", 1, e));
	OK(store_tx_counter_add(tx, "b", 3, e));
	OK(store_commit(tx, false, e));
	OK(store_counters(f->s, see_counter, &k, e));
	assert_string_equal(k.text, "a=1 b=5 ");

	k.text[0] = '\0';
	submit(f->s, "alice", NULL);
	end(f->s, "namespace", 1, "completed");
	end(f->s, "namespace", 1, "completed");
	OK(store_runtime_counts(f->s, see_runtime, &k, e));
	assert_string_equal(k.text, ":queued=1 namespace:queued=0 namespace:completed=2 ");
}

/* ---- an older database ----------------------------------------------------------------------- */

static void migrate__keeps_what_an_older_program_wrote(void **state)
{
	struct fixture f = { .s = NULL };
	struct keys k = { .text = "" };
	struct ends ends = { .n = 0 };
	struct seen s = { .n = 0 };
	int64_t n = -1;

	(void)state;
	fixture_older(
		&f, 1,
		"INSERT INTO runs (id, owner, uid, door, phase, reason, runtime, interactive,"
		" generation, claim_expires_us, cancel, created_us, started_us, finished_us,"
		" queue_expires_us, estimated_start_us, changed_us, has_exit_code, exit_code,"
		" log_bytes, artifact_bytes, artifact_count, artifacts_gone, labels) VALUES"
		" ('a','alice',1,'fs',4,'completed','namespace',0,1,0,0,1,2,3,0,0,3,1,0,0,0,0,0,"
		"'{\"ci\":\"17\"}'),"
		" ('b','alice',1,'fs',1,'queued','namespace',0,0,0,0,4,0,0,0,0,4,0,0,0,0,0,0,NULL);"
		"UPDATE phase_counts SET n = 1 WHERE phase IN (1, 4)");
	OK(store_open(f.dir, NULL, &f.s, e));
	OK(store_runtime_counts(f.s, see_runtime, &k, e));
	assert_string_equal(k.text, "namespace:queued=1 namespace:completed=1 ");
	OK(store_ends(f.s, see_end, &ends, e));
	assert_int_equal(ends.n, 1);
	assert_int_equal(ends.of[0].runs, 1);
	OK(store_run_list(
		f.s, &(struct store_run_filter){ .user = "alice", .label = "ci=17", .limit = 5 },
		see, &s, e));
	assert_int_equal(s.n, 1);
	OK(store_started_count(f.s, &(struct store_started){ .user = "alice", .phase = 4 }, &n, e));
	assert_int_equal(n, 1);
	submit(f.s, "alice", NULL);
	store_close(f.s);
	OK(sbx_remove_tree(AT_FDCWD, f.base));
}

/* ---- runs that ended long ago ---------------------------------------------------------------- */

enum { UNFINISHED = 2500 };

static bool is_among(char **ids, int n, const char *id)
{
	bool found = false;

	for (int i = 0; i < n; i++) {
		found |= strcmp(ids[i], id) == 0;
		free(ids[i]);
	}
	return found;
}

/* However many older ones have not ended. */
static void old__is_found_behind_what_has_not_ended(void **state)
{
	struct fixture *f = *state;
	struct store_transition t = { .from = STORE_MASK_LIVE,
				      .generation = -1,
				      .to = STORE_COMPLETED,
				      .reason = "completed",
				      .started_us = 1 };
	char *ids[8], id[37], other[37];
	struct store_tx *tx = NULL;
	int64_t after = 0, later = sbx_now_us() + SBX_SECOND_US;
	int n, rounds = 0;

	OK(store_begin(f->s, &tx, e));
	for (int i = 0; i < UNFINISHED; i++) {
		store_autorun r;

		run_init(&r, "alice");
		OK(store_tx_run_insert(tx, &r, "{}", e));
	}
	OK(store_commit(tx, false, e));
	(void)submit(f->s, "alice", id);
	t.id = id;
	assert_true(move(f->s, &t));
	do {
		n = store_runs_old(f->s, later, &after, ids, SBX_COUNT(ids), NULL);
		assert_true(n >= 0 && rounds++ < 3);
	} while (n == 0 && after);
	assert_int_equal(rounds, 3);
	assert_int_equal(n, 1);
	assert_true(is_among(ids, n, id));
	assert_int_equal(after, 0);

	/* Where nothing is old enough the look ends after a thousand rows. */
	n = store_runs_old(f->s, 1, &after, ids, SBX_COUNT(ids), NULL);
	assert_int_equal(n, 0);
	assert_int_equal(after, 0);

	/* A full list goes on where it ended. */
	(void)submit(f->s, "alice", other);
	t.id = other;
	assert_true(move(f->s, &t));
	after = UNFINISHED;
	n = store_runs_old(f->s, later, &after, ids, 1, NULL);
	assert_int_equal(n, 1);
	assert_true(is_among(ids, n, id) && after);
	n = store_runs_old(f->s, later, &after, ids, 1, NULL);
	assert_int_equal(n, 1);
	assert_true(is_among(ids, n, other));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(started__every_filter_and_both_orders),
		STORE_TEST(labels__find_the_users_own_runs),
		STORE_TEST(idem__lists_by_age),
		STORE_TEST(ends__are_counted_with_their_times),
		STORE_TEST(counters__by_name_and_by_runtime),
		cmocka_unit_test(migrate__keeps_what_an_older_program_wrote),
		STORE_TEST(old__is_found_behind_what_has_not_ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
