/* SPDX-License-Identifier: Apache-2.0 */
/* Who asks: keys, tokens and peers on a door with a real state directory. */
#include "tests/unit/token_util.h"

#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "apid/apid_i.h"
#include "apid/auth_i.h"
#include "base/fs.h"

#define KEY    "the-key-of-these-tests"
#define GIVEN  "single_user_api_key=" KEY
#define SECRET "jwt_secret=" TOKEN_SECRET
#define NOBODY "sbx-nobody-of-that-name"

static struct {
	char base[32], state[48], conf[48], key[64], runner[48], elsewhere[48];
	struct apid a;
} door;

static void write_text(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, mode);

	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, mode), 0);
	assert_int_equal(sbx_write_all(fd, text, strlen(text)), 0);
	(void)close(fd);
}

/* Settings, one a line. */
static void configure(const char *lines)
{
	sbx_autofree char *text = NULL;

	assert_true(asprintf(&text, "[sandbox]\n%s\n", lines) > 0);
	write_text(door.conf, text, 0600);
}

/* A door with these settings; what auth_new says is in e. */
static int open_with(const char *lines, struct sbx_error *e)
{
	const struct orch_options o = { .state_dir = door.state,
					.config_path = door.conf,
					.runner = door.runner,
					.door = "api" };
	sbx_autoerror why = SBX_ERROR_INIT;

	configure(lines);
	if (orch_open(&o, &door.a.orch, &why))
		fail_msg("%s", why.message);
	door.a.store = orch_store(door.a.orch);
	return auth_new(&door.a, &door.a.auth, e);
}

static void open_ok(const char *lines)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (open_with(lines, &e))
		fail_msg("%s: %s", lines, e.message);
}

static void close_door(void)
{
	door.a.auth = auth_free(door.a.auth);
	door.a.orch = orch_close(door.a.orch);
}

static void misconfigured(const char *lines, const char *message)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = open_with(lines, &e);

	if (rc != -SBX_E_INVALID_CONFIG || !strstr(e.message, message))
		fail_msg("%s: wanted '%s', got %d '%s'", lines, message, rc, e.message);
	close_door();
}

static int make_dir(void **state)
{
	(void)state;
	for (size_t i = 0; orch_setting_at(i); i++)
		(void)unsetenv(orch_setting_at(i)->env);
	(void)strcpy(door.base, "/tmp/sbx-auth-XXXXXX");
	if (!mkdtemp(door.base))
		return -1;
	(void)snprintf(door.state, sizeof(door.state), "%s/state", door.base);
	(void)snprintf(door.conf, sizeof(door.conf), "%s/conf", door.base);
	(void)snprintf(door.runner, sizeof(door.runner), "%s/runner", door.base);
	(void)snprintf(door.elsewhere, sizeof(door.elsewhere), "%s/elsewhere", door.base);
	(void)snprintf(door.key, sizeof(door.key), "%s/api.key", door.state);
	write_text(door.runner, "#!/bin/sh\necho '{}'\n", 0700); /* it has tried no runtime */
	return 0;
}

