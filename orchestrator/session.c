/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: made, looked at, shown. How they end is in session_end.c. */
#include "orchestrator/session_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/json.h"
#include "orchestrator/image.h"

/* ---- who may use it -------------------------------------------------------------------------- */

static int not_found(const char *id, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_SESSION_NOT_FOUND, "no session '%.64s'", id);
}

static bool is_over(const struct store_session *s)
{
	return s->expires_us && s->expires_us <= sbx_now_us();
}

int orch_session_get(struct orch *o, const struct orch_principal *p, const char *id,
		     struct store_session *ret, struct sbx_error *e)
{
	store_autosession s = { 0 };
	int rc;

	if (!sbx_id_valid(id))
		return not_found(id, e);
	rc = store_session_get(o->store, id, &s, e);
	if (rc == -SBX_E_SESSION_NOT_FOUND ||
	    (rc == 0 && (is_over(&s) || (!p->admin && strcmp(s.user, p->user) != 0)))) {
		sbx_error_clear(e);
		return not_found(id, e);
	}
	if (rc < 0)
		return rc;
	*ret = s;
	s = (struct store_session){ 0 };
	return 0;
}

int session_usable(struct orch *o, const struct orch_principal *p, const char *id,
		   struct store_session *ret, struct sbx_error *e)
{
	store_autosession s = { 0 };
	int rc = orch_session_get(o, p, id, &s, e);

	if (rc < 0)
		return rc;
	if (s.ending_us)
		return not_found(id, e);
	*ret = s;
	s = (struct store_session){ 0 };
	return 0;
}

int session_lock(struct orch *o, const char *id, bool exclusive, int wait_ms, struct sbx_error *e)
{
	store_autosession s = { 0 };
	sbx_autoclose int fd = store_session_lock(o->store, id, exclusive, wait_ms);
	int rc;

	if (fd == -EWOULDBLOCK)
		return sbx_fail(e, SBX_E_SESSION_ACTIVE_RUNS,
				"the workspace of session %s is being used; try again later", id);
	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd,
				      "cannot lock the workspace of session %s", id);
	/* Whoever had it may have been the one who destroyed the session, and then its file is one
	 * that we have just made. */
	rc = store_session_get(o->store, id, &s, e);
	if (rc == -SBX_E_SESSION_NOT_FOUND)
		(void)store_session_dir_remove(o->store, id, NULL);
	if (rc < 0)
		return rc;
	return s.ending_us || is_over(&s) ? not_found(id, e) : sbx_steal_fd(&fd);
}

int session_has_runs(const char *id, int64_t n, struct sbx_error *e)
{
	(void)sbx_fail(e, SBX_E_SESSION_ACTIVE_RUNS, "%lld runs of session %s have not ended",
		       (long long)n, id);
	return sbx_error_details(e,
				 "{\"error\":\"session_has_active_runs\",\"active_runs\":%lld,"
				 "\"session_id\":\"%s\"}",
				 (long long)n, id);
}

/* ---- making one ------------------------------------------------------------------------------ */

bool session_entry_fits(const char *name)
{
	size_t n = name ? strlen(name) : 0;

	return n > 0 && n <= MS_NAME_MAX && name[0] != '.' && !strchr(name, '/') &&
	       strcmp(name, "new") != 0 && strcmp(name, "latest") != 0 && !sbx_id_valid(name);
}

int64_t session_expiry(struct orch *o)
{
	int64_t ttl = orch_settings(o)->session_ttl_sec;

	return ttl > 0 ? sbx_now_us() + ttl * SBX_SECOND_US : 0;
}

uid_t session_owner(const struct store_session *s)
{
	/* The sandboxes of an ordinary user's service run as that user, whoever asked for them. */
	return s->uid > 0 && geteuid() == 0 ? (uid_t)s->uid : (uid_t)-1;
}

