/* SPDX-License-Identifier: Apache-2.0 */
/* What one run says of itself. Both doors show these bytes. */
#include "orchestrator/orch_i.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"

int orch_view_done(int rc, const struct sbx_buf *out, struct sbx_error *e)
{
	if (rc == 0 && sbx_buf_failed(out))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the answer");
	return rc;
}

int orch_view_refuse(const char *name, const char *found, const char *allowed, struct sbx_error *e)
{
	sbx_autobuf details = SBX_BUF_INIT(8192);

	sbx_buf_puts(&details, "{\"field\":");
	sbx_buf_json_strz(&details, name);
	sbx_buf_puts(&details, ",\"found\":");
	sbx_buf_json_str(&details, found, strnlen(found, 200));
	sbx_buf_puts(&details, ",\"allowed\":");
	sbx_buf_json_strz(&details, allowed);
	sbx_buf_puts(&details, "}");
	(void)sbx_fail(e, SBX_E_INVALID_ARGUMENT, "%s: found '%.80s', allowed %s", name, found,
		       allowed);
	return sbx_error_details(e, "%s", details.failed ? "{}" : details.data);
}

void orch_text_member(struct sbx_buf *out, const char *name, const char *value)
{
	sbx_buf_printf(out, ",\"%s\":", name);
	sbx_buf_json_strz(out, value);
}

void orch_time_member(struct sbx_buf *out, const char *name, int64_t us)
{
	char text[SBX_TIME_TEXT];

	if (us)
		sbx_buf_printf(out, ",\"%s\":\"%s\"", name, sbx_time_format(us, text));
	else
		sbx_buf_printf(out, ",\"%s\":null", name);
}

static const struct orch_reason *reason_of(const struct store_run *r)
{
	return orch_reason_find(r->reason
					? r->reason
					: orch_reason_derive(r->phase, r->message, r->has_exit_code,
							     r->exit_code, r->usage));
}

enum {
	FORMS_ALL =
		ORCH_FORM_STATUS | ORCH_FORM_ADMIN_ITEM | ORCH_FORM_ADMIN_RUN | ORCH_FORM_WORKSPACE,
	FORMS_ADMIN = ORCH_FORM_ADMIN_ITEM | ORCH_FORM_ADMIN_RUN,
	FORMS_OWN = FORMS_ALL & ~ORCH_FORM_WORKSPACE, /* what a workspace's list leaves out */
};

/* One member whose value is text, and the forms that show it. */
struct member {
	const char *name, *value;
	unsigned forms;
};

static void text_members(struct sbx_buf *out, enum orch_form form, const struct member *m, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (m[i].forms & form)
			orch_text_member(out, m[i].name, m[i].value);
}

static void add_head(const struct store_run *r, enum orch_form form, const struct orch_reason *why,
		     struct sbx_buf *out)
{
	const struct member head[] = {
		{ "user_id", r->user, FORMS_ADMIN },
		{ "spec_version", r->spec_version, FORMS_OWN },
		{ "runtime", r->runtime, FORMS_ALL },
		{ "runtime_version", r->runtime_version, FORMS_ALL },
		{ "base_image", r->base_image, FORMS_ALL },
		{ "image_digest", r->image_digest, FORMS_OWN },
		{ "policy_hash", r->policy_hash, FORMS_OWN },
		{ "phase", store_phase_name(r->phase), FORMS_ALL },
		{ "status_reason_code", why->code, FORMS_ALL },
	};

	sbx_buf_puts(out, "{\"id\":");
	sbx_buf_json_strz(out, r->id);
	text_members(out, form, head, SBX_COUNT(head));
}

static void add_course(const struct store_run *r, enum orch_form form,
		       const struct orch_reason *why, struct sbx_buf *out)
{
	sbx_buf_puts(out, ",\"status_reason_details\":");
	orch_reason_json(why, out);
	if (r->has_exit_code)
		sbx_buf_printf(out, ",\"exit_code\":%d", r->exit_code);
	else
		sbx_buf_puts(out, ",\"exit_code\":null");
	orch_time_member(out, "created_at", r->created_us);
	orch_time_member(out, "started_at", r->phase == STORE_QUEUED ? 0 : r->started_us);
	orch_time_member(out, "finished_at", r->finished_us);
	/* A run that has ended always has one: its clients look for a text. */
	orch_text_member(out, "message",
			 r->message			  ? r->message
			 : store_phase_terminal(r->phase) ? why->code
							  : NULL);
	if (form & (ORCH_FORM_STATUS | ORCH_FORM_ADMIN_RUN))
		sbx_buf_printf(out, ",\"resource_usage\":%s", r->usage ? r->usage : "{}");
	if (form == ORCH_FORM_STATUS)
		orch_time_member(out, "estimated_start_time",
				 r->phase == STORE_QUEUED ? r->estimated_start_us : 0);
}

