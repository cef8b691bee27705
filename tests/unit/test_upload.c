/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads into sessions: who may, what they wait for, what is left of them. */
#include "session_house.h"

#include <dirent.h>

#include "orchestrator/upload.h"

static void session_of(struct house *h, const char *text, struct orch_session_made *ret)
{
	MUST(make(h, &ann, text, NULL, ret, e));
}

static int send(struct upload *u, const char *name, const void *data, size_t len,
		struct sbx_error *e)
{
	int rc = upload_file(u, name, e);

	return rc < 0 ? rc : upload_data(u, data, len, e);
}

/* How many bytes the file has in the workspace; -1: it is not there. */
static long size_of(struct house *h, const char *id, const char *name)
{
	char path[256];
	struct stat st;

	(void)snprintf(path, sizeof(path), "%s/sessions/%s/workspace/%s", h->dir, id, name);
	return lstat(path, &st) == 0 ? (long)st.st_size : -1;
}

/* Entries of the session's directory beside the workspace. */
static int beside(struct house *h, const char *id)
{
	char path[160];
	const struct dirent *d;
	DIR *dir;
	int n = 0;

	(void)snprintf(path, sizeof(path), "%s/sessions/%s", h->dir, id);
	dir = opendir(path);
	assert_non_null(dir);
	while ((d = readdir(dir)))
		n += d->d_name[0] != '.' && strcmp(d->d_name, "workspace") != 0;
	(void)closedir(dir);
	return n;
}

static void upload__into_a_session(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	struct upload *u = NULL;
	sbx_autobuf out = SBX_BUF_INIT(4096);
	sbx_autofree char *wanted = NULL;

	session_of(h, "{}", &s);
	MUST(upload_begin(&h->o, &ann, s.id, &u, e));
	MUST(send(u, "hello.txt", "hello", 5, e));
	MUST(send(u, "../x", "x", 1, e));
	assert_int_equal(size_of(h, s.id, "hello.txt"), -1); /* not yet */
	MUST(upload_commit(u, e));
	upload_view(u, &out);
	u = upload_free(u);
	assert_true(asprintf(&wanted,
			     "{\"session_id\":\"%s\",\"bytes_received\":5,\"file_count\":1,"
			     "\"skipped\":[{\"path\":\"../x\",\"reason\":\"has a part '..'\"}],"
			     "\"skipped_count\":1}",
			     s.id) > 0);
	assert_string_equal(out.data, wanted);
	assert_int_equal(size_of(h, s.id, "hello.txt"), 5);
	assert_int_equal(beside(h, s.id), 0);
}

static void upload__is_for_the_owner(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	struct upload *u = NULL;
	enum orch_ending how;

	session_of(h, "{}", &s);
	FAILS_WITH(SESSION_NOT_FOUND, upload_begin(&h->o, &bob, s.id, &u, e));
	FAILS_WITH(SESSION_NOT_FOUND, upload_begin(&h->o, &ann, "../..", &u, e));
	MUST(orch_session_destroy(&h->o, &ann, s.id, &how, e));
	FAILS_WITH(SESSION_NOT_FOUND, upload_begin(&h->o, &ann, s.id, &u, e));
	assert_false(there(h, s.id));
}

static void upload__holds_the_workspace(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	struct upload *one = NULL, *two = NULL;
	int lock;

	session_of(h, "{}", &s);
	MUST(upload_begin(&h->o, &ann, s.id, &one, e));
	MUST(send(one, "one", "1", 1, e));
	FAILS_WITH(SESSION_ACTIVE_RUNS, session_lock(&h->o, s.id, true, 0, e));
	/* Others may upload meanwhile, and what the first one stages is no leftover. */
	MUST(upload_begin(&h->o, &ann, s.id, &two, e));
	assert_int_equal(beside(h, s.id), 2);
	MUST(send(two, "two", "2", 1, e));
	MUST(upload_commit(two, e));
	two = upload_free(two);
	MUST(upload_commit(one, e));
	FAILS_WITH(SESSION_ACTIVE_RUNS, session_lock(&h->o, s.id, true, 0, e));
	one = upload_free(one);
	lock = session_lock(&h->o, s.id, true, 0, NULL);
	assert_true(lock >= 0);
	(void)close(lock);
	assert_int_equal(size_of(h, s.id, "one"), 1);
	assert_int_equal(size_of(h, s.id, "two"), 1);
}

static void upload__that_is_given_up_leaves_nothing(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	struct upload *u = NULL;
	char path[160];

	session_of(h, "{}", &s);
	MUST(upload_begin(&h->o, &ann, s.id, &u, e));
	MUST(send(u, "f", "half of", 7, e));
	u = upload_free(u);
	assert_int_equal(beside(h, s.id), 0);
	assert_int_equal(size_of(h, s.id, "f"), -1);
	/* The next one removes what a killed process left. */
	(void)snprintf(path, sizeof(path), "%s/sessions/%s/upload-0123456789abcdef", h->dir, s.id);
	assert_int_equal(mkdir(path, 0700), 0);
	strcat(path, "/spare");
	assert_int_equal(mkdir(path, 0700), 0);
	MUST(upload_begin(&h->o, &ann, s.id, &u, e));
	assert_int_equal(beside(h, s.id), 1);
	u = upload_free(u);
	assert_int_equal(beside(h, s.id), 0);
}

/* Each fits alone; the second one finds what the first has put in place since it began. */
static void upload__cap_holds_for_all(void **state)
{
	enum { PIECE = 1 << 20, PIECES = 40 };
	struct house *h = *state;
	struct orch_session_made s;
	struct upload *one = NULL, *two = NULL;
	sbx_autofree char *zeros = calloc(1, PIECE);

	session_of(h, "{\"trust_level\":\"untrusted\"}", &s); /* 64 MiB */
	MUST(upload_begin(&h->o, &ann, s.id, &one, e));
	MUST(upload_begin(&h->o, &ann, s.id, &two, e));
	MUST(upload_file(one, "one", e));
	MUST(send(two, "small", "s", 1, e));
	MUST(upload_file(two, "two", e));
	for (int i = 0; i < PIECES; i++) {
		MUST(upload_data(one, zeros, PIECE, e));
		MUST(upload_data(two, zeros, PIECE, e));
	}
	MUST(upload_commit(one, e));
	FAILS_WITH(WORKSPACE_CAP, upload_commit(two, e));
	two = upload_free(two);
	one = upload_free(one);
	assert_int_equal(size_of(h, s.id, "one"), PIECES * PIECE);
	assert_int_equal(size_of(h, s.id, "two"), -1);
	assert_int_equal(size_of(h, s.id, "small"), 1);
	/* And as soon as it cannot fit; what came before it stays. */
	MUST(upload_begin(&h->o, &ann, s.id, &two, e));
	MUST(send(two, "before", "b", 1, e));
	MUST(upload_file(two, "two", e));
	for (int i = 0; i < 23; i++)
		MUST(upload_data(two, zeros, PIECE, e));
	FAILS_WITH(WORKSPACE_CAP, upload_data(two, zeros, PIECE, e));
	(void)upload_commit(two, NULL);
	two = upload_free(two);
	assert_int_equal(size_of(h, s.id, "before"), 1);
	assert_int_equal(size_of(h, s.id, "two"), -1);
	assert_int_equal(beside(h, s.id), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, build, clear)
	const struct CMUnitTest tests[] = {
		TEST(upload__into_a_session),	   TEST(upload__is_for_the_owner),
		TEST(upload__holds_the_workspace), TEST(upload__that_is_given_up_leaves_nothing),
		TEST(upload__cap_holds_for_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
