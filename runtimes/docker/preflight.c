/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner: does it work here? Asks the engine what it can enforce, and runs a program in a
 * container. The image for that is an empty one, which is made and removed: the program is ours,
 * and a host need not have any image yet.
 */
#include "runtimes/docker/dk_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/clock.h"
#include "runtimes/runtimes_i.h"

enum {
	PREFLIGHT_SECONDS = 8,
	CLEAN_UP_MS =
		1500, /* then for each of what was made: whoever asked waits for all runtimes */
	EMPTY_TAR = 1024,
	HOST_JSON_MAX = 4096,
};

#define PROBE_REPO "sandboxfs-probe"

struct deadline {
	int64_t at_us; /* boot clock */
};

static int64_t until_deadline(void *ctx, bool counts)
{
	const struct deadline *d = ctx;

	(void)counts;
	return sbx_boot_us() >= d->at_us ? RT_GIVE_UP : d->at_us;
}

/* ---- an image -------------------------------------------------------------------------------- */

static void remove_image(const struct rt_host *host, const char *name)
{
	char path[256];
	struct dk_ask ask = { .method = DK_DELETE, .path = path, .limit_ms = CLEAN_UP_MS };
	const struct rt_host firm = dk_firm(host);
	dk_autoanswer a = DK_ANSWER_INIT;

	(void)snprintf(path, sizeof(path), "/images/%s?force=1", name);
	(void)dk_call(&firm, &ask, &a, NULL);
}

/* Those of preflights that were killed. */
static void remove_old_images(const struct rt_host *host)
{
	static const char prefix[] = PROBE_REPO ":";
	struct dk_ask ask = { .method = DK_GET,
			      .path = "/images/json?filters=%7B%22reference%22%3A%5B%22" PROBE_REPO
				      "%22%5D%7D",
			      .limit_ms = DK_SMALL_MS };
	dk_autoanswer a = DK_ANSWER_INIT;
	struct json_object *images, *tags = NULL;
	const char *tag;

	if (dk_call(host, &ask, &a, NULL) < 0 || a.status != 200)
		return;
	images = dk_answer_json(&a);
	for (size_t i = 0;
	     json_object_is_type(images, json_type_array) && i < json_object_array_length(images);
	     i++) {
		if (!json_object_object_get_ex(json_object_array_get_idx(images, i), "RepoTags",
					       &tags) ||
		    !json_object_is_type(tags, json_type_array))
			continue;
		tag = json_object_get_string(json_object_array_get_idx(tags, 0));
		if (tag && strncmp(tag, prefix, sizeof(prefix) - 1) == 0 &&
		    dk_owner_gone(tag + sizeof(prefix) - 1))
			remove_image(host, tag);
	}
	json_object_put(images);
}

/* Of an archive without entries; its id. The tag is for remove_old_images(). */
static bool make_image(const struct rt_host *host, char name[DK_ID_MAX])
{
	static const char tar[EMPTY_TAR];
	char path[256], owner[64];
	struct dk_ask ask = { .method = DK_POST,
			      .path = path,
			      .body = tar,
			      .body_size = sizeof(tar),
			      .tar = true,
			      .limit_ms = DK_SMALL_MS };
	dk_autoanswer a = DK_ANSWER_INIT;
	struct json_object *o;

	dk_owner(owner);
	(void)snprintf(path, sizeof(path), "/images/create?fromSrc=-&repo=" PROBE_REPO "&tag=%s",
		       owner);
	if (dk_call(host, &ask, &a, NULL) < 0 || a.status != 200)
		return false;
	o = dk_answer_json(&a);
	(void)snprintf(name, DK_ID_MAX, "%s", dk_text(o, "status"));
	json_object_put(o);
	return name[0] != '\0';
}

/* ---- a run ----------------------------------------------------------------------------------- */

static bool run_once(const struct rt_host *host, const char *image,
		     const struct egress_config *egress, int64_t until_us)
{
	char program[] = DK_INSIDE_START, argument[] = "nothing", path[] = "PATH=/bin";
	char *argv[] = { program, argument, NULL };
	char *envp[] = { path, NULL };
	struct rt_plan plan = {
		.run_id = "preflight",
		.image_name = image,
		.argv = argv,
		.envp = envp,
		.cwd = "/workspace",
		.limits = rt_preflight_limits,
		.network = egress ? RT_NET_ALLOWLIST : RT_NET_DENY_ALL,
		.egress = egress,
		.workspace_fd = -1,
	};
	struct dk_sandbox *own = calloc(1, sizeof(*own));
	sbx_autoerror e = SBX_ERROR_INIT;
	int r;

	if (!own)
		return false;
	dk_sandbox_init(own, host);
	own->remove_ms = CLEAN_UP_MS;
	r = rt_preflight_run((struct rt_sandbox *)own, &plan, until_us, &e);
	rt_docker.destroy((struct rt_sandbox *)own);
	if (r < 0)
		rt_preflight_log("docker", egress ? "allowlist" : "deny_all", &e);
	return r == 0;
}

