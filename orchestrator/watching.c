/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What mounts say of how well they watch workspaces. It stands in the store, one member for each
 * mount that has something to say, so that `health` says it through every door; what a process said
 * counts as long as it lives.
 */
#include "orchestrator/orch_i.h"

#include <string.h>

#include "base/clock.h"
#include "base/json.h"

#define SHARED "watching" /* a row of meta */

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

static void drop_dead(struct json_object *all)
{
	const char *dead[MOUNTS_MAX];
	size_t n = 0;

	json_object_object_foreach(all, owner, said)
	{
		(void)said;
		if (n < SBX_COUNT(dead) && !orch_owner_alive(owner))
			dead[n++] = owner;
	}
	while (n > 0)
		json_object_object_del(all, dead[--n]);
}

static int put(struct json_object *all, const char *owner, const struct orch_watching *w)
{
	struct json_object *said = json_object_new_object();

	if (!said ||
	    json_object_object_add(said, "off", json_object_new_boolean(w->unavailable)) < 0 ||
	    json_object_object_add(said, "unwatched_us", json_object_new_int64(w->unwatched_us)) <
		    0 ||
	    json_object_object_add(said, "lost_us", json_object_new_int64(w->lost_us)) < 0 ||
	    json_object_object_add(all, owner, said) < 0) {
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

	if (all)
		drop_dead(all);
	if (r == 0 && w && json_object_object_length(all) < MOUNTS_MAX)
		r = put(all, o->watching_owner, w);
	else if (all)
		json_object_object_del(all, o->watching_owner);
	*ret = r == 0 ? strdup(json_object_to_json_string_ext(all, JSON_C_TO_STRING_PLAIN)) : NULL;
	(void)json_object_put(all);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for what a mount says");
}

int orch_watching_say(struct orch *o, const struct orch_watching *w, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	sbx_autofree char *before = NULL, *text = NULL;
	int rc;

	if (!w && !o->watching_owner)
		return 0;
	if (!o->watching_owner)
		o->watching_owner = orch_owner_new();
	if (!o->watching_owner)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a name");
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
	sbx_autofree char *text = NULL;
	struct json_object *all;
	const char *comma = "";

	(void)store_meta_get(o->store, SHARED, &text, NULL);
	all = parse(text);
	if (all)
		drop_dead(all);
	if (all) {
		json_object_object_foreach(all, owner, said)
		{
			struct json_object *flag = NULL;

			(void)owner;
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
