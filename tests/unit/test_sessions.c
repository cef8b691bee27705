/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions without a door: rows, names, the lock, how they begin and end, and what runs they let
 * in. */
#include "session_house.h"

#include <sched.h>

/* ---- making and finding ---------------------------------------------------------------------- */

static void session__is_its_owners(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	store_autosession got = { 0 };
	store_autosession again = { 0 };
	store_autosession by_name = { 0 };

	MUST(make(h, &ann, "{\"base_image\":\"host\",\"name\":\"exp\",\"env\":{\"A\":\"1\"}}", NULL,
		  &s, e));
	assert_true(there(h, s.id));
	MUST(orch_session_get(&h->o, &ann, s.id, &got, e));
	assert_string_equal(got.user, "ann");
	assert_string_equal(got.entry, "exp");
	assert_int_equal(got.expires_us, 0);
	FAILS_WITH(SESSION_NOT_FOUND, orch_session_get(&h->o, &bob, s.id, &again, e));
	FAILS_WITH(SESSION_NOT_FOUND, orch_session_get(&h->o, &ann, "nonsense", &again, e));
	MUST(orch_session_get(&h->o, &root, s.id, &again, e));
	MUST(store_session_get_entry(h->o.store, "ann", "exp", &by_name, e));
	assert_string_equal(by_name.id, s.id);
}

/* A name in a document is a wish, a directory's name is none. */
static void entry__is_one_sessions_of_a_user(void **state)
{
	struct house *h = *state;
	struct orch_session_made a, b;
	store_autosession got = { 0 };
	store_autosession other = { 0 };
	static const char *const bad[] = { "", ".x", "a/b", "new", "latest" };

	MUST(make(h, &ann, "", "exp", &a, e));
	FAILS_WITH(ENTRY_EXISTS, make(h, &ann, "", "exp", &b, e));
	MUST(make(h, &ann, "{\"name\":\"exp\"}", NULL, &b, e));
	MUST(orch_session_get(&h->o, &ann, b.id, &got, e));
	assert_null(got.entry);
	assert_string_equal(got.name, "exp");
	MUST(make(h, &bob, "", "exp", &b, e));
	MUST(orch_session_get(&h->o, &bob, b.id, &other, e));
	assert_string_equal(other.entry, "exp");
	for (size_t i = 0; i < SBX_COUNT(bad); i++)
		FAILS_WITH(INVALID_ARGUMENT, make(h, &ann, "", bad[i], &b, e));
}

static void key__makes_one_session(void **state)
{
	struct house *h = *state;
	struct orch_session_made a, b;

	MUST(make(h, &ann, "{\"idempotency_key\":\"k\",\"memory_mb\":512}", NULL, &a, e));
	assert_false(a.replayed);
	MUST(make(h, &ann, "{\"memory_mb\":512,\"idempotency_key\":\"k\"}", NULL, &b, e));
	assert_true(b.replayed);
	assert_string_equal(a.id, b.id);
	FAILS_WITH(IDEMPOTENCY_CONFLICT,
		   make(h, &ann, "{\"idempotency_key\":\"k\",\"memory_mb\":513}", NULL, &b, e));
	MUST(make(h, &bob, "{\"idempotency_key\":\"k\"}", NULL, &b, e));
	assert_false(b.replayed);
}

static void document__is_judged_as_a_runs(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	sbx_autobuf doc = SBX_BUF_INIT(1 << 16);
	store_autosession got = { 0 };

	FAILS_WITH(INVALID_SPEC, make(h, &ann, "{\"timeout_sec\":0}", NULL, &s, e));
	FAILS_WITH(RUNTIME_UNAVAILABLE, make(h, &ann, "{\"runtime\":\"lima\"}", NULL, &s, e));
	FAILS_WITH(POLICY_UNSUPPORTED,
		   make(h, &ann, "{\"network_policy\":\"allowlist\"}", NULL, &s, e));
	FAILS_WITH(IMAGE_NOT_FOUND, make(h, &ann, "{\"base_image\":\"none\"}", NULL, &s, e));
	MUST(make(h, &ann, "{\"cpu_limit\":1000,\"memory_mb\":1000000,\"timeout_sec\":3600}", NULL,
		  &s, e));
	MUST(orch_session_get(&h->o, &ann, s.id, &got, e));
	orch_view_session(&h->o, &got, &doc);
	assert_non_null(strstr(doc.data, "\"cpu_limit\":4"));
	assert_non_null(strstr(doc.data, "\"memory_mb\":8192"));
	assert_non_null(strstr(doc.data, "\"timeout_sec\":300"));
	assert_non_null(strstr(doc.data, "\"env\":{}"));
	assert_non_null(strstr(doc.data, "\"expires_at\":null"));
}

