/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: containers, from create to remove. */
#include "runtimes/docker/dk_i.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include <json-c/json.h>

#include "base/auto.h"
#include "base/crash.h"
#include "base/fs.h"
#include "runtimes/runtimes_i.h"

enum { LABEL_MAX = 4096 };

static bool unsettled; /* the engine may still be making what nobody waited for */

int dk_container_name(const struct rt_host *host, const char *place, char ret[DK_NAME_MAX],
		      struct sbx_error *e)
{
	char state[33];
	int r = dk_state_id(host, true, state, e);

	/* Part of the id keeps apart what two state directories call the same. */
	if (r == 0)
		(void)snprintf(ret, DK_NAME_MAX, "sandboxfs-%.12s-%s", state, place);
	return r;
}

int dk_container_post(struct dk_sandbox *sb, const char *verb, const char *body, uint32_t limit_ms,
		      struct dk_answer *ret, struct sbx_error *e)
{
	char name[DK_NAME_MAX], path[DK_NAME_MAX + 64];
	struct dk_ask ask = { .method = DK_POST,
			      .path = path,
			      .body = body,
			      .body_size = body ? strlen(body) : 0,
			      .limit_ms = limit_ms };
	int r = dk_container_name(sb->host, sb->place.name, name, e);

	if (r < 0)
		return r;
	(void)snprintf(path, sizeof(path), "/containers/%s/%s", name, verb);
	return ret ? dk_call(sb->host, &ask, ret, e) : dk_post(sb->host, &ask, e);
}

/* ---- making ---------------------------------------------------------------------------------- */

/* A warning is a limit that the engine has dropped. */
static int check_warnings(const struct dk_sandbox *sb, const struct rt_limits *l,
			  const struct dk_answer *a, struct sbx_error *e)
{
	struct json_object *o = dk_answer_json(a), *list = NULL;
	char said[RT_SAID_SIZE];
	const char *text;
	int r = 0;

	if (l->strict && json_object_object_get_ex(o, "Warnings", &list) &&
	    json_object_is_type(list, json_type_array) && json_object_array_length(list) > 0) {
		text = json_object_get_string(json_object_array_get_idx(list, 0));
		rt_said(sb->host->state_dir, text ? text : "", said, sizeof(said));
		r = sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
			     "the engine does not enforce what it was asked to: %s", said);
	}
	json_object_put(o);
	return r;
}

/* With security options the engine's refusal is one of them, mostly; nothing is tried without. */
static enum sbx_code refusal(const struct dk_sandbox *sb, const struct dk_answer *a)
{
	const struct rt_docker *d = dk_settings(sb->host);

	return (d->seccomp || d->apparmor) && a->body.data &&
			       (strstr(a->body.data, "seccomp") ||
				strstr(a->body.data, "apparmor") ||
				strstr(a->body.data, "AppArmor"))
		       ? SBX_E_POLICY_UNSUPPORTED
		       : SBX_E_RUNTIME_ERROR;
}

static int create(struct dk_sandbox *sb, const struct rt_limits *limits, const struct rt_plan *plan,
		  struct sbx_error *e)
{
	char name[DK_NAME_MAX], path[DK_NAME_MAX + 64];
	sbx_autofree char *body = NULL;
	struct dk_ask ask = { .method = DK_POST, .path = path, .limit_ms = DK_STEP_MS };
	dk_autoanswer a = DK_ANSWER_INIT;
	int r = dk_create_body(sb, limits, plan, &body, e);

	if (r == 0)
		r = dk_container_name(sb->host, sb->place.name, name, e);
	if (r < 0)
		return r;
	(void)snprintf(path, sizeof(path), "/containers/create?name=%s", name);
	ask.body = body;
	ask.body_size = strlen(body);
	sb->created = unsettled = true;
	r = dk_call(sb->host, &ask, &a, e);
	unsettled = r < 0;
	if (r < 0)
		return r;
	if (a.status != 201) {
		/* 409: there is one of our name; and what failed in the engine may be there in
		 * part. */
		sb->created = a.status == 409 || a.status >= 500;
		return dk_refused(sb->host, &a,
				  a.status == 404 ? SBX_E_IMAGE_NOT_FOUND : refusal(sb, &a), e,
				  "create the container");
	}
	crash_point("docker_created");
	return check_warnings(sb, limits, &a, e);
}

static int start(struct dk_sandbox *sb, struct sbx_error *e)
{
	dk_autoanswer a = DK_ANSWER_INIT;
	int r = dk_container_post(sb, "start", NULL, DK_STEP_MS, &a, e);

	if (r < 0)
		return r;
	if (a.status != 204 && a.status != 304)
		return dk_refused(sb->host, &a, refusal(sb, &a), e, "start the container");
	crash_point("docker_started");
	/* Its answer is the end of the container, should that come before the first word. */
	return dk_container_post(sb, "wait", NULL, DK_HELLO_MS, NULL, e);
}

