/* SPDX-License-Identifier: Apache-2.0 */
/* The probes of runtimes without a driver, and preflight records as JSON. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/json.h"
#include "runtimes/runtimes.h"

/* ---- probes ---------------------------------------------------------------------------------- */

static char bin[] = "/tmp/sbx-known-XXXXXX";
static char *old_path;

static int make_bin(void **state)
{
	const char *path = getenv("PATH");

	(void)state;
	old_path = path ? strdup(path) : NULL;
	return mkdtemp(bin) && setenv("PATH", bin, 1) == 0 ? 0 : -1;
}

static int remove_bin(void **state)
{
	(void)state;
	if (old_path)
		(void)setenv("PATH", old_path, 1);
	free(old_path);
	return sbx_remove_tree(AT_FDCWD, bin);
}

static void put(const char *name, mode_t mode)
{
	char path[128];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", bin, name);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	assert_true(fd >= 0);
	(void)close(fd);
}

static void drop(const char *name)
{
	char path[128];

	(void)snprintf(path, sizeof(path), "%s/%s", bin, name);
	assert_int_equal(unlink(path), 0);
}

/* The reasons of one runtime, separated by spaces. */
static void reasons_are(const char *name, const char *wanted)
{
	static const struct rt_host host = { .state_dir = "/tmp" };
	struct rt_preflight p;
	char found[512] = "";

	rt_preflight(name, &host, &p);
	for (size_t i = 0; i < p.n_reasons; i++) {
		strcat(found, i ? " " : "");
		strcat(found, p.reasons[i]);
		assert_string_not_equal(rt_reason_normalize(p.reasons[i]), "unknown");
	}
	rt_preflight_clear(&p);
	if (strcmp(found, wanted) != 0)
		fail_msg("%s: wanted \"%s\", got \"%s\"", name, wanted, found);
}

static void probe__programs_that_are_missing(void **state)
{
	(void)state;
	reasons_are("firecracker", "firecracker_unavailable");
	reasons_are("lima", "limactl_missing");
	reasons_are("qemu", "qemu_missing real_execution_not_implemented");
}

static void probe__macos_runtimes_say_what_they_lack(void **state)
{
	(void)state;
	reasons_are("vz_linux", "macos_required apple_silicon_required");
	reasons_are("vz_macos", "macos_required apple_silicon_required vz_macos_unavailable "
				"macos_helper_missing macos_template_missing "
				"real_execution_not_implemented");
	reasons_are("seatbelt", "macos_required apple_silicon_required seatbelt_unavailable "
				"sandbox_exec_missing");
}

static void probe__a_program_alone_makes_nothing_available(void **state)
{
	static const char *const rows[][2] = {
		{ "firecracker", "firecracker" },
		{ "limactl", "lima" },
		{ "qemu-system-x86_64", "qemu" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		put(rows[i][0], 0755);
		reasons_are(rows[i][1], "real_execution_not_implemented");
		drop(rows[i][0]);
	}
}

static void probe__only_executable_files_count(void **state)
{
	char path[128];

	(void)state;
	put("limactl", 0644);
	reasons_are("lima", "limactl_missing");
	drop("limactl");
	(void)snprintf(path, sizeof(path), "%s/limactl", bin);
	assert_int_equal(mkdir(path, 0755), 0);
	reasons_are("lima", "limactl_missing");
	assert_int_equal(rmdir(path), 0);
}

static void probe__looks_in_every_absolute_part_of_path(void **state)
{
	char path[256];
	int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)state;
	put("limactl", 0755);
	(void)snprintf(path, sizeof(path), ":/no/such/dir:%s", bin);
	assert_int_equal(setenv("PATH", path, 1), 0);
	reasons_are("lima", "real_execution_not_implemented");
	/* "." would depend on where the service was started. */
	assert_int_equal(chdir(bin), 0);
	assert_int_equal(setenv("PATH", ".::/no/such/dir:", 1), 0);
	reasons_are("lima", "limactl_missing");
	assert_int_equal(fchdir(here), 0);
	(void)close(here);
	assert_int_equal(setenv("PATH", bin, 1), 0);
	drop("limactl");
}

