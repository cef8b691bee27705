/* SPDX-License-Identifier: Apache-2.0 */
/* From a document to a row: parse, policy, then one transaction for the key, the limits, the row
 * and, when nothing waits and a runner is idle, the claim. */
#include "orchestrator/session_i.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/id.h"
#include "orchestrator/image.h"

int submit_parse(struct orch *o, const struct orch_request *rq, struct ms_run_spec **ret,
		 struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	struct ms_options opts = {
		.refuse_unknown = rq->refuse_unknown,
		.versions = st->supported_spec_versions,
		.default_image_of = rq->default_image ? orch_image_default : NULL,
		.default_image_ctx = st,
		.session_id = rq->session_id,
	};

	if (rq->script_allowed && rq->len >= 2 && memcmp(rq->text, "#!", 2) == 0)
		return ms_run_from_script(rq->text, rq->len, &opts, ret, e);
	return ms_run_parse(rq->text, rq->len, &opts, ret, e);
}

void submit_fingerprint(const char *canonical, char out[65])
{
	unsigned char md[SHA256_DIGEST_LENGTH];

	SHA256((const unsigned char *)canonical, strlen(canonical), md);
	for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", md[i]);
}

/* Everything about one submission that must be freed, whatever happens. */
struct submission {
	struct ms_run_spec *spec;
	struct orch_effective eff;
	struct store_session session; /* owned; id NULL: none */
	int lock;		      /* of its workspace; owned, -1: none */
	char *spec_text;
	char *labels;
	char key_print[65];
	const char *key;      /* borrowed */
	struct store_run row; /* its strings are borrowed: never cleared with store_run_clear */
	char id[SBX_ID_LEN + 1];
};

static void submission_free(struct submission *s)
{
	ms_run_free(s->spec);
	store_session_clear(&s->session);
	sbx_closep(&s->lock);
	free(s->spec_text);
	free(s->labels);
}

static char *labels_json(const struct ms_run_spec *spec)
{
	struct sbx_buf b = SBX_BUF_INIT(1 << 20);

	sbx_buf_puts(&b, "{");
	for (size_t i = 0; i < spec->n_labels; i++) {
		sbx_buf_puts(&b, i ? "," : "");
		sbx_buf_json_strz(&b, spec->labels[i].key);
		sbx_buf_puts(&b, ":");
		sbx_buf_json_strz(&b, spec->labels[i].value);
	}
	sbx_buf_puts(&b, "}");
	return sbx_buf_steal(&b);
}

/* The row that the spec becomes. All strings are borrowed from s, p and the configuration. */
static void fill_row(struct orch *o, const struct orch_principal *p, struct submission *s)
{
	const struct orch_settings *st = orch_settings(o);
	struct ms_run_spec *spec = s->spec;
	struct store_run *r = &s->row;

	r->id = s->id;
	r->user = (char *)(uintptr_t)p->user;
	r->uid = p->uid;
	r->door = (char *)(uintptr_t)p->door;
	r->phase = STORE_QUEUED;
	r->reason = (char *)(uintptr_t) "queued";
	r->spec_version = spec->spec_version;
	r->runtime = spec->runtime;
	r->base_image = spec->base_image;
	r->trust_level = spec->trust_level;
	r->network_policy = spec->network_policy;
	r->policy_hash = orch_config(o)->policy_hash;
	r->session_id = spec->session_id;
	r->persona_id = spec->persona_id;
	r->workspace_id = spec->workspace_id;
	r->workspace_group_id = spec->workspace_group_id;
	r->scope_snapshot_id = spec->scope_snapshot_id;
	r->name = spec->name;
	r->labels = s->labels;
	r->interactive = spec->interactive;
	r->idempotency_key = (char *)(uintptr_t)s->key;
	r->created_us = sbx_now_us();
	r->queue_expires_us = sbx_boot_us() + st->queue_ttl_sec * SBX_SECOND_US;
	admit_reservation(spec, &r->reserved_memory_mb, &r->reserved_cpu_milli);
}

/* Policy, and that the image exists: so that neither is found out only when it runs. */
static int apply_policy(struct orch *o, struct ms_run_spec *spec, struct orch_effective *eff,
			struct sbx_error *e)
{
	struct orch_config *c = orch_config(o);
	int rc = orch_policy_apply(c->settings, c->preflights, spec, eff, e);

	return rc < 0 ? rc
		      : orch_image_check(c->settings, o->state_dir, eff->runtime, eff->base_image,
					 e);
}

/* A run of a session: what its document does not say the session does. */
static int join_session(struct orch *o, const struct orch_principal *p,
			const struct orch_request *rq, struct ms_run_spec *spec,
			struct store_session *ret, struct sbx_error *e)
{
	const struct ms_options opts = { .stored = true };
	ms_autorun struct ms_run_spec *of = NULL;
	int rc;

