/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 at every named point of what is done to sessions and snapshots: a child does it and dies,
 * and whoever opens the state directory next finds either all of it or none of it, and nothing left
 * over.
 */
#include "session_house.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- a house that loses its process ---------------------------------------------------------- */

enum deed { CREATE, DESTROY, TAKE, DROP, RESTORE, CLONE };

struct scene {
	char session[37], snapshot[37];
};

static int act(struct house *h, enum deed deed, const struct scene *sc, struct sbx_error *e)
{
	struct orch_session_made made;
	store_autosnapshot shot = { 0 };
	enum orch_ending how;
	bool done;
	int rc;

	switch (deed) {
	case CREATE:
		return make(h, &ann, "{\"base_image\":\"host\",\"idempotency_key\":\"k\"}", "fresh",
			    &made, e);
	case DESTROY:
		return orch_session_destroy(&h->o, &ann, sc->session, &how, e);
	case TAKE:
		return orch_snapshot_take(&h->o, &ann, sc->session, "second", &shot, e);
	case DROP:
		return orch_snapshot_drop(&h->o, &ann, sc->session, sc->snapshot, &done, e);
	case RESTORE:
		return orch_snapshot_restore(&h->o, &ann, sc->session, sc->snapshot, e);
	case CLONE:
		rc = orch_session_clone(&h->o, &ann, sc->session, "copy", &made, e);
		return rc < 0 ? rc : session_settle_all(&h->o, e);
	}
	return -1;
}