/* Whatever is at the path; nothing at all, a file, a socket that nobody listens on. */
static void probe__docker_needs_an_engine_that_answers(void **state)
{
	char path[sizeof(bin) + 8];
	struct rt_docker docker = { .host = path };
	struct rt_host host = { .state_dir = bin, .docker = &docker };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/sock", bin);
	for (int round = 0; round < 3; round++) {
		struct rt_preflight p;

		if (round == 1)
			put("sock", 0755);
		if (round == 2) {
			drop("sock");
			memcpy(a.sun_path, path, sizeof(path));
			assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof(a)), 0);
		}
		rt_preflight("docker", &host, &p);
		assert_int_equal(p.n_reasons, 1);
		assert_string_equal(p.reasons[0], "docker_unavailable");
		assert_false(p.deny_all_ready || p.allowlist_ready);
		assert_true(p.trusted && p.standard && p.untrusted);
		assert_null(p.host_json);
		rt_preflight_clear(&p);
	}
	(void)close(s);
	drop("sock");
}

static void probe__unknown_name_is_unavailable(void **state)
{
	(void)state;
	reasons_are("no_such_runtime", "preflight_missing");
}

static void probe__trust_levels_are_those_of_the_contract(void **state)
{
	static const struct {
		const char *name;
		bool trusted, standard, untrusted;
	} rows[] = {
		{ "firecracker", true, true, true }, { "lima", true, true, true },
		{ "qemu", true, true, true },	     { "vz_linux", true, true, true },
		{ "vz_macos", true, true, true },    { "seatbelt", true, false, false },
		{ "worktree", true, true, false },
	};
	static const struct rt_host host = { .state_dir = "/tmp" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct rt_preflight p;

		rt_preflight(rows[i].name, &host, &p);
		assert_int_equal(p.trusted, rows[i].trusted);
		assert_int_equal(p.standard, rows[i].standard);
		assert_int_equal(p.untrusted, rows[i].untrusted);
		rt_preflight_clear(&p);
	}
}

static void probe__without_a_driver_nothing_is_ready(void **state)
{
	static const struct rt_host host = { .state_dir = "/tmp" };

	(void)state;
	for (size_t i = 0; rt_known_at(i); i++) {
		struct rt_preflight p;

		if (rt_driver_find(rt_known_at(i)->name))
			continue;
		rt_preflight(rt_known_at(i)->name, &host, &p);
		assert_true(p.n_reasons > 0);
		assert_false(p.deny_all_ready || p.allowlist_ready);
		rt_preflight_clear(&p);
	}
}

static void probe__host_facts_are_json(void **state)
{
	static const struct rt_host host = { .state_dir = "/tmp" };
	struct rt_preflight p;
	sbx_autojson *o = NULL;

	(void)state;
	rt_preflight("vz_linux", &host, &p);
	o = json_tokener_parse(p.host_json);
	assert_string_equal(json_object_get_string(json_object_object_get(o, "os")), "linux");
	assert_non_null(json_object_object_get(o, "arch"));
	rt_preflight_clear(&p);
	rt_preflight("firecracker", &host, &p);
	assert_null(p.host_json);
	rt_preflight_clear(&p);
}

static void driver__every_driver_is_complete_and_known(void **state)
{
	(void)state;
	assert_null(rt_driver_find(NULL));
	for (size_t i = 0; rt_known_at(i); i++) {
		const struct rt_driver *d = rt_driver_find(rt_known_at(i)->name);

		if (!d)
			continue;
		assert_string_equal(d->name, rt_known_at(i)->name);
		assert_true(d->preflight && d->create && d->prepare && d->start && d->signal);
		assert_true(d->reap && d->usage && d->destroy && d->sweep);
	}
}

/* ---- records --------------------------------------------------------------------------------- */

static int from_text(const char *text, struct rt_preflight *ret)
{
	sbx_autojson *o = json_tokener_parse(text);

	return rt_preflight_from_json(o, ret);
}

static void record__reads_back(void **state)
{
	char facts[] = "{\"limits\":\"cgroup\",\"n\":[1]}";
	const struct rt_preflight rows[] = {
		{ .deny_all_ready = true, .trusted = true, .standard = true, .untrusted = true },
		{ .reasons = { "limactl_missing", "macos_required" }, .n_reasons = 2 },
		{ .allowlist_ready = true, .standard = true },
		{ .untrusted = true, .host_json = facts },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autobuf text = SBX_BUF_INIT(8192), again = SBX_BUF_INIT(8192);
		struct rt_preflight p;

		rt_preflight_json(&rows[i], &text);
		assert_int_equal(from_text(text.data, &p), 0);
		rt_preflight_json(&p, &again);
		assert_string_equal(text.data, again.data);
		for (size_t j = 0; j < p.n_reasons; j++)
			assert_string_equal(p.reasons[j], rows[i].reasons[j]);
		rt_preflight_clear(&p);
	}
}