void orch_run_object(const struct store_run *r, enum orch_form form, const char *log_stream_url,
		     struct sbx_buf *out)
{
	const struct orch_reason *why = reason_of(r);
	const struct member tail[] = {
		{ "log_stream_url", log_stream_url, ORCH_FORM_STATUS },
		{ "session_id", r->session_id, FORMS_ALL },
		{ "persona_id", r->persona_id, FORMS_ALL },
		{ "workspace_id", r->workspace_id, FORMS_ALL },
		{ "workspace_group_id", r->workspace_group_id, FORMS_ALL },
		{ "scope_snapshot_id", r->scope_snapshot_id, FORMS_ALL },
		{ "trust_level", r->trust_level, FORMS_OWN },
		{ "network_policy", r->network_policy, FORMS_OWN },
		{ "user", r->user, ORCH_FORM_STATUS },
		{ "name", r->name, FORMS_ALL },
	};

	add_head(r, form, why, out);
	add_course(r, form, why, out);
	text_members(out, form, tail, SBX_COUNT(tail));
	sbx_buf_printf(out, ",\"labels\":%s,\"interactive\":%s", r->labels ? r->labels : "{}",
		       r->interactive ? "true" : "false");
	if (form & FORMS_OWN)
		sbx_buf_printf(out, ",\"claim_generation\":%lld", (long long)r->generation);
	sbx_buf_puts(out, "}");
}

void orch_view_status(struct orch *o, const struct store_run *r, const char *log_stream_url,
		      struct sbx_buf *out)
{
	(void)o;
	orch_run_object(r, ORCH_FORM_STATUS, log_stream_url, out);
	sbx_buf_puts(out, "\n");
}

static void why_queued(struct orch *o, const struct store_run *r, struct sbx_buf *out)
{
	int64_t ahead = 0, queued = 0, active = 0;

	if (orch_slots(o) == 0) {
		sbx_buf_puts(out, "waiting: this door does not execute runs, another one must\n");
		return;
	}
	(void)store_queue_position(o->store, r->user, r->row, &ahead, NULL);
	(void)store_counts(o->store, &queued, &active, NULL);
	sbx_buf_printf(out,
		       "waiting: %lld of your runs are ahead of it, %lld wait in all and %lld of "
		       "%lld slots are taken\n",
		       (long long)ahead, (long long)queued, (long long)active,
		       (long long)orch_settings(o)->max_concurrent_runs);
}

/* A message may quote a word of the run's, and the reader may be at a terminal: what is not a
 * character that can be seen becomes '?'. */
static void put_visible(struct sbx_buf *out, const char *text)
{
	size_t left = strlen(text), n;

	for (; left; text += n, left -= n) {
		unsigned char c = (unsigned char)*text;

		n = sbx_utf8_char(text, left);
		/* C0, DEL, and C1, which is U+0080 to U+009F. */
		if (n == 0 || c < ' ' || c == 0x7f || (c == 0xc2 && (unsigned char)text[1] < 0xa0))
			sbx_buf_puts(out, "?");
		else
			sbx_buf_add(out, text, n);
		n = n ? n : 1;
	}
}

void orch_view_why(struct orch *o, const struct store_run *r, struct sbx_buf *out)
{
	const struct orch_reason *why = reason_of(r);
	bool told = r->message && strcmp(r->message, why->code) != 0;

	if (r->phase == STORE_QUEUED) {
		why_queued(o, r, out);
		return;
	}
	sbx_buf_printf(out, "%s: %s", store_phase_name(r->phase), why->doc);
	if (told) {
		sbx_buf_puts(out, " In detail: ");
		put_visible(out, r->message);
		sbx_buf_puts(out, ".");
	} else if (r->has_exit_code && r->exit_code != 0) {
		sbx_buf_printf(out, " It was %d.", r->exit_code);
	}
	sbx_buf_puts(out, "\n");
}

int orch_view_spec(struct orch *o, const struct store_run *r, struct sbx_buf *out,
		   struct sbx_error *e)
{
	sbx_autofree char *text = NULL;
	int rc = store_run_spec(o->store, r->id, &text, e);

	if (rc < 0)
		return rc;
	sbx_buf_puts(out, text);
	sbx_buf_puts(out, "\n");
	return sbx_buf_failed(out) ? sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the spec") : 0;
}