static int remove_dir(void **state)
{
	(void)state;
	close_door();
	return sbx_remove_tree(AT_FDCWD, door.base);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static struct orch_principal let_in(const struct credentials *c)
{
	struct orch_principal p = { .door = NULL };
	sbx_autoerror e = SBX_ERROR_INIT;

	if (auth_check(door.a.auth, c, &p, &e))
		fail_msg("%s", e.message);
	assert_string_equal(p.door, "api");
	return p;
}

static void turned_away(const struct credentials *c, const char *message)
{
	struct orch_principal p = { .user = "unchanged" };
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = auth_check(door.a.auth, c, &p, &e);

	if (rc != -SBX_E_UNAUTHORIZED || !strstr(e.message, message))
		fail_msg("wanted '%s', got %d '%s'", message, rc, e.message);
	assert_string_equal(p.user, "unchanged");
	assert_null(strstr(e.message, KEY));
	assert_null(strstr(e.message, TOKEN_SECRET));
}

#define WITH(...) (&(struct credentials){ __VA_ARGS__, .fd = -1 })
#define NOTHING	  (&(struct credentials){ .fd = -1 })

/* For the hour that begins now; malloc'd. */
static char *token_for(const char *sub, const char *more)
{
	char claims[256];

	(void)snprintf(claims, sizeof(claims), "{\"sub\":\"%s\",\"exp\":%lld%s}", sub,
		       (long long)time(NULL) + 3600, more);
	return token_hs256(claims, TOKEN_SECRET);
}

static char *bearer(const char *value)
{
	char *out = NULL;

	assert_true(asprintf(&out, "Bearer %s", value) > 0);
	return out;
}

/* ---- the API key ----------------------------------------------------------------------------- */

static void key__of_the_settings(void **state)
{
	struct orch_principal p;

	(void)state;
	open_ok(GIVEN);
	p = let_in(WITH(.api_key = KEY));
	assert_int_equal(p.uid, geteuid());
	assert_true(p.admin);
	turned_away(WITH(.api_key = KEY "x"), "wrong");
	turned_away(WITH(.api_key = "the-key-of-these-test"), "wrong");
	turned_away(WITH(.api_key = "THE-KEY-OF-THESE-TESTS"), "wrong");
	turned_away(WITH(.api_key = " " KEY), "wrong");
	turned_away(WITH(.api_key = ""), "empty");
	turned_away(NOTHING, "X-API-KEY");
	assert_int_equal(access(door.key, F_OK), -1);
}

static void key__is_made_at_first_start_and_kept(void **state)
{
	sbx_autofree char *text = NULL, *again = NULL;
	struct stat st;
	size_t len = 0;

	(void)state;
	open_ok("");
	assert_int_equal(stat(door.key, &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0600);
	assert_int_equal(sbx_read_file(AT_FDCWD, door.key, 4096, &text, &len), 0);
	assert_int_equal(len, 65);
	assert_int_equal(strspn(text, "0123456789abcdef"), 64);
	assert_int_equal(text[64], '\n');
	turned_away(WITH(.api_key = text), "wrong"); /* with the line's end */
	text[64] = '\0';
	(void)let_in(WITH(.api_key = text));
	close_door();
	open_ok("");
	assert_int_equal(sbx_read_file(AT_FDCWD, door.key, 4096, &again, &len), 0);
	(void)let_in(WITH(.api_key = text));
	again[64] = '\0';
	assert_string_equal(text, again);
}

static void key__file_that_is_not_safe(void **state)
{
	static const struct {
		const char *text, *message;
		mode_t mode;
	} bad[] = {
		{ KEY "\n", "by others", 0604 },
		{ KEY "\n", "by others", 0602 },
		{ KEY "\n", "by others", 0660 },
		{ "", "fewer than 16", 0600 },
		{ "\n\n\n", "fewer than 16", 0600 },
		{ "123456789012345\n", "fewer than 16", 0600 },
		{ "the key of these tests\n", "one line", 0600 },
		{ KEY "\n" KEY "\n", "one line", 0600 },
		{ KEY "\x01\n", "one line", 0600 },
	};

	(void)state;
	open_ok("auth_mode=multi_user");
	close_door();
	assert_int_equal(access(door.key, F_OK), -1);
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		write_text(door.key, bad[i].text, bad[i].mode);
		misconfigured("", bad[i].message);
	}
	write_text(door.key, KEY "\r\n", 0640);
	open_ok("");
	(void)let_in(WITH(.api_key = KEY));
	close_door();
	assert_int_equal(unlink(door.key), 0);
	write_text(door.elsewhere, KEY "\n", 0600);
	assert_int_equal(symlink("../elsewhere", door.key), 0);
	misconfigured("", "symbolic links");
	assert_int_equal(unlink(door.key), 0);
	assert_int_equal(mkfifo(door.key, 0600), 0);
	misconfigured("", "regular");
}

static void key__holder(void **state)
{
	struct orch_principal p;

	(void)state;
	open_ok(GIVEN "\nsingle_user_name=daemon\nsingle_user_admin=false");
	p = let_in(WITH(.api_key = KEY));
	assert_string_equal(p.user, "daemon");
	assert_int_equal(p.uid, daemon_uid());
	assert_false(p.admin);
	close_door();
	open_ok(GIVEN "\nsingle_user_name=" NOBODY "\nsingle_user_admin=false\nadmins=" NOBODY);
	p = let_in(WITH(.api_key = KEY));
	assert_string_equal(p.user, NOBODY);
	assert_int_equal(p.uid, -1);
	assert_true(p.admin);
	close_door();
	misconfigured(GIVEN "\nsingle_user_name=a/b", "single_user_name");
	misconfigured(GIVEN "\njwt_secret=short", "jwt_secret");
}

static void key__is_no_login_for_many_users(void **state)
{
	(void)state;
	open_ok("auth_mode=multi_user\n" GIVEN);
	turned_away(WITH(.api_key = KEY), "multi_user");
	turned_away(WITH(.authorization = "Bearer " KEY), "multi_user");
	turned_away(WITH(.token = KEY), "multi_user");
	turned_away(NOTHING, "Authorization: Bearer TOKEN");
	assert_int_equal(access(door.key, F_OK), -1);
}

/* ---- headers --------------------------------------------------------------------------------- */

static void header__bearer(void **state)
{
	sbx_autofree char *token = token_for(NOBODY, "");
	static const char *const formats[] = { "Bearer %s", "bearer %s", "BEARER   %s",
					       "Bearer %s  " };
	struct orch_principal p;

	(void)state;
	open_ok(GIVEN "\n" SECRET);
	for (size_t i = 0; i < SBX_COUNT(formats); i++) {
		sbx_autobuf h = SBX_BUF_INIT(4096);
		const char *at = strstr(formats[i], "%s");

		sbx_buf_add(&h, formats[i], (size_t)(at - formats[i]));
		sbx_buf_puts(&h, token);
		sbx_buf_puts(&h, at + 2);
		p = let_in(WITH(.authorization = h.data));
		assert_string_equal(p.user, NOBODY);
		assert_int_equal(p.uid, -1);
		assert_false(p.admin);
	}
	(void)let_in(WITH(.authorization = "Bearer " KEY));
	turned_away(WITH(.authorization = "Bearer " KEY "x"), "wrong");
	turned_away(WITH(.authorization = "Bearer a.b.c.d"), "API key is wrong");
	turned_away(WITH(.authorization = "Bearer a.b.c"), "the token");
	turned_away(WITH(.authorization = "Bearer"), "empty");
	turned_away(WITH(.authorization = "Bearer  "), "empty");
	turned_away(WITH(.authorization = "Basic YTpi"), "no other scheme");
	turned_away(WITH(.authorization = "Bearer" KEY), "no other scheme");
	turned_away(WITH(.authorization = token), "no other scheme");
	turned_away(WITH(.authorization = ""), "no other scheme");
}

/* All that was brought must be good, and the first says who. */
static void header__several_credentials(void **state)
{
	sbx_autofree char *one = token_for("sbx-one", ""), *two = token_for("sbx-two", "");
	sbx_autofree char *two_bearer = bearer(two);

	(void)state;
	open_ok(GIVEN "\n" SECRET "\nsingle_user_name=sbx-key");
	assert_string_equal(let_in(WITH(.token = one)).user, "sbx-one");
	assert_string_equal(let_in(WITH(.token = KEY)).user, "sbx-key");
	assert_string_equal(let_in(WITH(.token = one, .authorization = two_bearer)).user,
			    "sbx-one");
	assert_string_equal(let_in(WITH(.authorization = two_bearer, .api_key = KEY)).user,
			    "sbx-two");
	assert_string_equal(let_in(WITH(.authorization = "Bearer " KEY, .api_key = KEY)).user,
			    "sbx-key");
	/* From a proxy with a password of its own. */
	assert_string_equal(let_in(WITH(.authorization = "Basic YTpi", .api_key = KEY)).user,
			    "sbx-key");
	turned_away(WITH(.authorization = two_bearer, .api_key = "x"), "API key is wrong");
	turned_away(WITH(.authorization = "Bearer a.b.c", .api_key = KEY), "the token");
	turned_away(WITH(.token = "a.b.c", .authorization = two_bearer, .api_key = KEY),
		    "the token");
	turned_away(WITH(.token = "", .api_key = KEY), "empty");
	/* A key header is a key, whatever it looks like. */
	turned_away(WITH(.api_key = one), "API key is wrong");
}

/* ---- the Unix socket ------------------------------------------------------------------------- */

static void peer__of_a_unix_socket(void **state)
{
	struct passwd *me = getpwuid(geteuid());
	struct orch_principal p;
	int unix_fd[2], tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, unix_fd), 0);
	open_ok("auth_mode=multi_user\n" SECRET);
	p = let_in(&(struct credentials){ .fd = unix_fd[0] });
	assert_int_equal(p.uid, geteuid());
	if (me)
		assert_string_equal(p.user, me->pw_name);
	assert_int_equal(p.admin, geteuid() == 0);
	/* Wrong is wrong there, too. */
	turned_away(&(struct credentials){ .api_key = "x", .fd = unix_fd[0] }, "multi_user");
	turned_away(&(struct credentials){ .authorization = "Bearer a.b.c", .fd = unix_fd[0] },
		    "the token");
	turned_away(&(struct credentials){ .authorization = "Basic YTpi", .fd = unix_fd[0] },
		    "no other scheme");
	turned_away(&(struct credentials){ .fd = tcp }, "no login");
	turned_away(&(struct credentials){ .fd = -1 }, "no login");
	(void)close(unix_fd[0]);
	(void)close(unix_fd[1]);
	(void)close(tcp);
}