	if (!spec->session_id)
		return 0;
	rc = session_usable(o, p, spec->session_id, ret, e);
	if (rc == 0)
		rc = ms_session_parse(ret->spec, strlen(ret->spec), &opts, &of, e);
	if (rc == 0)
		rc = ms_run_inherit(spec, of, e);
	if (rc < 0 || spec->base_image)
		return rc;
	if (!rq->default_image)
		return sbx_fail(e, SBX_E_SESSION_BASE_IMAGE,
				"base_image: neither the run nor session %s names one", ret->id);
	spec->base_image = strdup(orch_image_default(orch_settings(o), spec->runtime));
	return spec->base_image ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the document");
}

static int prepare(struct orch *o, const struct orch_principal *p, const struct orch_request *rq,
		   struct submission *s, struct sbx_error *e)
{
	sbx_autofree char *canonical = NULL;
	int rc = submit_parse(o, rq, &s->spec, e);

	if (rc < 0)
		return rc;
	s->key = rq->idempotency_key ? rq->idempotency_key : s->spec->idempotency_key;
	if (s->key) {
		if (strlen(s->key) > MS_KEY_MAX || !*s->key)
			return sbx_fail(e, SBX_E_INVALID_SPEC,
					"idempotency_key: found %zu bytes, allowed 1 to %d",
					strlen(s->key), MS_KEY_MAX);
		/* Before policy: what is compared is what was asked, not what it was clamped to. */
		canonical = ms_run_canonical(s->spec);
		if (!canonical)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the document");
		submit_fingerprint(canonical, s->key_print);
	}
	rc = join_session(o, p, rq, s->spec, &s->session, e);
	if (rc == 0)
		rc = apply_policy(o, s->spec, &s->eff, e);
	if (rc < 0)
		return rc;
	s->spec_text = ms_run_json(s->spec);
	s->labels = labels_json(s->spec);
	if (!s->spec_text || !s->labels)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the document");
	sbx_id_new(s->id);
	fill_row(o, p, s);
	return 0;
}

int submit_conflict(const char *kind, const char *key, const struct store_idem *prior,
		    struct sbx_error *e)
{
	sbx_autobuf b = SBX_BUF_INIT(4096);
	char when[SBX_TIME_TEXT];

	sbx_buf_puts(&b, "{\"prior_id\":");
	sbx_buf_json_strz(&b, prior->object_id);
	sbx_buf_puts(&b, ",\"key\":");
	sbx_buf_json_strz(&b, key);
	sbx_buf_printf(&b, ",\"prior_created_at\":\"%s\"}",
		       sbx_time_format(prior->created_us, when));
	sbx_fail(e, SBX_E_IDEMPOTENCY_CONFLICT,
		 "idempotency key '%.64s' was used for %s %s with another document", key, kind,
		 prior->object_id);
	return sbx_error_details(e, "%s", b.data ? b.data : "{}");
}

/* The earlier run that this key stands for, or a conflict. */
static int replay(struct orch *o, const struct submission *s, const struct store_idem *prior,
		  struct orch_submitted *ret, struct sbx_error *e)
{
	store_autorun r = { 0 };
	int rc;

	if (strcmp(prior->fingerprint, s->key_print) != 0)
		return submit_conflict("run", s->key, prior, e);
	rc = store_run_get(o->store, prior->object_id, &r, e);
	/* A repetition starts nothing, whatever has become of what it repeats. */
	if (rc == -SBX_E_RUN_NOT_FOUND) {
		sbx_error_clear(e);
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND,
				"the run that this idempotency key has started, %s, is gone; "
				"another key starts another one",
				prior->object_id);
	}
	if (rc < 0)
		return rc;
	(void)snprintf(ret->id, sizeof(ret->id), "%s", r.id);
	ret->row = r.row;
	ret->phase = r.phase;
	ret->replayed = true;
	atomic_fetch_add(&o->counts.replayed, 1);
	return 0;
}

static int64_t key_horizon(struct orch *o)
{
	return sbx_now_us() - orch_settings(o)->idempotency_ttl_sec * SBX_SECOND_US;
}

/* Claims the new row for this runner when it may start at once. */
static int claim_now(struct orch *o, struct store_tx *tx, struct submission *s, const char *owner,
		     bool *ret, struct sbx_error *e)
{
	struct store_transition t = {
		.id = s->id,
		.from = STORE_MASK(STORE_QUEUED),
		.generation = 0,
		.to = STORE_STARTING,
		.reason = "starting",
		.started_us = sbx_now_us(),
		.claim_owner = owner,
		.claim_boot = sbx_boot_id(),
		.claim_expires_us =
			sbx_boot_us() + orch_settings(o)->run_claim_lease_sec * SBX_SECOND_US,
	};

	s->row.started_us = t.started_us;
	return store_tx_run_transition(tx, &t, ret, e);
}