/* A child on the same state directory, which dies at the point. False: it did not come by there. */
static bool dies(struct house *h, enum deed deed, const struct scene *sc, const char *point)
{
	int status;
	pid_t pid;

	close_house(h);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		sbx_autoerror e = SBX_ERROR_INIT;

		if (setenv("SBX_CRASH_AT", point, 1) < 0 || open_house(h) < 0)
			_exit(2);
		_exit(act(h, deed, sc, &e) < 0 ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(open_house(h), 0);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* What a door does when it starts, and until nothing is left to do. */
static void settle(struct house *h)
{
	bool busy = true;

	session_tidy(&h->o);
	start_keeper(h);
	while (busy) {
		struct store_session list[4];
		int n = store_session_ending(h->o.store, NULL, list, SBX_COUNT(list), NULL);

		for (int i = 0; i < n; i++)
			store_session_clear(&list[i]);
		busy = n != 0;
		sched_yield();
	}
	stop_keeper(h);
	MUST(store_trash_empty(h->o.store, NULL, e));
	MUST(snapshot_collect(&h->o, e));
}

/* ---- what there is --------------------------------------------------------------------------- */

static int count(struct house *h, const char *folder)
{
	sbx_autofree char *path = NULL;
	struct dirent *d;
	int n = 0;
	DIR *dir;

	assert_true(asprintf(&path, "%s/%s", h->dir, folder) > 0);
	dir = opendir(path);
	while (dir && (d = readdir(dir)))
		n += d->d_name[0] != '.' && !strstr(d->d_name, ".lock");
	if (dir)
		closedir(dir);
	return n;
}

/* Files below the folders of a folder. */
static int count_objects(struct house *h)
{
	sbx_autofree char *path = NULL;
	struct dirent *d;
	int n = 0;
	DIR *dir;

	assert_true(asprintf(&path, "%s/objects", h->dir) > 0);
	dir = opendir(path);
	while (dir && (d = readdir(dir))) {
		char sub[300];

		(void)snprintf(sub, sizeof(sub), "objects/%s", d->d_name);
		if (d->d_name[0] != '.')
			n += count(h, sub);
	}
	if (dir)
		closedir(dir);
	return n;
}

static int count_rows(struct house *h)
{
	struct store_session list[8];
	int n = store_session_list(h->o.store, NULL, 0, list, SBX_COUNT(list), NULL);

	for (int i = 0; i < n; i++)
		store_session_clear(&list[i]);
	return n;
}

static int count_snapshots(struct house *h, const char *session)
{
	struct store_snapshot list[8];
	int n = store_snapshot_list(h->o.store, session, 0, list, SBX_COUNT(list), NULL);

	for (int i = 0; i < n; i++)
		store_snapshot_clear(&list[i]);
	return n;
}

static void write_in(struct house *h, const char *session, const char *name, const char *text)
{
	sbx_autoclose int fd = -1;
	char path[300];

	(void)snprintf(path, sizeof(path), "%s/sessions/%s/workspace/%s", h->dir, session, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, text, strlen(text)), 0);
}

static bool reads(struct house *h, const char *session, const char *name, const char *want)
{
	sbx_autofree char *text = NULL;
	char path[300];

	(void)snprintf(path, sizeof(path), "%s/sessions/%s/workspace/%s", h->dir, session, name);
	if (sbx_read_file(AT_FDCWD, path, 1 << 20, &text, NULL) < 0)
		return want == NULL;
	return want && strcmp(text, want) == 0;
}

enum { FILES = 20 };

static void fill(struct house *h, const char *session, const char *text)
{
	for (int i = 0; i < FILES; i++) {
		sbx_autofree char *content = NULL;
		char name[16];

		(void)snprintf(name, sizeof(name), "f%d", i);
		assert_true(asprintf(&content, "%s %d", text, i) > 0);
		write_in(h, session, name, content);
	}
}

static bool is_filled(struct house *h, const char *session, const char *text)
{
	int right = 0;

	for (int i = 0; i < FILES; i++) {
		sbx_autofree char *content = NULL;
		char name[16];

		(void)snprintf(name, sizeof(name), "f%d", i);
		assert_true(asprintf(&content, "%s %d", text, i) > 0);
		right += reads(h, session, name, content);
	}
	/* All of it or none: a mixture is what must never be. */
	assert_true(right == 0 || right == FILES);
	return right == FILES;
}

/* A session with a workspace "old", of which there is a snapshot, and which is "new" now. */
static void stage(struct house *h, struct scene *sc)
{
	struct orch_session_made s;
	store_autosnapshot shot = { 0 };
	char gone[200];

	MUST(make(h, &ann, "{\"base_image\":\"host\"}", "exp", &s, e));
	memcpy(sc->session, s.id, sizeof(sc->session));
	fill(h, s.id, "old");
	write_in(h, s.id, "gone", "only in the old");
	MUST(orch_snapshot_take(&h->o, &ann, s.id, "first", &shot, e));
	(void)snprintf(sc->snapshot, sizeof(sc->snapshot), "%s", shot.id);
	fill(h, s.id, "new");
	write_in(h, s.id, "more", "only in the new");
	(void)snprintf(gone, sizeof(gone), "%s/sessions/%s/workspace/gone", h->dir, s.id);
	assert_int_equal(unlink(gone), 0);
}

#ifdef SBX_CRASH_POINTS
#define NEEDS_POINTS() (void)0
#else
#define NEEDS_POINTS() skip()
#endif

/* ---- the deeds ------------------------------------------------------------------------------- */

static int count_locks(struct house *h)
{
	sbx_autofree char *path = NULL;
	struct dirent *d;
	int n = 0;
	DIR *dir;

	assert_true(asprintf(&path, "%s/sessions", h->dir) > 0);
	dir = opendir(path);
	while (dir && (d = readdir(dir)))
		n += strstr(d->d_name, ".lock") != NULL;
	if (dir)
		closedir(dir);
	return n;
}

/* And whoever asks again with the same key gets the one that is there. */
static void create__is_there_or_not(void **state)
{
	static const char *const points[] = { "door_session_locked", "door_session_directory",
					      "door_session_inserted" };
	struct house *h = *state;
	struct scene none = { .session = "" };

	NEEDS_POINTS();
	for (size_t i = 0; i < SBX_COUNT(points); i++) {
		store_autosession s = { 0 };
		struct orch_session_made again;
		bool made;

		assert_true(dies(h, CREATE, &none, points[i]));
		settle(h);
		made = store_session_get_entry(h->o.store, "ann", "fresh", &s, NULL) == 0;
		assert_int_equal(made, i == 2);
		assert_int_equal(count(h, "sessions"), made);
		assert_int_equal(count_rows(h), made);
		assert_int_equal(count_locks(h), made);
		if (!made)
			continue;
		MUST(make(h, &ann, "{\"base_image\":\"host\",\"idempotency_key\":\"k\"}", NULL,
			  &again, e));
		assert_true(again.replayed);
		assert_string_equal(again.id, s.id);
	}
}

static void destroy__goes_on_until_nothing_is_left(void **state)
{
	static const char *const points[] = {
		"door_session_ending",	       "door_session_artifacts_gone",
		"door_session_snapshots_gone", "door_session_files_gone",
		"door_session_row_gone",
	};
	struct house *h = *state;

	NEEDS_POINTS();
	for (size_t i = 0; i < SBX_COUNT(points); i++) {
		struct scene sc;

		stage(h, &sc);
		if (!dies(h, DESTROY, &sc, points[i]))
			fail_msg("it did not come by %s", points[i]);
		settle(h);
		assert_int_equal(count_rows(h), 0);
		assert_int_equal(count(h, "sessions"), 0);
		assert_int_equal(count(h, "trash"), 0);
		assert_int_equal(count(h, "snapshots"), 0);
		assert_int_equal(count_objects(h), 0);
	}
}

static void take__is_whole_or_leaves_nothing(void **state)
{
	static const char *const points[] = { "door_snapshot_taken", "door_snapshot_inserted" };
	struct house *h = *state;
	struct scene sc;
	int before;

	NEEDS_POINTS();
	stage(h, &sc);
	before = count_objects(h);
	for (size_t i = 0; i < SBX_COUNT(points); i++) {
		store_autosnapshot s = { 0 };

		assert_true(dies(h, TAKE, &sc, points[i]));
		settle(h);
		assert_int_equal(count_snapshots(h, sc.session), 1 + (int)i);
		assert_int_equal(count(h, "snapshots"), 1 + (int)i);
		if (i == 0)
			assert_int_equal(count_objects(h), before);
		else
			MUST(store_snapshot_get(h->o.store, sc.session, "second", &s, e));
		assert_true(is_filled(h, sc.session, "new"));
	}
	MUST(orch_snapshot_restore(&h->o, &ann, sc.session, "second", e));
	assert_true(is_filled(h, sc.session, "new"));
}

static void drop__is_done_or_not(void **state)
{
	struct house *h = *state;
	struct scene sc;

	NEEDS_POINTS();
	stage(h, &sc);
	assert_true(dies(h, DROP, &sc, "door_snapshot_row_gone"));
	settle(h);
	assert_int_equal(count_snapshots(h, sc.session), 0);
	assert_int_equal(count(h, "snapshots"), 0);
	assert_int_equal(count_objects(h), 0);
}

static void restore__leaves_the_old_or_the_new(void **state)
{
	static const struct {
		const char *point;
		bool restored;
	} points[] = {
		{ "door_restore_made", false },
		{ "door_restore_filled", false },
		{ "door_restore_exchanged", true },
		{ "door_restore_done", true },
	};
	struct house *h = *state;

	NEEDS_POINTS();
	for (size_t i = 0; i < SBX_COUNT(points); i++) {
		char beside[120];
		struct scene sc;
		enum orch_ending how;

		stage(h, &sc);
		if (!dies(h, RESTORE, &sc, points[i].point))
			fail_msg("it did not come by %s", points[i].point);
		settle(h);
		assert_int_equal(is_filled(h, sc.session, "old"), points[i].restored);
		assert_int_equal(is_filled(h, sc.session, "new"), !points[i].restored);
		assert_int_equal(reads(h, sc.session, "gone", "only in the old"),
				 points[i].restored);
		assert_int_equal(reads(h, sc.session, "more", "only in the new"),
				 !points[i].restored);
		/* And nothing beside it. */
		(void)snprintf(beside, sizeof(beside), "sessions/%s", sc.session);
		assert_int_equal(count(h, beside), 1);
		MUST(orch_session_destroy(&h->o, &ann, sc.session, &how, e));
		assert_int_equal(how, ORCH_GONE);
	}
}

static void clone__is_there_or_not(void **state)
{
	static const char *const points[] = { "door_session_inserted", "door_clone_synced",
					      "door_clone_marked" };
	struct house *h = *state;
	struct scene sc;

	NEEDS_POINTS();
	stage(h, &sc);
	assert_true(dies(h, CLONE, &sc, "door_clone_copied"));
	settle(h);
	assert_int_equal(count_rows(h), 1);
	assert_int_equal(count(h, "sessions"), 1);
	for (size_t i = 0; i < SBX_COUNT(points); i++) {
		store_autosession copy = { 0 };
		enum orch_ending how;

		assert_true(dies(h, CLONE, &sc, points[i]));
		settle(h);
		assert_int_equal(count_rows(h), 2);
		assert_int_equal(count(h, "sessions"), 2);
		MUST(store_session_get_entry(h->o.store, "ann", "copy", &copy, e));
		assert_string_equal(copy.cloned_from, sc.session);
		assert_null(copy.unsynced_boot);
		assert_true(is_filled(h, copy.id, "new"));
		MUST(orch_session_destroy(&h->o, &ann, copy.id, &how, e));
	}
	assert_true(is_filled(h, sc.session, "new"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, build, clear)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(create__is_there_or_not),
		TEST(destroy__goes_on_until_nothing_is_left),
		TEST(take__is_whole_or_leaves_nothing),
		TEST(drop__is_done_or_not),
		TEST(restore__leaves_the_old_or_the_new),
		TEST(clone__is_there_or_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