/* ---- remembered tokens, reload --------------------------------------------------------------- */

static void reload(const char *lines, bool works)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc;

	configure(lines);
	assert_int_equal(orch_reload(door.a.orch, &e), 0);
	rc = auth_reload(door.a.auth, &e);
	if ((rc == 0) != works)
		fail_msg("%s: %d %s", lines, rc, e.message);
}

static void reload__changes_keys_and_drops_tokens(void **state)
{
	sbx_autofree char *token = token_for(NOBODY, ""), *header = bearer(token);

	(void)state;
	open_ok(GIVEN "\n" SECRET);
	for (int i = 0; i < 3; i++)
		assert_false(let_in(WITH(.authorization = header)).admin);
	reload(GIVEN "\n" SECRET "\nadmins=" NOBODY, true);
	assert_true(let_in(WITH(.authorization = header)).admin);
	/* A mistake leaves everything as it was. */
	reload("single_user_api_key=another-key\njwt_secret=short", false);
	assert_true(let_in(WITH(.authorization = header)).admin);
	(void)let_in(WITH(.api_key = KEY));
	reload("single_user_api_key=another-key\njwt_secret=00" TOKEN_SECRET, true);
	turned_away(WITH(.authorization = header), "wrong signature");
	turned_away(WITH(.api_key = KEY), "wrong");
	(void)let_in(WITH(.api_key = "another-key"));
	/* From the settings to the file, which is made now. */
	reload("", true);
	turned_away(WITH(.api_key = "another-key"), "wrong");
	assert_int_equal(access(door.key, F_OK), 0);
}

