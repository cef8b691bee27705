/* SPDX-License-Identifier: Apache-2.0 */
/* What a readable node says: each view is one function of the orchestrator. */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <string.h>

#include "runtimes/runtimes.h"

struct view_ctx {
	struct fsd *f;
	fuse_req_t req;
	fuse_ino_t ino;
	const struct store_run *run; /* loaded when the view needs it */
	struct sbx_buf *out;
	struct sbx_error *e;
};

static int v_readme(struct view_ctx *c)
{
	ms_tree_readme(c->out);
	return 0;
}

static int last(struct view_ctx *c, enum ms_view view)
{
	size_t len;
	sbx_autofree char *text = results_get(c->f->results, fuse_req_ctx(c->req)->uid, view, &len);

	if (text)
		sbx_buf_add(c->out, text, len);
	return 0;
}

static int v_last_result(struct view_ctx *c)
{
	return last(c, MS_V_LAST_RESULT);
}

static int v_last_check(struct view_ctx *c)
{
	return last(c, MS_V_LAST_CHECK);
}

/* Without a run, `latest` points to a name that does not exist. */
static int v_latest(struct view_ctx *c)
{
	struct store_run_key key;
	struct orch_principal p;
	int rc;

	who_is(c->f, c->req, &p);
	rc = store_run_latest(c->f->store, p.user, &key, c->e);
	if (rc == -SBX_E_RUN_NOT_FOUND) {
		sbx_error_clear(c->e);
		sbx_buf_puts(c->out, "none-yet");
		return 0;
	}
	if (rc == 0)
		sbx_buf_puts(c->out, key.id);
	return rc;
}

static int v_last_session(struct view_ctx *c)
{
	return last(c, MS_V_LAST_SESSION);
}

static int v_latest_session(struct view_ctx *c)
{
	store_autosession s = { 0 };
	struct orch_principal p;
	int n;

	who_is(c->f, c->req, &p);
	n = store_session_list_before(c->f->store, p.user, INT64_MAX, &s, 1, c->e);
	if (n >= 0)
		sbx_buf_puts(c->out, n == 0 ? "none-yet" : s.entry ? s.entry : s.id);
	return n < 0 ? n : 0;
}

static int v_spec(struct view_ctx *c)
{
	return orch_view_spec(c->f->orch, c->run, c->out, c->e);
}

static int v_status(struct view_ctx *c)
{
	sbx_buf_printf(c->out, "%s\n", store_phase_name(c->run->phase));
	return 0;
}

static int v_status_json(struct view_ctx *c)
{
	orch_view_status(c->f->orch, c->run, NULL, c->out);
	return 0;
}

static int v_exit_code(struct view_ctx *c)
{
	sbx_buf_printf(c->out, "%d\n", c->run->exit_code);
	return 0;
}

static int v_why(struct view_ctx *c)
{
	orch_view_why(c->f->orch, c->run, c->out);
	return 0;
}

static int v_session_link(struct view_ctx *c)
{
	sbx_buf_printf(c->out, "../../sessions/%s",
		       c->run->session_id ? c->run->session_id : "none");
	return 0;
}

static int v_runtime(struct view_ctx *c)
{
	const struct rt_known *k = rt_known_at((size_t)ino_row(c->ino) - 1);

	return k ? orch_view_runtime(c->f->orch, k->name, c->out, c->e)
		 : sbx_fail(c->e, SBX_E_NOT_FOUND, "no such runtime");
}

#define PLAIN_VIEW(fn, call)                                                                       \
	static int fn(struct view_ctx *c)                                                          \
	{                                                                                          \
		return call(c->f->orch, c->out, c->e);                                             \
	}
PLAIN_VIEW(v_health, orch_view_health)
PLAIN_VIEW(v_metrics, orch_view_metrics)
PLAIN_VIEW(v_diagnostics, orch_view_diagnostics)
PLAIN_VIEW(v_operator, orch_view_operator)
PLAIN_VIEW(v_queue, orch_view_queue)

/* A file has no second page. */
enum { USERS_MAX = 100000, ADMIN_RUNS_MAX = 1000 };

static int v_usage(struct view_ctx *c)
{
	const struct orch_page page = { .limit = USERS_MAX, .ascending = true };

	return orch_view_admin_usage(c->f->orch, &page, NULL, c->out, c->e);
}

static int v_runs(struct view_ctx *c)
{
	const struct orch_admin_runs q = { .page = { .limit = ADMIN_RUNS_MAX } };

	return orch_view_admin_runs(c->f->orch, &q, c->out, c->e);
}

static const struct {
	int (*render)(struct view_ctx *c);
	bool of_run; /* needs the row */
} views[MS_V__COUNT] = {
	[MS_V_README] = { v_readme, false },
	[MS_V_LAST_RESULT] = { v_last_result, false },
	[MS_V_LAST_CHECK] = { v_last_check, false },
	[MS_V_LATEST] = { v_latest, false },
	[MS_V_SPEC] = { v_spec, true },
	[MS_V_STATUS] = { v_status, true },
	[MS_V_STATUS_JSON] = { v_status_json, true },
	[MS_V_EXIT_CODE] = { v_exit_code, true },
	[MS_V_WHY] = { v_why, true },
	[MS_V_SESSION_LINK] = { v_session_link, true },
	[MS_V_RUNTIME] = { v_runtime, false },
	[MS_V_HEALTH] = { v_health, false },
	[MS_V_METRICS] = { v_metrics, false },
	[MS_V_DIAGNOSTICS] = { v_diagnostics, false },
	[MS_V_OPERATOR] = { v_operator, false },
	[MS_V_USAGE] = { v_usage, false },
	[MS_V_ADMIN_RUNS] = { v_runs, false },
	[MS_V_QUEUE] = { v_queue, false },
	[MS_V_LAST_SESSION] = { v_last_session, false },
	[MS_V_LATEST_SESSION] = { v_latest_session, false },
};

int render(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
	   struct sbx_buf *out)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	store_autorun row = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct view_ctx c = { f, req, ino, NULL, out, &e };
	int rc = 0;

	if (n && is_coming_node(ino_node(ino)))
		return coming_render(f, ino, out);
	if (n && !views[n->view].render && is_session_node(ino_node(ino)))
		return session_render(f, req, ino, out);
	if (n && is_by_node(ino_node(ino)))
		return by_link(f, req, ino, out);
	if (n && !views[n->view].render && is_image_node(ino_node(ino)))
		return img_render(f, ino, out);
	if (!n || !views[n->view].render)
		return -EACCES;
	if (views[n->view].of_run) {
		if (!run)
			return -ENOENT;
		rc = store_run_get_row(f->store, run->key.row, &row, &e);
		c.run = &row;
	}
	if (rc == 0)
		rc = views[n->view].render(&c);
	if (rc < 0)
		return -fsd_errno(&e);
	return sbx_buf_failed(out) ? -ENOMEM : 0;
}

bool is_final(const struct ms_node *n, const struct run_ref *run)
{
	if (n->view == MS_V_README || n->view == MS_V_SESSION_SPEC || n->view == MS_V_SHOT_META ||
	    n->view == MS_V_SHOT_TAR)
		return true;
	if (!run)
		return false;
	return n->view == MS_V_SPEC || store_phase_terminal(run->key.phase);
}
