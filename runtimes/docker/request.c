/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner: what a container is made with. Nothing here depends on what the engine's own settings
 * are, and no option is ever left out because the engine does not like it.
 */
#include "runtimes/docker/dk_i.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/runtimes_i.h"

#define NANO	   1e9
#define LEAST_CPUS 0.01 /* the engine takes no fewer */

static void put(struct json_object *o, const char *name, struct json_object *value)
{
	(void)json_object_object_add(o, name, value);
}

static void put_text(struct json_object *o, const char *name, const char *text)
{
	put(o, name, json_object_new_string(text));
}

static void put_int(struct json_object *o, const char *name, int64_t n)
{
	put(o, name, json_object_new_int64(n));
}

static void put_bool(struct json_object *o, const char *name, bool b)
{
	put(o, name, json_object_new_boolean(b));
}

static void append(struct json_object *array, const char *text)
{
	(void)json_object_array_add(array, json_object_new_string(text));
}

static struct json_object *one(const char *text)
{
	struct json_object *array = json_object_new_array();

	append(array, text);
	return array;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* The engine takes no more cores than there are, which is what more would come to. */
static int64_t nano_cpus(double cores)
{
	double online = (double)sysconf(_SC_NPROCESSORS_ONLN);

	if (online >= 1 && cores > online)
		cores = online;
	return (int64_t)((cores < LEAST_CPUS ? LEAST_CPUS : cores) * NANO);
}

void dk_limits_json(const struct rt_limits *l, struct json_object *o)
{
	put_int(o, "Memory", l->memory_bytes);
	put_int(o, "MemorySwap", l->memory_bytes);		/* with swap, so there is none */
	put_int(o, "PidsLimit", l->pids > 0 ? l->pids + 1 : 0); /* process 1 */
	put_int(o, "NanoCpus", nano_cpus(l->cpu));
}

static void add_ulimit(struct json_object *array, const char *name, int64_t n)
{
	struct json_object *o = json_object_new_object();

	put_text(o, "Name", name);
	put_int(o, "Soft", n);
	put_int(o, "Hard", n);
	(void)json_object_array_add(array, o);
}

static struct json_object *ulimits(const struct rt_docker *d, const struct rt_limits *l)
{
	struct json_object *array = json_object_new_array();

	add_ulimit(array, "nofile", l->nofile);
	add_ulimit(array, "nproc", d->nproc);
	/* Not 0: with that the kernel would still start the program that the host's core_pattern
	 * may name, as the host's root. 1 is its word for none at all. */
	add_ulimit(array, "core", 1);
	return array;
}

/* ---- security -------------------------------------------------------------------------------- */

static int add_seccomp(const struct rt_docker *d, struct json_object *options, struct sbx_error *e)
{
	sbx_autofree char *profile = NULL, *option = NULL;
	struct json_object *o;
	int r = sbx_read_file(AT_FDCWD, d->seccomp, DK_SECCOMP_MAX, &profile, NULL);

	if (r < 0)
		return sbx_fail_errno(e, SBX_E_POLICY_UNSUPPORTED, -r,
				      "cannot read the profile that docker_seccomp names");
	o = json_tokener_parse(profile);
	if (!json_object_is_type(o, json_type_object)) {
		json_object_put(o);
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"the profile that docker_seccomp names is no JSON object");
	}
	json_object_put(o);
	if (asprintf(&option, "seccomp=%s", profile) < 0) {
		option = NULL;
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the seccomp profile");
	}
	append(options, option);
	return 0;
}

static int security(const struct rt_docker *d, struct json_object *options, struct sbx_error *e)
{
	char apparmor[256];
	int r = 0;

	append(options, "no-new-privileges");
	if (d->seccomp)
		r = add_seccomp(d, options, e);
	if (d->apparmor) {
		(void)snprintf(apparmor, sizeof(apparmor), "apparmor=%s", d->apparmor);
		append(options, apparmor);
	}
	return r;
}

/* ---- file systems ---------------------------------------------------------------------------- */

