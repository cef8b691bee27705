/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What mounts say of how well they watch workspaces. It stands in the store, one member for each
 * mount that has something to say, so that `health` says it through every door; what a process said
 * counts as long as it lives. It then holds a lock on one byte of a file, by whose place the member
 * is called: the kernel lets go of it when the process ends, in whatever container, and whatever
 * the host was called then.
 */
#include "orchestrator/orch_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/json.h"

#define SHARED "watching" /* a row of meta */
#define LOCKS  "watching.lock"

enum { MOUNTS_MAX = 64 };

/* So long something that happened once is said. */
#define RECENT_US (600 * SBX_SECOND_US)

static struct json_object *parse(const char *text)
{
	struct json_object *all = text ? json_tokener_parse(text) : NULL;

	if (all && json_object_is_type(all, json_type_object))
		return all;
	(void)json_object_put(all);
	return json_object_new_object();
}

static int open_locks(struct orch *o)
{
	return sbx_open_beneath(store_dir_fd(o->store), LOCKS, O_RDWR | O_CREAT, 0600);
}

static bool is_alive(int locks, const char *name)
{
	char *end;
	struct flock l = { .l_type = F_WRLCK,
			   .l_whence = SEEK_SET,
			   .l_start = (off_t)strtoll(name, &end, 10),
			   .l_len = 1 };

	return l.l_start > 0 && *end == '\0' && fcntl(locks, F_OFD_GETLK, &l) == 0 &&
	       l.l_type != F_UNLCK;
}

static void drop_dead(struct json_object *all, int locks)
{
	const char *dead[MOUNTS_MAX];
	size_t n = 0;

	json_object_object_foreach(all, name, said)
	{
		(void)said;
		if (n < SBX_COUNT(dead) && !is_alive(locks, name))
			dead[n++] = name;
	}
	while (n > 0)
		json_object_object_del(all, dead[--n]);
}

/* Takes a name for as long as this process lives. */
static int begin(struct orch *o, struct sbx_error *e)
{
	sbx_autoclose int fd = open_locks(o);
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	uint64_t at;
	int r = fd < 0 ? fd : 0;

	sbx_random(&at, sizeof(at));
	l.l_start = (off_t)(at >> 2 | 1);
	if (r == 0 && fcntl(fd, F_OFD_SETLK, &l) < 0)
		r = -errno;
	if (r == 0 && asprintf(&o->watching_name, "%lld", (long long)l.l_start) < 0) {
		o->watching_name = NULL;
		r = -ENOMEM;
	}
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r, "cannot lock '%s'", LOCKS);
	o->watching_lock = sbx_steal_fd(&fd);
	return 0;
}

void watching_end(struct orch *o)
{
	if (!o->watching_name)
		return;
	free(sbx_steal(&o->watching_name));
	sbx_closep(&o->watching_lock);
}

static int put(struct json_object *all, const char *name, const struct orch_watching *w)
{
	struct json_object *said = json_object_new_object();

	if (!said ||
	    json_object_object_add(said, "off", json_object_new_boolean(w->unavailable)) < 0 ||
	    json_object_object_add(said, "unwatched_us", json_object_new_int64(w->unwatched_us)) <
		    0 ||
	    json_object_object_add(said, "lost_us", json_object_new_int64(w->lost_us)) < 0 ||
	    json_object_object_add(all, name, said) < 0) {
		(void)json_object_put(said);
		return -1;
	}
	return 0;
}

/* The document as it is to be from now on. */
static int change(struct orch *o, const char *before, const struct orch_watching *w, char **ret,
		  struct sbx_error *e)
{
	struct json_object *all = parse(before);
	int r = all ? 0 : -1;

	if (all) {
		drop_dead(all, o->watching_lock);
		json_object_object_del(all, o->watching_name);
	}
	if (r == 0 && w && json_object_object_length(all) < MOUNTS_MAX)
		r = put(all, o->watching_name, w);
	*ret = r == 0 ? strdup(json_object_to_json_string_ext(all, JSON_C_TO_STRING_PLAIN)) : NULL;
	(void)json_object_put(all);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for what a mount says");
}

int orch_watching_say(struct orch *o, const struct orch_watching *w, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	sbx_autofree char *before = NULL, *text = NULL;
	int rc = 0;

	if (!w && !o->watching_name)
		return 0;
	if (!o->watching_name)
		rc = begin(o, e);
	if (rc == 0)
		rc = store_begin(o->store, &tx, e);
	if (rc == 0)
		rc = store_tx_meta_get(tx, SHARED, &before, e);
	if (rc == 0)
		rc = change(o, before, w, &text, e);
	if (rc == 0)
		rc = store_tx_meta_set(tx, SHARED, text, e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), false, e);
	if (rc == 0)
		store_announce(o->store);
	return rc;
}

static bool is_recent(struct json_object *said, const char *member)
{
	struct json_object *at = NULL;

	return json_object_object_get_ex(said, member, &at) &&
	       json_object_get_int64(at) > sbx_now_us() - RECENT_US;
}

void watching_view(struct orch *o, struct sbx_buf *out)
{
	bool off = false, unwatched = false, lost = false;
	sbx_autoclose int locks = -1;
	sbx_autofree char *text = NULL;
	struct json_object *all;
	const char *comma = "";

	(void)store_meta_get(o->store, SHARED, &text, NULL);
	if (text)
		locks = open_locks(o);
	all = parse(text);
	if (all && locks >= 0) /* else nobody can tell who lives */
		drop_dead(all, locks);
	if (all) {
		json_object_object_foreach(all, name, said)
		{
			struct json_object *flag = NULL;

			(void)name;
			off |= json_object_object_get_ex(said, "off", &flag) &&
			       json_object_get_boolean(flag);
			unwatched |= is_recent(said, "unwatched_us");
			lost |= is_recent(said, "lost_us");
		}
	}
	(void)json_object_put(all);
	sbx_buf_printf(out, ",\"watching\":{\"healthy\":%s",
		       off || unwatched || lost ? "false" : "true");
	if (off || unwatched || lost) {
		const struct {
			bool is;
			const char *name;
		} reasons[] = { { off, "workspaces_not_watched" },
				{ unwatched, "directories_not_watched" },
				{ lost, "events_lost" } };

		sbx_buf_puts(out, ",\"reasons\":[");
		for (size_t i = 0; i < SBX_COUNT(reasons); i++) {
			if (!reasons[i].is)
				continue;
			sbx_buf_printf(out, "%s\"%s\"", comma, reasons[i].name);
			comma = ",";
		}
		sbx_buf_puts(out, "]");
	}
	sbx_buf_puts(out, "}");
}