/* ---- what it can ----------------------------------------------------------------------------- */

struct abilities {
	bool limits, seccomp, rootless, allowlist;
};

static bool is_true(struct json_object *o, const char *name)
{
	struct json_object *m = NULL;

	return json_object_object_get_ex(o, name, &m) && json_object_get_boolean(m);
}

static void read_abilities(struct json_object *info, struct abilities *ret)
{
	struct json_object *options = NULL;

	ret->limits = is_true(info, "MemoryLimit") && is_true(info, "SwapLimit") &&
		      is_true(info, "PidsLimit") && is_true(info, "CpuCfsQuota");
	if (!json_object_object_get_ex(info, "SecurityOptions", &options) ||
	    !json_object_is_type(options, json_type_array))
		return;
	for (size_t i = 0; i < json_object_array_length(options); i++) {
		const char *text = json_object_get_string(json_object_array_get_idx(options, i));

		ret->seccomp |= text && strncmp(text, "name=seccomp", 12) == 0 &&
				!strstr(text, "unconfined");
		ret->rootless |= text && strcmp(text, "name=rootless") == 0;
	}
}

static bool ask_abilities(const struct rt_host *host, struct abilities *ret)
{
	const struct dk_ask ask = { .method = DK_GET, .path = "/info", .limit_ms = DK_SMALL_MS };
	dk_autoanswer a = DK_ANSWER_INIT;
	struct json_object *o;

	if (dk_call(host, &ask, &a, NULL) < 0 || a.status != 200)
		return false;
	o = dk_answer_json(&a);
	read_abilities(o, ret);
	json_object_put(o);
	return true;
}

static char *host_json(const struct abilities *can)
{
	sbx_autobuf b = SBX_BUF_INIT(HOST_JSON_MAX);

	sbx_buf_puts(&b, "{\"version\":");
	sbx_buf_json_strz(&b, dk_engine_version());
	sbx_buf_puts(&b, ",\"api\":");
	sbx_buf_json_strz(&b, dk_engine_api());
	sbx_buf_printf(&b, ",\"limits\":\"%s\",\"seccomp\":%s,\"rootless\":%s}",
		       can->limits ? "cgroup" : "rlimit", can->seccomp ? "true" : "false",
		       can->rootless ? "true" : "false");
	return sbx_buf_steal(&b);
}

static bool try_it(const struct rt_host *host, int64_t until_us, struct abilities *can)
{
	/* A network with one target, which is for documentation (RFC 5737) and is not spoken to. */
	const struct egress_config egress = { .operator_list = "192.0.2.1",
					      .uid_base = host->uid_base,
					      .uid_range = host->uid_range };
	char image[DK_ID_MAX];
	bool works;

	if (!dk_engine_there(dk_settings(host)) || dk_engine_open(host, NULL) < 0 ||
	    !ask_abilities(host, can))
		return false;
	remove_old_images(host);
	works = make_image(host, image);
	if (works) {
		works = run_once(host, image, NULL, until_us);
		can->allowlist = works && host->egress && run_once(host, image, &egress, until_us);
		remove_image(host, image);
	}
	return works;
}

void dk_preflight(const struct rt_host *host, struct rt_preflight *out)
{
	struct deadline d = { .at_us = sbx_boot_us() + PREFLIGHT_SECONDS * SBX_SECOND_US };
	const struct rt_waiting waiting = { .bell = -1, .turn = until_deadline, .ctx = &d };
	struct abilities can = { .limits = false };
	struct rt_host own = *host;
	bool works;

	memset(out, 0, sizeof(*out));
	own.waiting = &waiting;
	works = try_it(&own, d.at_us, &can);
	out->trusted = out->standard = true;
	/* What nobody trusts needs limits that hold, and a filter of system calls. */
	out->untrusted = !works || (can.limits && (can.seccomp || dk_settings(host)->seccomp));
	out->deny_all_ready = works;
	out->allowlist_ready = can.allowlist;
	if (works)
		out->host_json = host_json(&can);
	else
		out->reasons[out->n_reasons++] = "docker_unavailable";
	dk_engine_close();
}