/* One that differs in the last byte only is another token. */
static void remembered__is_the_whole_token(void **state)
{
	sbx_autofree char *token = token_for(NOBODY, ""), *changed = strdup(token);
	size_t len = strlen(token);

	(void)state;
	open_ok(SECRET);
	(void)let_in(WITH(.token = token));
	assert_non_null(changed);
	changed[len - 2] = changed[len - 2] == 'A' ? 'B' : 'A';
	turned_away(WITH(.token = changed), "wrong signature");
	(void)let_in(WITH(.token = token));
}

/* More tokens than there are places for. */
static void remembered__never_for_somebody_else(void **state)
{
	enum { TOKENS = 600 };
	static char *tokens[TOKENS];
	char name[32];

	(void)state;
	open_ok(SECRET);
	for (int i = 0; i < TOKENS; i++) {
		(void)snprintf(name, sizeof(name), "sbx-%d", i);
		tokens[i] = token_for(name, "");
		assert_string_equal(let_in(WITH(.token = tokens[i])).user, name);
	}
	for (int i = 0; i < TOKENS; i++) {
		(void)snprintf(name, sizeof(name), "sbx-%d", i);
		assert_string_equal(let_in(WITH(.token = tokens[i])).user, name);
		free(tokens[i]);
	}
}