static void record__text_is_as_documented(void **state)
{
	static const struct rt_preflight p = { .reasons = { "limactl_missing" },
					       .n_reasons = 1,
					       .standard = true,
					       .untrusted = true };
	sbx_autobuf text = SBX_BUF_INIT(8192);

	(void)state;
	rt_preflight_json(&p, &text);
	assert_string_equal(text.data,
			    "{\"available\":false,\"reasons\":[\"limactl_missing\"],"
			    "\"deny_all_ready\":false,\"allowlist_ready\":false,"
			    "\"trust_levels\":[\"standard\",\"untrusted\"],\"host\":{}}");
}

#define REST "\"deny_all_ready\":true,\"allowlist_ready\":false,\"trust_levels\":[],\"host\":{}}"

static void record__foreign_reasons_become_unknown(void **state)
{
	struct rt_preflight p;

	(void)state;
	assert_int_equal(from_text("{\"available\":false,\"reasons\":[\"made_up\",7,"
				   "\"limactl_missing\"]," REST,
				   &p),
			 0);
	assert_int_equal(p.n_reasons, 3);
	assert_string_equal(p.reasons[0], "unknown");
	assert_string_equal(p.reasons[1], "unknown");
	assert_string_equal(p.reasons[2], "limactl_missing");
	rt_preflight_clear(&p);
}

static void record__unavailable_without_reason_stays_unavailable(void **state)
{
	struct rt_preflight p;

	(void)state;
	assert_int_equal(from_text("{\"available\":false,\"reasons\":[]," REST, &p), 0);
	assert_int_equal(p.n_reasons, 1);
	assert_string_equal(p.reasons[0], "unknown");
	rt_preflight_clear(&p);
}

static void record__too_many_reasons_are_cut_off(void **state)
{
	struct rt_preflight p;

	(void)state;
	assert_int_equal(
		from_text("{\"available\":false,\"reasons\":[1,2,3,4,5,6,7,8,9,10]," REST, &p), 0);
	assert_int_equal(p.n_reasons, RT_REASONS_MAX);
	rt_preflight_clear(&p);
}

static void record__incomplete_ones_are_refused(void **state)
{
	static const char *const rows[] = {
		"null",
		"[]",
		"{}",
		"{\"available\":true," REST,
		"{\"reasons\":[]," REST,
		"{\"available\":1,\"reasons\":[]," REST,
		"{\"available\":true,\"reasons\":{}," REST,
		"{\"available\":true,\"reasons\":[],\"deny_all_ready\":true}",
		"{\"available\":true,\"reasons\":[],\"deny_all_ready\":true,"
		"\"allowlist_ready\":false,\"trust_levels\":\"all\",\"host\":{}}",
		"{\"available\":true,\"reasons\":[],\"deny_all_ready\":true,"
		"\"allowlist_ready\":false,\"trust_levels\":[],\"host\":null}",
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct rt_preflight p;

		assert_int_equal(from_text(rows[i], &p), -SBX_E_INVALID_ARGUMENT);
		rt_preflight_clear(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(probe__programs_that_are_missing),
		cmocka_unit_test(probe__macos_runtimes_say_what_they_lack),
		cmocka_unit_test(probe__a_program_alone_makes_nothing_available),
		cmocka_unit_test(probe__only_executable_files_count),
		cmocka_unit_test(probe__looks_in_every_absolute_part_of_path),
		cmocka_unit_test(probe__docker_needs_an_engine_that_answers),
		cmocka_unit_test(probe__unknown_name_is_unavailable),
		cmocka_unit_test(probe__trust_levels_are_those_of_the_contract),
		cmocka_unit_test(probe__without_a_driver_nothing_is_ready),
		cmocka_unit_test(probe__host_facts_are_json),
		cmocka_unit_test(driver__every_driver_is_complete_and_known),
		cmocka_unit_test(record__reads_back),
		cmocka_unit_test(record__text_is_as_documented),
		cmocka_unit_test(record__foreign_reasons_become_unknown),
		cmocka_unit_test(record__unavailable_without_reason_stays_unavailable),
		cmocka_unit_test(record__too_many_reasons_are_cut_off),
		cmocka_unit_test(record__incomplete_ones_are_refused),
	};

	return cmocka_run_group_tests(tests, make_bin, remove_bin);
}