static int still_there(struct store_tx *tx, const char *id, struct sbx_error *e)
{
	store_autosession now = { 0 };
	int rc = store_tx_session_get(tx, id, &now, e);

	return rc == 0 && now.ending_us
		       ? sbx_fail(e, SBX_E_SESSION_NOT_FOUND, "no session '%.64s'", id)
		       : rc;
}

/* The transaction. *ret_claimed: the row is starting and belongs to `owner`. */
static int insert(struct orch *o, struct store_tx *tx, struct submission *s, const char *owner,
		  struct orch_submitted *ret, bool *ret_claimed, struct sbx_error *e)
{
	struct store_idem prior = { 0 };
	bool fresh = true, allowed = false;
	int64_t queued = 0;
	int rc = 0;

	*ret_claimed = false;
	/* Whoever destroys it has said so in the row, and lets nobody in any more. */
	if (s->session.id)
		rc = still_there(tx, s->session.id, e);
	if (rc == 0 && s->key)
		rc = store_tx_idem_put(tx, "runs", s->row.user, s->key, s->key_print, s->id,
				       sbx_now_us(), key_horizon(o), &fresh, &prior, e);
	if (rc == 0 && !fresh) {
		rc = replay(o, s, &prior, ret, e);
		store_idem_clear(&prior);
		return rc;
	}
	if (rc == 0)
		rc = admit_queue_limits(o, tx, &s->row, &queued, e);
	s->row.estimated_start_us =
		s->row.created_us +
		queued * orch_settings(o)->queue_estimated_wait_per_run_sec * SBX_SECOND_US;
	if (rc == 0 && owner && queued == 0)
		rc = admit_allowed(o, tx, &s->row, &allowed, e);
	if (rc == 0)
		rc = store_tx_run_insert(tx, &s->row, s->spec_text, e);
	if (rc == 0 && allowed)
		rc = claim_now(o, tx, s, owner, ret_claimed, e);
	ret->row = s->row.row;
	ret->phase = *ret_claimed ? STORE_STARTING : STORE_QUEUED;
	return rc;
}

/* With the row, which nobody has had time to change: a cancel since the commit rings the bell. */
static void hand_over(struct orch *o, struct pool_runner *runner, const struct submission *s)
{
	struct orch_order order = { .generation = 1, .run = s->row, .spec = s->spec_text };

	memcpy(order.id, s->id, sizeof(order.id));
	pool_assign(o->pool, runner, &order);
}

int orch_submit(struct orch *o, const struct orch_principal *p, const struct orch_request *rq,
		struct orch_submitted *ret, struct sbx_error *e)
{
	__attribute__((cleanup(submission_free))) struct submission s = { .lock = -1 };
	store_autotx struct store_tx *tx = NULL;
	struct store_ticket ticket = { 0 };
	struct pool_runner *runner = NULL;
	struct store_idem prior = { 0 };
	bool claimed = false, found = false;
	int rc;

	memset(ret, 0, sizeof(*ret));
	rc = prepare(o, p, rq, &s, e);
	if (rc < 0 && s.key_print[0] &&
	    store_idem_get(o->store, "runs", p->user, s.key, key_horizon(o), &found, &prior,
			   NULL) == 0 &&
	    found) {
		/* A replay is answered whatever became of runtime, image and policy since. */
		sbx_error_clear(e);
		rc = replay(o, &s, &prior, ret, e);
		store_idem_clear(&prior);
		return rc;
	}
	if (rc < 0) {
		atomic_fetch_add(&o->counts.refused, 1);
		return rc;
	}
	crash_point("door_submit_parsed");
	if (!store_healthy(o->store))
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"the disk failed to take an earlier run; repair it and restart the "
				"service");
	ret->bound = s.spec->lifetime && strcmp(s.spec->lifetime, "handle") == 0;
	ret->resume_from_seq = s.spec->resume_from_seq;
	memcpy(ret->id, s.id, sizeof(ret->id));
	if (s.session.id) {
		s.lock = session_lock(o, s.session.id, false,
				      rq->may_wait ? SESSION_LOCK_MS : SESSION_LOCK_SHORT_MS, e);
		if (s.lock < 0)
			return s.lock;
	}
	if (ret->bound && (rc = bound_add(o, s.id, e)) < 0)
		return rc;
	if (o->pool && orch_slots(o) > 0)
		runner = pool_take(o->pool);
	rc = store_begin(o->store, &tx, e);
	if (rc == 0)
		rc = insert(o, tx, &s, runner ? pool_owner(runner) : NULL, ret, &claimed, e);
	crash_point("door_submit_inserted");
	if (rc == 0 && ret->replayed) {
		store_rollback(sbx_steal(&tx));
	} else if (rc == 0) {
		rc = store_commit_early(sbx_steal(&tx), &ticket, e);
	} else {
		atomic_fetch_add(&o->counts.refused, 1);
	}
	crash_point("door_submit_committed");
	if (runner && rc == 0 && claimed)
		hand_over(o, runner, &s);
	else if (runner)
		pool_give_back(o->pool, runner);
	/* The dispatcher may have looked for a runner while this one was in hand. */
	if (runner && !claimed)
		dispatch_wake(o);
	if (claimed && rc == 0)
		orch_count_wait(o, s.row.runtime, 0);
	crash_point("door_submit_assigned");
	if (ret->bound && (rc < 0 || ret->replayed))
		bound_drop(o, s.id);
	if (rc < 0 || ret->replayed)
		return rc;
	/* The sandbox is already being filled while the disk takes the row; the caller hears of the
	 * run only after both. */
	rc = store_settle(o->store, ticket, e);
	crash_point("door_submit_settled");
	/* Refused, but under way: nobody will come to end what lives as long as a handle. */
	if (rc < 0 && ret->bound)
		(void)orch_run_unbind(o, p, s.id, NULL);
	return rc;
}