/* An engine on a kernel without AppArmor takes any profile and uses none. */
static int check_profile(const struct dk_sandbox *sb, struct sbx_error *e)
{
	const char *wanted = dk_settings(sb->host)->apparmor;
	sbx_autofree char *label = NULL;
	size_t n = wanted ? strlen(wanted) : 0;
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%ld/attr/current", (long)sb->pid);
	if (!wanted || (sbx_read_file(AT_FDCWD, path, LABEL_MAX, &label, NULL) == 0 &&
			strncmp(label, wanted, n) == 0 && strchr(" \n", label[n])))
		return 0;
	return sbx_fail(
		e, SBX_E_POLICY_UNSUPPORTED,
		"the container does not have the profile that docker_apparmor_profile names");
}

int dk_container_make(struct dk_sandbox *sb, const char *image, const struct rt_limits *limits,
		      const struct rt_plan *plan, struct sbx_error *e)
{
	int fd = plan ? plan->workspace_fd : -1;
	char state[33];
	int r = dk_engine_open(sb->host, e);

	if (r == 0)
		(void)snprintf(sb->runtime_version, sizeof(sb->runtime_version), "%s",
			       dk_engine_version());
	if (r == 0)
		r = dk_image_get(sb->host, image, &sb->image, e);
	if (r == 0)
		r = dk_state_id(sb->host, true, state, e);
	if (r == 0)
		r = dk_place_make(sb->host, fd, &sb->place, e);
	if (r == 0)
		r = create(sb, limits, plan, e);
	if (r == 0)
		r = start(sb, e);
	if (r == 0)
		r = dk_hello(sb, e);
	if (r == 0)
		r = check_profile(sb, e);
	if (r < 0)
		return r;
	sb->limits = *limits;
	sb->has_session = fd >= 0;
	sb->image_name = strdup(image);
	return sb->image_name ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a container");
}

int dk_container_limit(struct dk_sandbox *sb, const struct rt_limits *l, struct sbx_error *e)
{
	struct json_object *o = json_object_new_object();
	dk_autoanswer a = DK_ANSWER_INIT;
	int r;

	dk_limits_json(l, o);
	r = dk_container_post(sb, "update",
			      json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN),
			      DK_SMALL_MS, &a, e);
	json_object_put(o);
	if (r < 0)
		return r;
	if (a.status != 200)
		return dk_refused(sb->host, &a, SBX_E_RUNTIME_ERROR, e,
				  "change the limits of the container");
	sb->limits = *l;
	return check_warnings(sb, l, &a, e);
}

/* ---- removing -------------------------------------------------------------------------------- */

static bool not_there(const struct rt_host *host, const char *name, uint32_t limit_ms)
{
	char path[DK_NAME_MAX + 64];
	struct dk_ask ask = { .method = DK_GET, .path = path, .limit_ms = limit_ms };
	dk_autoanswer a = DK_ANSWER_INIT;

	(void)snprintf(path, sizeof(path), "/containers/%s/json", name);
	return dk_call(host, &ask, &a, NULL) == 0 && a.status == 404;
}

bool dk_container_gone(const struct rt_host *host, const char *name, uint32_t limit_ms)
{
	char path[DK_NAME_MAX + 64];
	struct dk_ask ask = { .method = DK_DELETE, .path = path, .limit_ms = limit_ms };
	dk_autoanswer a = DK_ANSWER_INIT;

	(void)snprintf(path, sizeof(path), "/containers/%s?force=1&v=1", name);
	if (dk_call(host, &ask, &a, NULL) < 0)
		return false;
	/* 409: somebody else is at it, or the engine cannot do it now. */
	return a.status == 204 || a.status == 404 ||
	       (a.status == 409 && not_there(host, name, limit_ms));
}

void dk_container_remove(struct dk_sandbox *sb)
{
	char name[DK_NAME_MAX];
	const struct rt_host firm = dk_firm(sb->host);
	bool gone = !sb->created, settled = true;

	/* Process 1 ends with either of these, also when nobody removes the container. */
	(void)cg_watch_thaw(&sb->watch);
	if (sb->pidfd >= 0)
		(void)syscall(SYS_pidfd_send_signal, sb->pidfd, SIGKILL, NULL, 0);
	sbx_closep(&sb->sock);
	dk_place_shut(&sb->place);
	/* What an engine makes after it was asked to remove it is for the sweep. */
	if (unsettled)
		settled = dk_engine_settle(sb->remove_ms);
	unsettled = false;
	if (!gone && dk_container_name(sb->host, sb->place.name, name, NULL) == 0)
		gone = dk_container_gone(&firm, name, sb->remove_ms) && settled;
	crash_point("docker_removed");
	dk_place_remove(&sb->place, gone);
	cg_watch_close(&sb->watch);
	dk_image_clear(&sb->image);
	free(sb->image_name);
	sb->image_name = NULL;
	sb->created = false;
}