/* The files in it are the user's, who has no right in the directories above. */
static int make_directory(struct orch *o, const struct store_session *s, struct sbx_error *e)
{
	sbx_autoclose int dir = store_session_dir(o->store, s->id, true, e);
	uid_t uid = session_owner(s);

	if (dir < 0)
		return dir;
	if (uid != (uid_t)-1 && fchownat(dir, "workspace", uid, uid, AT_SYMLINK_NOFOLLOW) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot give the workspace to its user");
	if (fsync(dir) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot make the workspace durable");
	return 0;
}

static int64_t key_horizon(struct orch *o)
{
	return sbx_now_us() - orch_settings(o)->idempotency_ttl_sec * SBX_SECOND_US;
}

/* The key and the row come together, so that a crash leaves no session that its key does not know.
 */
static int insert(struct orch *o, struct store_session *s, bool must, struct session_key *key,
		  struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	bool taken = false, fresh = true;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0 && key && key->text)
		rc = store_tx_idem_put(tx, "sessions", s->user, key->text, key->print, s->id,
				       sbx_now_us(), key_horizon(o), &fresh, &key->prior, e);
	if (!fresh) {
		key->taken = true;
		return rc;
	}
	if (rc == 0)
		rc = store_tx_session_insert(tx, s, &taken, e);
	if (rc == 0 && taken && must)
		return sbx_fail(e, SBX_E_ENTRY_EXISTS, "there is a session '%.120s' already",
				s->entry);
	if (rc == 0 && taken) { /* the name is no promise: it goes without */
		free(sbx_steal(&s->entry));
		rc = store_tx_session_insert(tx, s, &taken, e);
	}
	/* A row that goes with a power cut as its workspace does need not outlast one either. */
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), s->unsynced_boot == NULL, e);
}

/* Not after a commit of which it is only unknown whether it will last. */
static void take_back(struct orch *o, const char *id)
{
	store_autosession s = { 0 };

	if (store_session_get(o->store, id, &s, NULL) == -SBX_E_SESSION_NOT_FOUND)
		(void)store_session_dir_remove(o->store, id, NULL);
}

int session_put(struct orch *o, struct store_session *s, const char *entry, bool keep_workspace,
		struct session_key *key, struct sbx_error *e)
{
	const char *name = entry ? entry : s->name;
	sbx_autoclose int lock = -1;
	int rc = 0;

	if (entry && !session_entry_fits(entry))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"'%.120s' cannot be the name of a session", entry);
	if (session_entry_fits(name)) {
		s->entry = strdup(name);
		if (!s->entry)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a session");
	}
	/* The directory first: a row promises one. What a crash leaves between them has no row, and
	 * the janitor removes what is not locked: it may be looking at this very one. */
	lock = store_session_lock(o->store, s->id, false, SESSION_LOCK_MS);
	if (lock < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -lock,
				      "cannot lock the workspace of a new session");
	crash_point("door_session_locked");
	if (!keep_workspace)
		rc = make_directory(o, s, e);
	crash_point("door_session_directory");
	if (rc == 0)
		rc = insert(o, s, entry != NULL, key, e);
	crash_point("door_session_inserted");
	if (rc < 0 || (key && key->taken))
		take_back(o, s->id);
	return rc;
}

/* ---- the document ---------------------------------------------------------------------------- */

/* Everything about one creation that must be freed. */
struct creation {
	struct ms_run_spec *spec;
	struct store_session s;
	struct session_key key;
};

static void creation_free(struct creation *c)
{
	ms_run_free(c->spec);
	store_session_clear(&c->s);
	store_idem_clear(&c->key.prior);
}

static int replay(struct orch *o, const struct session_key *key, struct orch_session_made *ret,
		  struct sbx_error *e)
{
	const struct store_idem *prior = &key->prior;
	store_autosession s = { 0 };
	int rc;