static void remembered__until_it_expires(void **state)
{
	int fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC);
	struct itimerspec at = { .it_value.tv_sec = time(NULL) + 2 };
	sbx_autofree char *token = NULL;
	char claims[128];
	uint64_t times;

	(void)state;
	open_ok(SECRET);
	(void)snprintf(claims, sizeof(claims), "{\"sub\":\"" NOBODY "\",\"exp\":%lld}",
		       (long long)at.it_value.tv_sec);
	token = token_hs256(claims, TOKEN_SECRET);
	(void)let_in(WITH(.token = token));
	(void)let_in(WITH(.token = token));
	assert_int_equal(timerfd_settime(fd, TFD_TIMER_ABSTIME, &at, NULL), 0);
	assert_int_equal(read(fd, &times, sizeof(times)), sizeof(times));
	turned_away(WITH(.token = token), "expired");
	(void)close(fd);
}

static void *ask_often(void *arg)
{
	sbx_autofree char *header = bearer(arg);

	for (int i = 0; i < 300; i++) {
		struct orch_principal p;
		struct credentials c = { .authorization = header, .fd = -1 };

		if (auth_check(door.a.auth, &c, &p, NULL) || strcmp(p.user, NOBODY) != 0)
			return arg;
	}
	return NULL;
}

static void remembered__by_many_threads_during_reloads(void **state)
{
	pthread_t threads[4];
	char *tokens[4];

	(void)state;
	open_ok(SECRET);
	for (int i = 0; i < 4; i++) {
		char more[32];

		(void)snprintf(more, sizeof(more), ",\"n\":%d", i / 2);
		tokens[i] = token_for(NOBODY, more);
		assert_int_equal(pthread_create(&threads[i], NULL, ask_often, tokens[i]), 0);
	}
	for (int i = 0; i < 20; i++)
		assert_int_equal(auth_reload(door.a.auth, NULL), 0);
	for (int i = 0; i < 4; i++) {
		void *failed = NULL;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
		free(tokens[i]);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(key__of_the_settings),
		TEST(key__is_made_at_first_start_and_kept),
		TEST(key__file_that_is_not_safe),
		TEST(key__holder),
		TEST(key__is_no_login_for_many_users),
		TEST(header__bearer),
		TEST(header__several_credentials),
		TEST(peer__of_a_unix_socket),
		TEST(reload__changes_keys_and_drops_tokens),
		TEST(remembered__is_the_whole_token),
		TEST(remembered__never_for_somebody_else),
		TEST(remembered__until_it_expires),
		TEST(remembered__by_many_threads_during_reloads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
