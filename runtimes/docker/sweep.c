/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner: what dead runners left behind. A directory of a container whose owner is gone says that
 * there is something to look for; what is removed is what the engine's labels say. Without such a
 * directory nobody is asked anything.
 */
#include "runtimes/docker/dk_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <json-c/json.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"

enum {
	SWEEP_SECONDS = 15, /* for all of it; the next sweep goes on */
	/* An engine may still be making what a runner has asked for that is dead, which may have
	 * been this long after it made the place, or has given up, which is when it left the note.
	 */
	SETTLE_SECONDS = DK_STEP_MS / 1000 + 60,
	GONE_MAX = 1024,
	REMOVE_MS = 5000,   /* for each of them: a run may be waiting behind it */
	SLOW_MS = 2000,	    /* an attempt that fails after so long would hold up run after run */
	RETRY_SECONDS = 60, /* and is not made again so soon */
};

static const char slow_file[] = "slow"; /* when that was, for all runners */

/* A container's, by its label: its owner is dead, or has left a note that it could not remove it.
 */
static bool is_gone(int dir, const char *name)
{
	char note[DK_NAME_MAX + sizeof(DK_LEFT)];
	struct stat st;

	if (dk_owner_gone(name))
		return true;
	(void)snprintf(note, sizeof(note), DK_LEFT "%.*s", DK_NAME_MAX, name);
	return *name && !strchr(name, '/') && fstatat(dir, note, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool is_note(const char *name)
{
	return strncmp(name, DK_LEFT, sizeof(DK_LEFT) - 1) == 0;
}

/* The names of abandoned places; their number. */
static size_t find_gone(int dir, char *names[GONE_MAX])
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
	struct dirent *entry;
	size_t n = 0;

	if (!d) {
		sbx_closep(&copy);
		return 0;
	}
	while (n < GONE_MAX && (entry = readdir(d)))
		if (sbx_entry_type(dir, entry) == DT_DIR &&
		    (is_note(entry->d_name) || dk_owner_gone(entry->d_name)) &&
		    (names[n] = strdup(entry->d_name)))
			n++;
	(void)closedir(d);
	return n;
}

static void unmount(const struct rt_host *host, const char *name)
{
	sbx_autofree char *path = NULL;

	if (asprintf(&path, "%s/docker/%s/workspace", host->state_dir, name) < 0) {
		path = NULL;
		return;
	}
	while (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
		;
}

/* ---- containers ------------------------------------------------------------------------------ */

static struct json_object *list(const struct rt_host *host)
{
	char state[33], path[256];
	struct dk_ask ask = { .method = DK_GET, .path = path, .limit_ms = DK_SMALL_MS };
	dk_autoanswer a = DK_ANSWER_INIT;

	if (dk_state_id(host, false, state, NULL) < 0 || !state[0])
		return NULL;
	(void)snprintf(
		path, sizeof(path),
		"/containers/json?all=1&filters=%%7B%%22label%%22%%3A%%5B%%22sandboxfs.state%%3D"
		"%s%%22%%5D%%7D",
		state);
	if (dk_call(host, &ask, &a, NULL) < 0 || a.status != 200)
		return NULL;
	return dk_answer_json(&a);
}

/* Labels alone may be inherited: of an image that somebody made of one of ours. */
static bool has_our_name(const struct rt_host *host, struct json_object *o, const char *owner)
{
	char wanted[DK_NAME_MAX];
	struct json_object *names = NULL;

	if (!json_object_object_get_ex(o, "Names", &names) ||
	    !json_object_is_type(names, json_type_array) ||
	    dk_container_name(host, owner, wanted, NULL) < 0)
		return false;
	for (size_t i = 0; i < json_object_array_length(names); i++) {
		const char *name = json_object_get_string(json_object_array_get_idx(names, i));

		if (name && strcmp(name + (*name == '/'), wanted) == 0)
			return true;
	}
	return false;
}

static bool slow_since(int64_t began_us)
{
	return sbx_boot_us() - began_us > SLOW_MS * INT64_C(1000);
}

/* True: there is none of a dead owner left, as far as the engine knows. */
static bool remove_all(const struct rt_host *host, int dir, struct json_object *containers)
{
	int64_t until = sbx_boot_us() + SWEEP_SECONDS * SBX_SECOND_US, began;
	bool all = true, gone;

	for (size_t i = 0; i < json_object_array_length(containers); i++) {
		struct json_object *o = json_object_array_get_idx(containers, i), *labels = NULL;
		const char *id = dk_text(o, "Id"), *owner;

		(void)json_object_object_get_ex(o, "Labels", &labels);
		owner = dk_text(labels, "sandboxfs.owner");
		if (!*id || strlen(id) >= DK_ID_MAX || !is_gone(dir, owner) ||
		    !has_our_name(host, o, owner))
			continue;
		began = sbx_boot_us();
		gone = began < until && dk_container_gone(host, id, REMOVE_MS);
		all &= gone;
		if (!gone && slow_since(began))
			break; /* the others would not go, either, or take as long */
	}
	return all;
}

static bool ask_and_remove(const struct rt_host *host, int dir)
{
	bool all = false, was_open = dk_engine_fd() >= 0;
	struct json_object *containers;

	if (!dk_engine_there(dk_settings(host)) || dk_engine_open(host, NULL) < 0)
		return false;
	containers = list(host);
	if (json_object_is_type(containers, json_type_array))
		all = remove_all(host, dir, containers);
	json_object_put(containers);
	if (!was_open)
		dk_engine_close();
	return all;
}

/* ---- when ------------------------------------------------------------------------------------ */

static bool was_slow(int dir)
{
	struct stat st;
	int64_t age;

	if (fstatat(dir, slow_file, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	age = sbx_now_us() - st.st_mtim.tv_sec * SBX_SECOND_US;
	return age >= 0 && age < RETRY_SECONDS * SBX_SECOND_US;
}

/* Somebody may have frozen a container, or the engine hangs. */
static bool try_now(const struct rt_host *host, int dir)
{
	int64_t began = sbx_boot_us();
	sbx_autoclose int fd = -1;
	bool all;

	if (was_slow(dir))
		return false;
	all = ask_and_remove(host, dir);
	if (all || !slow_since(began)) {
		(void)unlinkat(dir, slow_file, 0);
		return all;
	}
	fd = openat(dir, slow_file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd >= 0)
		(void)futimens(fd, NULL);
	return false;
}

/* ---- places ---------------------------------------------------------------------------------- */

static bool is_settled(int dir, const char *name)
{
	struct stat st;

	return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       sbx_now_us() - st.st_mtim.tv_sec * SBX_SECOND_US > SETTLE_SECONDS * SBX_SECOND_US;
}

void dk_sweep(const struct rt_host *host)
{
	sbx_autoclose int dir = -1;
	sbx_autofree char *path = NULL;
	char *names[GONE_MAX];
	bool all;
	size_t n;

	if (asprintf(&path, "%s/docker", host->state_dir) < 0) {
		path = NULL;
		return;
	}
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	n = dir < 0 ? 0 : find_gone(dir, names);
	if (n == 0)
		return;
	for (size_t i = 0; i < n; i++)
		unmount(host, names[i]);
	all = try_now(host, dir);
	for (size_t i = 0; i < n; i++) {
		if (all && is_settled(dir, names[i]))
			(void)sbx_remove_tree(dir, names[i]);
		free(names[i]);
	}
}