/* ---- check ----------------------------------------------------------------------------------- */

static void verdict(const struct orch_effective *eff, const struct ms_run_spec *asked,
		    struct sbx_buf *out)
{
	bool wanted_cpu = asked->cpu > 0, wanted_mem = asked->memory_mb > 0;

	sbx_buf_puts(out, "{\"accepted\":true,\"runtime\":");
	sbx_buf_json_strz(out, eff->runtime);
	sbx_buf_puts(out, ",\"trust_level\":");
	sbx_buf_json_strz(out, eff->trust_level);
	sbx_buf_puts(out, ",\"network_policy\":");
	sbx_buf_json_strz(out, eff->network_policy);
	sbx_buf_puts(out, ",\"base_image\":");
	sbx_buf_json_strz(out, eff->base_image);
	sbx_buf_printf(out,
		       ",\"timeout_sec\":%lld,\"startup_timeout_sec\":%lld,\"cpu\":%g,"
		       "\"memory_mb\":%lld,\"pids\":%lld,\"nofile\":%lld,\"workspace_cap_mb\":%lld",
		       (long long)eff->timeout_sec, (long long)eff->startup_timeout_sec, eff->cpu,
		       (long long)eff->memory_mb, (long long)eff->pids, (long long)eff->nofile,
		       (long long)eff->workspace_cap_mb);
	sbx_buf_puts(out, ",\"clamped\":[");
	const struct {
		bool clamped;
		const char *name;
	} rows[] = {
		{ asked->timeout_sec > eff->timeout_sec, "timeout_sec" },
		{ wanted_cpu && asked->cpu > eff->cpu, "resources.cpu" },
		{ wanted_mem && asked->memory_mb > eff->memory_mb, "resources.memory_mb" },
		{ asked->pids > eff->pids, "resources.pids" },
	};
	for (size_t i = 0, n = 0; i < SBX_COUNT(rows); i++)
		if (rows[i].clamped)
			sbx_buf_printf(out, "%s\"%s\"", n++ ? "," : "", rows[i].name);
	sbx_buf_puts(out, "],\"reasons\":[]}\n");
}

int orch_check(struct orch *o, const struct orch_principal *p, const struct orch_request *rq,
	       struct sbx_buf *out, struct sbx_error *e)
{
	ms_autorun struct ms_run_spec *asked = NULL;
	ms_autorun struct ms_run_spec *spec = NULL;
	sbx_autoerror why = SBX_ERROR_INIT;
	struct orch_effective eff = { 0 };
	store_autosession session = { 0 };
	int rc;

	rc = submit_parse(o, rq, &spec, &why);
	if (rc == 0)
		rc = submit_parse(o, rq, &asked, &why);
	if (rc == 0)
		rc = join_session(o, p, rq, spec, &session, &why);
	if (rc == 0)
		rc = apply_policy(o, spec, &eff, &why);
	if (rc < 0) {
		sbx_autofree char *json = sbx_error_json(&why);

		if (!json)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the verdict");
		sbx_buf_puts(out, "{\"accepted\":false,");
		sbx_buf_puts(out, json + 1); /* the error document without its first brace */
	} else {
		verdict(&eff, asked, out);
	}
	return sbx_buf_failed(out) ? sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the verdict") : 0;
}