static void list__has_pages(void **state)
{
	struct house *h = *state;
	struct orch_session_made s[5], foreign;
	struct orch_sessions_query q = { .limit = 2 };
	char cursor[37] = "";
	int seen = 5;

	MUST(make(h, &bob, "", NULL, &foreign, e));
	for (size_t i = 0; i < 5; i++)
		MUST(make(h, &ann, "", NULL, &s[i], e));
	do {
		sbx_autobuf out = SBX_BUF_INIT(1 << 16);
		const char *next;

		q.cursor = cursor;
		MUST(orch_view_sessions(&h->o, &ann, &q, &out, e));
		assert_null(strstr(out.data, foreign.id));
		for (int i = 0; i < 2 && seen > 0; i++)
			assert_non_null(strstr(out.data, s[--seen].id));
		next = strstr(out.data, "\"next_cursor\":\"");
		(void)snprintf(cursor, sizeof(cursor), "%s", next ? next + 15 : "");
	} while (cursor[0]);
	assert_int_equal(seen, 0);
	FAILS_WITH(INVALID_ARGUMENT,
		   orch_view_sessions(&h->o, &ann, &(struct orch_sessions_query){ .limit = 0 },
				      &(struct sbx_buf)SBX_BUF_INIT(100), e));
}

/* ---- runs in one ----------------------------------------------------------------------------- */

static void run__takes_the_sessions_values(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	sbx_autofree char *spec = NULL;
	store_autorun r = { 0 };
	char id[37];

	MUST(make(h, &ann,
		  "{\"base_image\":\"host\",\"memory_mb\":700,\"timeout_sec\":77,"
		  "\"env\":{\"TOKEN\":\"x\"},\"persona_id\":\"p\"}",
		  NULL, &s, e));
	MUST(submit(h, &ann, s.id, id, e));
	MUST(store_run_get(h->o.store, id, &r, e));
	assert_string_equal(r.session_id, s.id);
	assert_string_equal(r.base_image, "host");
	assert_string_equal(r.persona_id, "p");
	MUST(store_run_spec(h->o.store, id, &spec, e));
	assert_non_null(strstr(spec, "\"TOKEN\":\"x\""));
	assert_non_null(strstr(spec, "\"timeout_sec\":77"));
	assert_non_null(strstr(spec, "\"memory_mb\":700"));
	FAILS_WITH(SESSION_NOT_FOUND, submit(h, &bob, s.id, id, e));
	MUST(make(h, &ann, "", NULL, &s, e));
	FAILS_WITH(SESSION_BASE_IMAGE, submit(h, &ann, s.id, id, e));
}

static void claim(struct house *h, struct admitted *list, size_t n, size_t want)
{
	size_t got = 0;

	for (size_t i = 0; i < n; i++)
		list[i].owner = "host/boot/1/1/1";
	MUST(admit_next(&h->o, list, n, &got, e));
	assert_int_equal(got, want);
}

static void finish(struct house *h, const struct admitted *a)
{
	struct store_transition t = { .id = a->id,
				      .from = STORE_MASK_LIVE,
				      .generation = a->generation,
				      .to = STORE_COMPLETED,
				      .reason = "completed",
				      .finished_us = sbx_now_us() };
	struct store_tx *tx = NULL;
	bool done = false;

	MUST(store_begin(h->o.store, &tx, e));
	MUST(store_tx_run_transition(tx, &t, &done, e));
	assert_true(done);
	MUST(store_commit(tx, false, e));
}