	if (strcmp(prior->fingerprint, key->print) != 0)
		return submit_conflict("session", key->text, prior, e);
	rc = store_session_get(o->store, prior->object_id, &s, e);
	/* A repetition makes nothing, and never brings back what was destroyed. */
	if (rc == -SBX_E_SESSION_NOT_FOUND) {
		sbx_error_clear(e);
		return sbx_fail(
			e, SBX_E_SESSION_NOT_FOUND,
			"the session that this idempotency key has made, %s, is gone; another "
			"key makes another one",
			prior->object_id);
	}
	if (rc < 0)
		return rc;
	(void)snprintf(ret->id, sizeof(ret->id), "%s", s.id);
	ret->row = s.row;
	ret->replayed = true;
	return 0;
}

/* Before policy: a replay is answered whatever became of that since. */
static int look_up_key(struct orch *o, const struct orch_principal *p, struct session_key *key,
		       struct sbx_error *e)
{
	return key->text ? store_idem_get(o->store, "sessions", p->user, key->text, key_horizon(o),
					  &key->taken, &key->prior, e)
			 : 0;
}

static int parse(struct orch *o, const struct orch_request *rq, struct creation *c,
		 struct sbx_error *e)
{
	const struct ms_options opts = {
		.refuse_unknown = rq->refuse_unknown,
		.versions = orch_settings(o)->supported_spec_versions,
	};
	sbx_autofree char *canonical = NULL;
	int rc = ms_session_parse(rq->text, rq->len, &opts, &c->spec, e);

	if (rc < 0)
		return rc;
	c->key.text = rq->idempotency_key ? rq->idempotency_key : c->spec->idempotency_key;
	if (!c->key.text)
		return 0;
	if (strlen(c->key.text) > MS_KEY_MAX || !*c->key.text)
		return sbx_fail(e, SBX_E_INVALID_SPEC,
				"idempotency_key: found %zu bytes, allowed 1 to %d",
				strlen(c->key.text), MS_KEY_MAX);
	canonical = ms_session_canonical(c->spec);
	if (!canonical)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the document");
	submit_fingerprint(canonical, c->key.print);
	return 0;
}

/* As for a run, so that no run of it fails for what the session says. */
static int apply_policy(struct orch *o, struct ms_run_spec *spec, struct sbx_error *e)
{
	struct orch_config *cfg = orch_config(o);
	struct orch_effective eff = { 0 };
	int rc = orch_policy_apply(cfg->settings, cfg->preflights, spec, &eff, e);

	if (rc == 0 && spec->base_image)
		rc = orch_image_check(cfg->settings, o->state_dir, spec->runtime, spec->base_image,
				      e);
	return rc;
}

static char *copy(const char *text)
{
	return text ? strdup(text) : NULL;
}

static int fill(struct orch *o, const struct orch_principal *p, struct creation *c,
		struct sbx_error *e)
{
	char id[SBX_ID_LEN + 1];

	sbx_id_new(id);
	c->s = (struct store_session){
		.id = strdup(id),
		.user = strdup(p->user),
		.uid = p->uid,
		.door = strdup(p->door),
		.name = copy(c->spec->name),
		.spec = ms_session_json(c->spec),
		.runtime = copy(c->spec->runtime),
		.policy_hash = strdup(orch_config(o)->policy_hash),
		.created_us = sbx_now_us(),
		.expires_us = session_expiry(o),
		.concurrent = c->spec->concurrent,
	};
	if (!c->s.id || !c->s.user || !c->s.door || !c->s.spec || !c->s.policy_hash)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a session");
	return 0;
}

int orch_session_create(struct orch *o, const struct orch_principal *p,
			const struct orch_request *rq, const char *entry,
			struct orch_session_made *ret, struct sbx_error *e)
{
	__attribute__((cleanup(creation_free))) struct creation c = { 0 };
	int rc;