static void add_bind(struct json_object *mounts, const char *source, const char *target,
		     bool read_only)
{
	struct json_object *m = json_object_new_object(), *o = json_object_new_object();

	put_text(m, "Type", "bind");
	put_text(m, "Source", source);
	put_text(m, "Target", target);
	put_bool(m, "ReadOnly", read_only);
	put_text(o, "Propagation", "rprivate");
	put(m, "BindOptions", o);
	(void)json_object_array_add(mounts, m);
}

/* 0 would mean no limit at all, or what the engine thinks is right. */
static int64_t at_least_1(int64_t n)
{
	return n < 1 ? 1 : n;
}

/* Podman takes neither an owner nor a number of inodes. Inodes are memory, so that the limit of the
 * container holds for them in any case; and whoever is in the container is its one user. */
static void add_tmpfs(struct json_object *tmpfs, const char *target, int64_t bytes, int64_t inodes,
		      const char *owner)
{
	char options[256];

	if (dk_engine_is_podman())
		(void)snprintf(options, sizeof(options), "rw,nosuid,nodev,exec,size=%lld,mode=1777",
			       (long long)at_least_1(bytes));
	else
		(void)snprintf(options, sizeof(options),
			       "rw,nosuid,nodev,exec,size=%lld,nr_inodes=%lld,%s",
			       (long long)at_least_1(bytes), (long long)at_least_1(inodes), owner);
	put_text(tmpfs, target, options);
}

/* As the engine will understand it: one slash between names, none behind, no "." and "..". What it
 * might understand otherwise is none: a path from wherever it is, or a longer one than fits. */
static bool clean(const char *path, char out[SBX_PATH_MAX + 1])
{
	size_t len = 0;

	if (*path != '/' || strlen(path) > SBX_PATH_MAX)
		return false;
	while (*path) {
		size_t n = strcspn(path, "/");

		if (n == 2 && strncmp(path, "..", n) == 0) {
			while (len && out[--len] != '/')
				;
		} else if (n && !(n == 1 && *path == '.')) {
			out[len++] = '/';
			memcpy(out + len, path, n);
			len += n;
		}
		path += n + (path[n] == '/');
	}
	out[len] = '\0';
	return true;
}

/* A directory that the image calls a volume would be one of the host's disk, of any size. The
 * engine makes none where there is a tmpfs of exactly its name. */
static int cover_volumes(const struct dk_sandbox *sb, struct json_object *tmpfs,
			 struct sbx_error *e)
{
	struct json_object *volumes = NULL;

	if (!json_object_object_get_ex(sb->image.config, "Volumes", &volumes) ||
	    !json_object_is_type(volumes, json_type_object))
		return 0;
	json_object_object_foreach(volumes, path, unused)
	{
		char plain[SBX_PATH_MAX + 1], shown[RT_SAID_SIZE];

		(void)unused;
		if (!clean(path, plain)) {
			rt_said(NULL, path, shown, sizeof(shown));
			return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
					"the image has the volume '%s', which is no absolute path "
					"of up to %d bytes",
					shown, SBX_PATH_MAX);
		}
		if (!json_object_object_get_ex(tmpfs, plain, NULL) &&
		    strcmp(plain, "/workspace") != 0)
			add_tmpfs(tmpfs, *plain ? plain : "/", DK_VOLUME_BYTES,
				  rt_tmp_inodes(DK_VOLUME_BYTES), "mode=1777");
	}
	return 0;
}

static int file_systems(const struct dk_sandbox *sb, const char *start, const struct rt_limits *l,
			struct json_object *config, struct sbx_error *e)
{
	struct json_object *mounts = json_object_new_array(), *tmpfs = json_object_new_object();
	char owner[64];

