/* SPDX-License-Identifier: Apache-2.0 */
/* store/: the compare-and-set of phases, claims and fences, cancel, counters. */
#include "store_fixture.h"

/* ---- the compare-and-set --------------------------------------------------------------------- */

static struct store_run get(struct store *s, const char *id)
{
	struct store_run r = { .row = 0 };

	OK(store_run_get(s, id, &r, e));
	return r;
}

static void transition__table_of_conditions(void **state)
{
	static const struct {
		unsigned from;
		int64_t generation; /* against a starting run of generation 1 */
		bool done;
	} rows[] = {
		{ STORE_MASK(STORE_STARTING), 1, true },
		{ STORE_MASK(STORE_STARTING), -1, true },
		{ STORE_MASK_LIVE, 1, true },
		{ STORE_MASK(STORE_QUEUED), 1, false },
		{ STORE_MASK(STORE_RUNNING) | STORE_MASK(STORE_QUEUED), -1, false },
		{ STORE_MASK_LIVE, 0, false },
		{ STORE_MASK_LIVE, 2, false },
		{ 0, 1, false },
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		char id[37];
		struct store_transition t = { .id = id,
					      .from = rows[i].from,
					      .generation = rows[i].generation,
					      .to = STORE_RUNNING };
		int64_t before = 0, after = 0;

		submit(f->s, "alice", id);
		assert_true(claim(f->s, id, 5));
		OK(store_changes_last(f->s, &before, e));
		assert_int_equal(move(f->s, &t), rows[i].done);
		OK(store_changes_last(f->s, &after, e));
		assert_int_equal(after - before, rows[i].done ? 1 : 0);
		{
			store_autorun r = get(f->s, id);

			assert_int_equal(r.phase, rows[i].done ? STORE_RUNNING : STORE_STARTING);
			assert_int_equal(r.generation, 1);
			assert_string_equal(r.claim_owner, "host/boot/1/a");
			assert_int_equal(r.claim_expires_us, 5);
		}
	}
	{
		struct store_transition t = { .id = "01890a5d-ac96-774b-bcce-b302099a8057",
					      .from = STORE_MASK_LIVE,
					      .generation = -1,
					      .to = STORE_RUNNING };

		assert_false(move(f->s, &t));
	}
}

static void transition__refuses_what_makes_no_sense(void **state)
{
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	bool done = true;
	char id[37];

	submit(f->s, "alice", id);
	OK(store_begin(f->s, &tx, e));
	{
		const struct store_transition rows[] = {
			{ .id = id, .from = STORE_MASK_LIVE, .to = (enum store_phase)0 },
			{ .id = id, .from = STORE_MASK_LIVE, .to = STORE_PHASE__COUNT },
			{ .id = id, .from = STORE_MASK_LIVE, .to = STORE_FAILED, .requeue = true },
			{ .id = id,
			  .from = STORE_MASK_LIVE,
			  .to = STORE_FAILED,
			  .claim_owner = "o",
			  .claim_boot = "b" },
			{ .id = id,
			  .from = STORE_MASK_LIVE,
			  .to = STORE_STARTING,
			  .claim_owner = "o" },
		};

		for (size_t i = 0; i < SBX_COUNT(rows); i++) {
			FAILS(INVALID_ARGUMENT, store_tx_run_transition(tx, &rows[i], &done, e));
			assert_false(done);
		}
	}
	OK(store_commit(tx, false, e));
}