	memset(ret, 0, sizeof(*ret));
	rc = parse(o, rq, &c, e);
	if (rc == 0)
		rc = look_up_key(o, p, &c.key, e);
	if (rc == 0 && !c.key.taken)
		rc = apply_policy(o, c.spec, e);
	if (rc == 0 && !c.key.taken)
		rc = fill(o, p, &c, e);
	if (rc == 0 && !c.key.taken)
		rc = session_put(o, &c.s, entry, false, &c.key, e);
	if (rc < 0)
		return rc;
	if (c.key.taken)
		return replay(o, &c.key, ret, e);
	(void)snprintf(ret->id, sizeof(ret->id), "%s", c.s.id);
	ret->row = c.s.row;
	return 0;
}

int orch_session_extend(struct orch *o, const struct orch_principal *p, const char *id,
			int64_t seconds, struct sbx_error *e)
{
	int64_t ttl = orch_settings(o)->session_ttl_sec;
	store_autotx struct store_tx *tx = NULL;
	store_autosession s = { 0 };
	store_autosession now = { 0 };
	int rc = session_usable(o, p, id, &s, e);

	if (rc < 0)
		return rc;
	if (seconds < 0 || seconds > 31536000 || (ttl > 0 && (seconds == 0 || seconds > ttl)))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "extend: found %lld, allowed %s%lld",
				(long long)seconds, ttl > 0 ? "1 to " : "0 (for ever) to ",
				ttl > 0 ? (long long)ttl : 31536000LL);
	rc = store_begin(o->store, &tx, e);
	/* It may have begun to end since, and nothing takes that back. */
	if (rc == 0)
		rc = store_tx_session_get(tx, id, &now, e);
	if (rc == 0 && (now.ending_us || is_over(&now)))
		rc = not_found(id, e);
	if (rc == 0)
		rc = store_tx_session_times(
			tx, id, seconds ? sbx_now_us() + seconds * SBX_SECOND_US : 0, 0, e);
	if (rc < 0)
		return rc;
	rc = store_commit(sbx_steal(&tx), true, e);
	session_keeper_poke(o);
	return rc;
}

/* ---- what it shows --------------------------------------------------------------------------- */

static void map_member(struct sbx_buf *out, const char *name, const struct ms_pair *list, size_t n)
{
	sbx_buf_printf(out, ",\"%s\":{", name);
	for (size_t i = 0; i < n; i++) {
		sbx_buf_puts(out, i ? "," : "");
		sbx_buf_json_strz(out, list[i].key);
		sbx_buf_puts(out, ":");
		sbx_buf_json_strz(out, list[i].value);
	}
	sbx_buf_puts(out, "}");
}

/* The session's own spec, which the store has written and can read. */
static struct ms_run_spec *spec_of(const struct store_session *s)
{
	const struct ms_options opts = { .stored = true };
	struct ms_run_spec *spec = NULL;

	return ms_session_parse(s->spec, strlen(s->spec), &opts, &spec, NULL) == 0 ? spec : NULL;
}

static void object(const struct store_session *s, struct sbx_buf *out)
{
	ms_autorun struct ms_run_spec *spec = spec_of(s);

	sbx_buf_printf(out, "{\"id\":\"%s\"", s->id);
	orch_text_member(out, "spec_version", spec ? spec->spec_version : NULL);
	orch_text_member(out, "runtime", spec ? spec->runtime : s->runtime);
	orch_text_member(out, "base_image", spec ? spec->base_image : NULL);
	if (spec && spec->cpu > 0)
		sbx_buf_printf(out, ",\"cpu_limit\":%g", spec->cpu);
	else
		sbx_buf_puts(out, ",\"cpu_limit\":null");
	sbx_buf_printf(out, ",\"memory_mb\":%lld,\"timeout_sec\":%lld",
		       spec ? (long long)spec->memory_mb : 0LL,
		       spec ? (long long)spec->timeout_sec : 0LL);
	orch_text_member(out, "network_policy", spec ? spec->network_policy : NULL);
	map_member(out, "env", spec ? spec->env : NULL, spec ? spec->n_env : 0);
	map_member(out, "labels", spec ? spec->labels : NULL, spec ? spec->n_labels : 0);
	orch_text_member(out, "trust_level", spec ? spec->trust_level : NULL);
	orch_time_member(out, "expires_at", s->expires_us);
	orch_text_member(out, "policy_hash", s->policy_hash);
	orch_text_member(out, "persona_id", spec ? spec->persona_id : NULL);
	orch_text_member(out, "workspace_id", spec ? spec->workspace_id : NULL);
	orch_text_member(out, "workspace_group_id", spec ? spec->workspace_group_id : NULL);
	orch_text_member(out, "scope_snapshot_id", spec ? spec->scope_snapshot_id : NULL);
	orch_text_member(out, "name", s->name);
	orch_text_member(out, "entry", s->entry ? s->entry : s->id);
	orch_text_member(out, "cloned_from", s->cloned_from);
	orch_time_member(out, "created_at", s->created_us);
	sbx_buf_printf(out, ",\"concurrent\":%s,\"state\":\"%s\"}",
		       s->concurrent ? "true" : "false", s->ending_us ? "ending" : "active");
}