	add_bind(mounts, start, DK_INSIDE_START, true);
	add_bind(mounts, sb->place.door, DK_INSIDE_DOOR, true);
	(void)snprintf(owner, sizeof(owner), "mode=755,uid=%u,gid=%u", (unsigned)sb->place.uid,
		       (unsigned)sb->place.gid);
	if (sb->place.workspace)
		add_bind(mounts, sb->place.workspace, "/workspace", false);
	else /* one more inode, for its root */
		add_tmpfs(tmpfs, "/workspace", l->workspace_bytes, l->workspace_inodes + 1, owner);
	add_tmpfs(tmpfs, "/tmp", l->tmp_bytes, rt_tmp_inodes(l->tmp_bytes) + 1, "mode=1777");
	put(config, "Mounts", mounts);
	put(config, "Tmpfs", tmpfs);
	put_int(config, "ShmSize", at_least_1(l->tmp_bytes));
	put_bool(config, "ReadonlyRootfs", true);
	return cover_volumes(sb, tmpfs, e);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int host_config(const struct dk_sandbox *sb, const struct rt_limits *l,
		       struct json_object *config, struct sbx_error *e)
{
	const struct rt_docker *d = dk_settings(sb->host);
	struct json_object *log = json_object_new_object(), *options = json_object_new_array();
	char start[SBX_PATH_MAX + 1];
	int r;

	put(config, "SecurityOpt", options);
	put_text(log, "Type", "none");
	put(config, "LogConfig", log);
	r = security(d, options, e);
	if (r == 0)
		r = dk_program(sb->host, "sandbox-start", start, sizeof(start), e);
	if (r < 0)
		return r;
	dk_limits_json(l, config);
	put(config, "Ulimits", ulimits(d, l));
	put_int(config, "OomScoreAdj", DK_COMMAND_OOM_SCORE);
	put_text(config, "NetworkMode", "none");
	put_text(config, "IpcMode", "private");
	put_text(config, "CgroupnsMode", "private");
	/* The relay's, when there is one; or there would be the host's own servers and domains to
	 * read. */
	put(config, "Dns", one("127.0.0.1"));
	put(config, "DnsSearch", one(".")); /* none */
	put(config, "CapDrop", one("ALL"));
	put_bool(config, "Privileged", false);
	put_bool(config, "Init", false);
	put_bool(config, "AutoRemove", false);
	return file_systems(sb, start, l, config, e);
}

static int add_labels(const struct dk_sandbox *sb, const struct rt_plan *plan,
		      struct json_object *o, struct sbx_error *e)
{
	char state[33], generation[32];
	int r = dk_state_id(sb->host, true, state, e);

	put_text(o, "sandboxfs.state", r == 0 ? state : "");
	put_text(o, "sandboxfs.owner", sb->place.name);
	if (plan) {
		(void)snprintf(generation, sizeof(generation), "%lld", (long long)plan->generation);
		put_text(o, "sandboxfs.run", plan->run_id);
		put_text(o, "sandboxfs.generation", generation);
	}
	return r;
}

int dk_create_body(const struct dk_sandbox *sb, const struct rt_limits *limits,
		   const struct rt_plan *plan, char **ret, struct sbx_error *e)
{
	struct json_object *o = json_object_new_object(), *config = json_object_new_object(),
			   *labels = json_object_new_object(), *health = json_object_new_object();
	char user[32];
	int r;

	put(o, "HostConfig", config);
	put(o, "Labels", labels);
	/* What an image would run besides, and as whom. */
	put(health, "Test", one("NONE"));
	put(o, "Healthcheck", health);
	(void)snprintf(user, sizeof(user), "%u:%u", (unsigned)sb->place.uid,
		       (unsigned)sb->place.gid);
	put_text(o, "User", user);
	put_text(o, "Image", sb->image.id);
	put(o, "Entrypoint", one(DK_INSIDE_START));
	put(o, "Cmd", json_object_new_array());
	put_text(o, "WorkingDir", "/");
	put_text(o, "Hostname", "sandbox");
	put_bool(o, "Tty", false);
	put_bool(o, "OpenStdin", false);
	r = add_labels(sb, plan, labels, e);
	if (r == 0)
		r = host_config(sb, limits, config, e);
	if (r == 0) {
		*ret = strdup(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));
		if (!*ret)
			r = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a container");
	}
	json_object_put(o);
	return r;
}