static void transition__terminal_is_final_and_complete(void **state)
{
	struct fixture *f = *state;
	int64_t before = sbx_now_us(), lease = 0, queue = 0;
	char id[37];
	struct store_transition end = { .id = id,
					.from = STORE_MASK_LIVE,
					.generation = 1,
					.to = STORE_FAILED,
					.reason = "nonzero_exit",
					.message = "exit 3",
					.usage = "{\"log_bytes\":7}",
					.runtime_version = "1",
					.image_digest = "sha256:x",
					.has_exit_code = true,
					.exit_code = 3,
					.log_bytes = 7 };
	struct store_transition again = { .id = id,
					  .from = ~0u,
					  .generation = -1,
					  .to = STORE_COMPLETED,
					  .reason = "completed" };

	submit(f->s, "alice", id);
	assert_true(claim(f->s, id, 5));
	assert_true(move(f->s, &end));
	for (int i = 0; i < 2; i++) {
		store_autorun r = get(f->s, id);

		assert_int_equal(r.phase, STORE_FAILED);
		assert_string_equal(r.reason, "nonzero_exit");
		assert_string_equal(r.message, "exit 3");
		assert_string_equal(r.usage, "{\"log_bytes\":7}");
		assert_string_equal(r.runtime_version, "1");
		assert_string_equal(r.image_digest, "sha256:x");
		assert_true(r.has_exit_code);
		assert_int_equal(r.exit_code, 3);
		assert_int_equal(r.log_bytes, 7);
		assert_null(r.claim_owner);
		assert_null(r.claim_boot);
		assert_int_equal(r.claim_expires_us, 0);
		assert_true(r.started_us >= before && r.finished_us >= r.started_us);
		assert_false(move(f->s, &again)); /* and the second look sees no change */
	}
	OK(store_deadlines(f->s, &queue, &lease, e));
	assert_true(lease == INT64_MAX);
}

static void transition__requeue_fences_the_old_claimant(void **state)
{
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	char id[37];
	struct store_transition requeue = { .id = id,
					    .from = STORE_MASK(STORE_STARTING),
					    .generation = 1,
					    .to = STORE_QUEUED,
					    .requeue = true };
	struct store_transition late = {
		.id = id, .from = STORE_MASK_LIVE, .generation = 1, .to = STORE_COMPLETED
	};

	submit(f->s, "alice", id);
	assert_true(claim(f->s, id, 5));
	assert_true(move(f->s, &requeue));
	{
		store_autorun r = get(f->s, id);

		assert_int_equal(r.phase, STORE_QUEUED);
		assert_int_equal(r.started_us, 0);
		assert_null(r.claim_owner);
		assert_int_equal(r.generation, 1);
	}
	assert_true(claim(f->s, id, 6));
	assert_false(move(f->s, &late));
	OK(store_begin(f->s, &tx, e));
	FAILS(CLAIM_LOST, store_tx_run_renew(tx, id, 1, 99, e));
	OK(store_tx_run_renew(tx, id, 2, 99, e));
	OK(store_commit(tx, false, e));
	{
		store_autorun r = get(f->s, id);

		assert_int_equal(r.generation, 2);
		assert_int_equal(r.claim_expires_us, 99);
		assert_int_equal(r.phase, STORE_STARTING);
	}
	assert_true(finish(f->s, id, STORE_COMPLETED));
	OK(store_begin(f->s, &tx, e));
	FAILS(CLAIM_LOST, store_tx_run_renew(tx, id, 2, 100, e));
	store_rollback(tx);
}

static void row__time_of_change_always_grows(void **state)
{
	struct fixture *f = *state;
	char id[37];
	int64_t last;

	submit(f->s, "alice", id);
	/* As if the wall clock had been set back a year. */
	exec_raw(f, "UPDATE runs SET changed_us = changed_us + 31536000000000");
	{
		store_autorun r = get(f->s, id);

		last = r.changed_us;
	}
	for (int i = 0; i < 4; i++) {
		struct store_tx *tx = NULL;
		bool done;

		OK(store_begin(f->s, &tx, e));
		if (i == 0)
			OK(store_tx_run_cancel(tx, id, STORE_CANCEL_TERM, &done, e));
		else if (i == 1)
			OK(store_tx_artifacts_add(tx, id, &(struct store_artifact){ "a", 1 }, 1,
						  e));
		else if (i == 2)
			OK(store_tx_artifacts_drop(tx, id, e));
		else
			OK(store_tx_run_transition(
				tx,
				&(struct store_transition){ .id = id,
							    .from = STORE_MASK_LIVE,
							    .generation = -1,
							    .to = STORE_KILLED },
				&done, e));
		OK(store_commit(tx, false, e));
		{
			store_autorun r = get(f->s, id);

			assert_int_equal(r.changed_us, last + 1);
			last = r.changed_us;
		}
	}
}

