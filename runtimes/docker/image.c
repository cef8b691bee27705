/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: images of the engine. */
#include "runtimes/docker/dk_i.h"

#include <stdio.h>
#include <string.h>

#include <json-c/json.h>

#include "base/auto.h"
#include "runtimes/runtimes_i.h"

enum { IMAGE_NAME_MAX = 512, ENCODED_MAX = 3 * IMAGE_NAME_MAX + 8, MS_MAX = 2000000000 };

void dk_image_clear(struct dk_image *i)
{
	json_object_put(i->config);
	memset(i, 0, sizeof(*i));
}

/* Every byte but the plain ones as %XX. */
static void encode(const char *text, char *out, size_t size)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "-._";
	size_t n = 0;

	for (; *text && n + 4 < size; text++) {
		if (strchr(plain, *text))
			out[n++] = *text;
		else
			n += (size_t)snprintf(out + n, size - n, "%%%02X", (unsigned char)*text);
	}
	out[n] = '\0';
}

/* 1: found; 0: there is none. */
static int inspect(const struct rt_host *host, const char *name, struct dk_image *ret,
		   struct sbx_error *e)
{
	char encoded[ENCODED_MAX], path[ENCODED_MAX + 64];
	struct dk_ask ask = { .method = DK_GET, .path = path, .limit_ms = DK_SMALL_MS };
	dk_autoanswer a = DK_ANSWER_INIT;
	struct json_object *o, *config = NULL;
	int r;

	encode(name, encoded, sizeof(encoded));
	(void)snprintf(path, sizeof(path), "/images/%s/json", encoded);
	r = dk_call(host, &ask, &a, e);
	if (r < 0)
		return r;
	if (a.status == 404)
		return 0;
	if (a.status == 400)
		return dk_refused(host, &a, SBX_E_IMAGE_NOT_FOUND, e, "use this image");
	if (a.status != 200)
		return dk_refused(host, &a, SBX_E_RUNTIME_ERROR, e, "look at the image");
	o = dk_answer_json(&a);
	rt_said(NULL, dk_text(o, "Id"), ret->id, sizeof(ret->id));
	if (json_object_object_get_ex(o, "Config", &config))
		ret->config = json_object_get(config);
	json_object_put(o);
	return ret->id[0] ? 1
			  : sbx_fail(e, SBX_E_RUNTIME_ERROR,
				     "the engine says nothing of use about the image");
}

/* The last line of the progress that names an error; "" when there is none. The status of the
 * answer is 200 whatever happens. */
static void pull_error(const struct rt_host *host, const struct dk_answer *a,
		       char out[RT_SAID_SIZE])
{
	char *rest = a->body.data, *line;

	out[0] = '\0';
	while (rest && (line = strsep(&rest, "\r\n"))) {
		struct json_object *o = *line == '{' ? json_tokener_parse(line) : NULL;
		const char *text = dk_text(o, "error");

		if (*text)
			rt_said(host->state_dir, text, out, RT_SAID_SIZE);
		json_object_put(o);
	}
}

/* A name without tag would mean all of them. */
static bool has_tag(const char *name)
{
	const char *slash = strrchr(name, '/');

	return strchr(name, '@') || strchr(slash ? slash : name, ':');
}

static int pull(const struct rt_host *host, const char *name, struct sbx_error *e)
{
	char encoded[ENCODED_MAX], path[ENCODED_MAX + 64], error[RT_SAID_SIZE];
	int64_t ms = dk_settings(host)->pull_timeout_sec * 1000;
	struct dk_ask ask = { .method = DK_POST,
			      .path = path,
			      .limit_ms = (uint32_t)(ms < MS_MAX ? ms : MS_MAX),
			      .tail = true,
			      .no_hurry = true };
	dk_autoanswer a = DK_ANSWER_INIT;
	int r;

	encode(name, encoded, sizeof(encoded));
	(void)snprintf(path, sizeof(path), "/images/create?fromImage=%s%s", encoded,
		       has_tag(name) ? "" : "&tag=latest");
	r = dk_call(host, &ask, &a, e);
	if (r < 0)
		return r == -SBX_E_INTERRUPTED ? r : sbx_error_wrap(e, r, "cannot fetch the image");
	if (a.status != 200)
		return dk_refused(host, &a, SBX_E_IMAGE_NOT_FOUND, e, "fetch the image");
	pull_error(host, &a, error);
	return error[0] ? sbx_fail(e, SBX_E_IMAGE_NOT_FOUND, "cannot fetch the image: %s", error)
			: 0;
}

int dk_image_get(const struct rt_host *host, const char *name, struct dk_image *ret,
		 struct sbx_error *e)
{
	int r;

	dk_image_clear(ret);
	if (!name || !*name || strlen(name) > IMAGE_NAME_MAX)
		return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND,
				"base_image: found a name of %zu bytes, allowed 1 to %d",
				name ? strlen(name) : 0, IMAGE_NAME_MAX);
	r = inspect(host, name, ret, e);
	if (r != 0)
		return r < 0 ? r : 0;
	/* What is named by its digest alone is nowhere to be fetched from. */
	if (!dk_settings(host)->pull || strncmp(name, "sha256:", 7) == 0)
		return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND,
				"base_image: the engine has no image '%.200s'%s", name,
				dk_settings(host)->pull ? "" : ", and docker_pull is off");
	r = pull(host, name, e);
	if (r == 0)
		r = inspect(host, name, ret, e);
	if (r == 0)
		r = sbx_fail(e, SBX_E_IMAGE_NOT_FOUND,
			     "base_image: '%.200s' was fetched and is not there", name);
	return r < 0 ? r : 0;
}