void orch_view_session(struct orch *o, const struct store_session *s, struct sbx_buf *out)
{
	(void)o;
	object(s, out);
	sbx_buf_puts(out, "\n");
}

void orch_view_session_spec(const struct store_session *s, struct sbx_buf *out)
{
	sbx_buf_puts(out, s->spec);
	sbx_buf_puts(out, "\n");
}

int orch_view_sessions(struct orch *o, const struct orch_principal *p,
		       const struct orch_sessions_query *q, struct sbx_buf *out,
		       struct sbx_error *e)
{
	sbx_autofree struct store_session *list = NULL;
	store_autosession from = { 0 };
	int64_t before = INT64_MAX, limit = q->limit;
	int n, rc = 0;

	if (limit < 1 || limit > 1000)
		return orch_view_refuse("limit", "another number", "1 to 1000", e);
	if (q->cursor && *q->cursor) {
		if (!sbx_id_valid(q->cursor) ||
		    store_session_get(o->store, q->cursor, &from, NULL) < 0 ||
		    strcmp(from.user, p->user) != 0)
			return orch_view_refuse("cursor", q->cursor,
						"the next_cursor of an earlier page", e);
		before = from.row;
	}
	list = calloc((size_t)limit + 1, sizeof(*list));
	if (!list)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a list");
	n = store_session_list_before(o->store, p->user, before, list, (size_t)limit + 1, e);
	sbx_buf_puts(out, "{\"items\":[");
	for (int i = 0; i < n && i < limit; i++) {
		sbx_buf_puts(out, i ? "," : "");
		object(&list[i], out);
	}
	sbx_buf_puts(out, "],\"next_cursor\":");
	sbx_buf_json_strz(out, n > limit ? list[limit - 1].id : NULL);
	sbx_buf_puts(out, "}\n");
	for (int i = 0; i < n; i++)
		store_session_clear(&list[i]);
	return orch_view_done(n < 0 ? n : rc, out, e);
}

/* ---- the workspace --------------------------------------------------------------------------- */

int orch_workspace_dir(struct orch *o, const char *id, struct sbx_error *e)
{
	sbx_autoclose int dir = store_session_dir(o->store, id, false, e);
	int fd = dir < 0 ? dir : sbx_open_beneath(dir, "workspace", O_PATH | O_DIRECTORY, 0);

	if (dir >= 0 && fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd,
				      "cannot open the workspace of session %s", id);
	return fd;
}

int64_t orch_workspace_cap(struct orch *o, const struct store_session *s)
{
	ms_autorun struct ms_run_spec *spec = spec_of(s);
	struct orch_tier_limits t;

	orch_tier_limits(orch_settings(o), spec ? spec->trust_level : NULL, &t);
	return t.workspace_cap_mb << 20;
}

int orch_workspace_busy(struct orch *o, const char *id, bool *ret, struct sbx_error *e)
{
	int64_t n = 0;
	int rc = store_session_runs(o->store, id, true, &n, e);

	*ret = n > 0;
	return rc;
}