static void cancel__is_raised_and_never_lowered(void **state)
{
	static const struct {
		enum store_cancel how, then;
		int changes;
	} rows[] = {
		{ STORE_CANCEL_TERM, STORE_CANCEL_TERM, 1 },
		{ STORE_CANCEL_TERM, STORE_CANCEL_TERM, 0 },
		{ STORE_CANCEL_KILL, STORE_CANCEL_KILL, 1 },
		{ STORE_CANCEL_TERM, STORE_CANCEL_KILL, 0 },
	};
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	char id[37];
	bool done = false;

	submit(f->s, "alice", id);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		int64_t before = 0, after = 0;

		OK(store_changes_last(f->s, &before, e));
		OK(store_begin(f->s, &tx, e));
		OK(store_tx_run_cancel(tx, id, rows[i].how, &done, e));
		OK(store_commit(tx, false, e));
		OK(store_changes_last(f->s, &after, e));
		assert_true(done);
		assert_int_equal(after - before, rows[i].changes);
		{
			store_autorun r = get(f->s, id);

			assert_int_equal(r.cancel, rows[i].then);
		}
	}
	assert_true(finish(f->s, id, STORE_KILLED));
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_cancel(tx, id, STORE_CANCEL_KILL, &done, e));
	assert_false(done);
	FAILS(RUN_NOT_FOUND, store_tx_run_cancel(tx, "01890a5d-ac96-774b-bcce-b302099a8057",
						 STORE_CANCEL_TERM, &done, e));
	FAILS(INVALID_ARGUMENT, store_tx_run_cancel(tx, id, STORE_CANCEL_NONE, &done, e));
	store_rollback(tx);
}

static void counters__follow_every_transition(void **state)
{
	struct fixture *f = *state;
	int64_t n[STORE_PHASE__COUNT], queued = 0, active = 0, all = 0, mine = 0;
	char a[37], b[37], c[37];

	submit(f->s, "alice", a);
	submit(f->s, "alice", b);
	submit(f->s, "bob", c);
	assert_true(claim(f->s, a, 5));
	assert_true(claim(f->s, b, 5));
	assert_true(move(f->s, &(struct store_transition){ .id = b,
							   .from = STORE_MASK(STORE_STARTING),
							   .generation = 1,
							   .to = STORE_RUNNING }));
	assert_true(finish(f->s, a, STORE_TIMED_OUT));
	OK(store_phase_counts(f->s, n, e));
	assert_int_equal(n[STORE_QUEUED], 1);
	assert_int_equal(n[STORE_STARTING], 0);
	assert_int_equal(n[STORE_RUNNING], 1);
	assert_int_equal(n[STORE_TIMED_OUT], 1);
	OK(store_counts(f->s, &queued, &active, e));
	assert_int_equal(queued, 1);
	assert_int_equal(active, 1);
	OK(store_run_count(f->s, NULL, &all, e));
	OK(store_run_count(f->s, "alice", &mine, e));
	assert_int_equal(all, 3);
	assert_int_equal(mine, 2);
	OK(store_run_count(f->s, "nobody", &mine, e));
	assert_int_equal(mine, 0);
}

static void phases__have_names(void **state)
{
	(void)state;
	for (int p = STORE_QUEUED; p < STORE_PHASE__COUNT; p++) {
		assert_int_equal(store_phase_find(store_phase_name((enum store_phase)p)), p);
		assert_int_equal(store_phase_terminal((enum store_phase)p), p > STORE_RUNNING);
	}
	assert_string_equal(store_phase_name(STORE_TIMED_OUT), "timed_out");
	assert_int_equal(store_phase_find("RUNNING"), 0);
	assert_string_equal(store_phase_name((enum store_phase)99), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(transition__table_of_conditions),
		STORE_TEST(transition__refuses_what_makes_no_sense),
		STORE_TEST(transition__terminal_is_final_and_complete),
		STORE_TEST(transition__requeue_fences_the_old_claimant),
		STORE_TEST(row__time_of_change_always_grows),
		STORE_TEST(cancel__is_raised_and_never_lowered),
		STORE_TEST(counters__follow_every_transition),
		cmocka_unit_test(phases__have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