/* And what waits for its session does not hold back what is behind it. */
static void runs__of_a_session_come_one_after_the_other(void **state)
{
	struct house *h = *state;
	struct orch_session_made one, other, wide;
	struct admitted list[4];
	char id[6][37];

	MUST(make(h, &ann, "{\"base_image\":\"host\"}", NULL, &one, e));
	MUST(make(h, &ann, "{\"base_image\":\"host\"}", NULL, &other, e));
	MUST(make(h, &ann, "{\"base_image\":\"host\",\"concurrent\":true}", NULL, &wide, e));
	MUST(submit(h, &ann, one.id, id[0], e));
	MUST(submit(h, &ann, one.id, id[1], e));
	MUST(submit(h, &ann, other.id, id[2], e));
	claim(h, list, 4, 2);
	assert_string_equal(list[0].id, id[0]);
	assert_string_equal(list[1].id, id[2]);
	finish(h, &list[0]);
	claim(h, &list[2], 2, 1);
	assert_string_equal(list[2].id, id[1]);
	finish(h, &list[1]);
	finish(h, &list[2]);
	MUST(submit(h, &ann, wide.id, id[3], e));
	MUST(submit(h, &ann, wide.id, id[4], e));
	claim(h, list, 4, 2);
}

/* However many they are. */
static void runs__that_wait_for_their_session_are_passed_over(void **state)
{
	struct house *h = *state;
	struct orch_session_made busy, other, wide;
	struct admitted list[4];
	char id[37], wanted[2][37];

	MUST(make(h, &ann, "{\"base_image\":\"host\"}", NULL, &busy, e));
	MUST(make(h, &ann, "{\"base_image\":\"host\"}", NULL, &other, e));
	MUST(make(h, &ann, "{\"base_image\":\"host\",\"concurrent\":true}", NULL, &wide, e));
	MUST(submit(h, &ann, wide.id, id, e));
	claim(h, list, 1, 1);
	for (int i = 0; i < 40; i++)
		MUST(submit(h, &ann, busy.id, id, e));
	claim(h, list, 1, 1);
	MUST(submit(h, &ann, other.id, wanted[0], e));
	MUST(submit(h, &ann, wide.id, wanted[1], e));
	claim(h, list, 4, 2);
	assert_string_equal(list[0].id, wanted[0]);
	assert_string_equal(list[1].id, wanted[1]);
}

/* ---- names of what is made of one ------------------------------------------------------------ */

/* "workspace" is what a difference calls the workspace. */
static void names__that_mean_something_else_are_refused(void **state)
{
	static const char *const bad[] = { "workspace", "", ".a", "a/b", "latest" };
	struct house *h = *state;
	struct orch_session_made s, copy;
	char longest[MS_NAME_MAX + 2];
	store_autosnapshot shot = { 0 };

	MUST(make(h, &ann, "", NULL, &s, e));
	for (size_t i = 0; i < SBX_COUNT(bad); i++)
		FAILS_WITH(INVALID_ARGUMENT,
			   orch_snapshot_take(&h->o, &ann, s.id, bad[i], &shot, e));
	MUST(orch_snapshot_take(&h->o, &ann, s.id, "good", &shot, e));
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	FAILS_WITH(INVALID_SPEC, orch_session_clone(&h->o, &ann, s.id, longest, &copy, e));
	longest[MS_NAME_MAX] = '\0';
	MUST(orch_session_clone(&h->o, &ann, s.id, longest, &copy, e));
}

/* ---- the end --------------------------------------------------------------------------------- */

static void destroy__takes_everything(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	store_autosession got = { 0 };
	enum orch_ending how;
	char id[37];

	MUST(make(h, &ann, "{\"base_image\":\"host\"}", "exp", &s, e));
	MUST(submit(h, &ann, s.id, id, e));
	FAILS_WITH(SESSION_NOT_FOUND, orch_session_destroy(&h->o, &bob, s.id, &how, e));
	MUST(orch_session_destroy(&h->o, &ann, s.id, &how, e));
	assert_int_equal(how, ORCH_GONE);
	assert_false(there(h, s.id));
	FAILS_WITH(SESSION_NOT_FOUND, orch_session_get(&h->o, &ann, s.id, &got, e));
	FAILS_WITH(SESSION_NOT_FOUND, submit(h, &ann, s.id, id, e));
	MUST(orch_session_ending(&h->o, s.id, &how, e));
	assert_int_equal(how, ORCH_GONE);
	MUST(make(h, &ann, "", "exp", &s, e)); /* the name is free again */
}

static void destroy__waits_for_runs_that_execute(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	struct admitted list[1];
	store_autorun r = { 0 };
	enum orch_ending how;
	char id[37], other[37];

	MUST(make(h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	MUST(submit(h, &ann, s.id, id, e));
	claim(h, list, 1, 1);
	MUST(orch_session_destroy(&h->o, &ann, s.id, &how, e));
	assert_int_equal(how, ORCH_ENDING);
	MUST(store_run_get(h->o.store, id, &r, e));
	assert_int_equal(r.cancel, STORE_CANCEL_TERM);
	assert_true(there(h, s.id));
	FAILS_WITH(SESSION_NOT_FOUND, submit(h, &ann, s.id, other, e));
	MUST(orch_session_ending(&h->o, s.id, &how, e));
	assert_int_equal(how, ORCH_ENDING);
	finish(h, list);
	MUST(orch_session_destroy(&h->o, &ann, s.id, &how, e));
	assert_int_equal(how, ORCH_GONE);
	assert_false(there(h, s.id));
}

static void destroy__waits_for_who_uses_the_workspace(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	enum orch_ending how;
	int lock;

	MUST(make(h, &ann, "", NULL, &s, e));
	lock = store_session_lock(h->o.store, s.id, false, 0);
	assert_true(lock >= 0);
	assert_int_equal(store_session_lock(h->o.store, s.id, true, 0), -EWOULDBLOCK);
	MUST(orch_session_destroy(&h->o, &ann, s.id, &how, e));
	assert_int_equal(how, ORCH_ENDING);
	assert_true(there(h, s.id));
	close(lock);
	MUST(orch_session_destroy(&h->o, &ann, s.id, &how, e));
	assert_int_equal(how, ORCH_GONE);
}

static void session__beyond_its_time_is_gone(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	store_autosession got = { 0 };
	char id[37];

	MUST(make(h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	FAILS_WITH(INVALID_ARGUMENT, orch_session_extend(&h->o, &ann, s.id, -1, e));
	MUST(orch_session_extend(&h->o, &ann, s.id, 3600, e));
	MUST(orch_session_get(&h->o, &ann, s.id, &got, e));
	assert_true(got.expires_us > sbx_now_us() + 3500 * SBX_SECOND_US);
	store_session_clear(&got);
	{
		struct store_tx *tx = NULL;

		MUST(store_begin(h->o.store, &tx, e));
		MUST(store_tx_session_times(tx, s.id, sbx_now_us() - 1, 0, e));
		MUST(store_commit(tx, false, e));
	}
	FAILS_WITH(SESSION_NOT_FOUND, orch_session_get(&h->o, &ann, s.id, &got, e));
	FAILS_WITH(SESSION_NOT_FOUND, submit(h, &ann, s.id, id, e));
	assert_true(there(h, s.id));
	/* Its own thread sees to that. */
	start_keeper(h);
	while (there(h, s.id))
		sched_yield();
	stop_keeper(h);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, build, clear)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(session__is_its_owners),
		TEST(entry__is_one_sessions_of_a_user),
		TEST(key__makes_one_session),
		TEST(document__is_judged_as_a_runs),
		TEST(list__has_pages),
		TEST(run__takes_the_sessions_values),
		TEST(runs__of_a_session_come_one_after_the_other),
		TEST(runs__that_wait_for_their_session_are_passed_over),
		TEST(names__that_mean_something_else_are_refused),
		TEST(destroy__takes_everything),
		TEST(destroy__waits_for_runs_that_execute),
		TEST(destroy__waits_for_who_uses_the_workspace),
		TEST(session__beyond_its_time_is_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
