/* SPDX-License-Identifier: Apache-2.0 */
/* mountspec: what a run document may not say, and how the answer helps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "spec_test.h"

/* One row for each rule: the code, and what the message says, the field's path included. */
static const struct {
	const char *text;
	enum sbx_code code;
	const char *says;
} bad[] = {
	/* form */
	{ "", SBX_E_INVALID_SPEC, "the document: is empty" },
	{ "echo hello", SBX_E_INVALID_SPEC, "the document: is not a JSON object" },
	{ "[]", SBX_E_INVALID_SPEC, "the document: is not a JSON object" },
	{ "{" CMD, SBX_E_INVALID_SPEC, "the document ends before it is complete" },
	{ "{" CMD "} x", SBX_E_INVALID_SPEC, "has text after the object" },
	{ "{" CMD "," CMD "}", SBX_E_INVALID_SPEC, "command: is given twice" },
	{ WITH("\"env\":{\"A\":\"1\",\"A\":\"2\"}"), SBX_E_INVALID_SPEC, "env.A: is given twice" },
	{ "{\"command\":[\"sh\",\"A\\u0000B\"]}", SBX_E_INVALID_SPEC,
	  "command[1]: contains a NUL byte" },
	{ WITH("\"env\":{\"X\":\"a\\u0000b\"}"), SBX_E_INVALID_SPEC, "env.X: contains a NUL byte" },
	{ WITH("\"env\":{\"A\\u0000\":\"\"}"), SBX_E_INVALID_SPEC, "env: contains a NUL byte" },
	{ FILE1("\"a\\u0000.txt\"", "\"\""), SBX_E_INVALID_SPEC,
	  "files[0].path: contains a NUL byte" },
	{ WITH("\"cwd\":\"a\\u0000\""), SBX_E_INVALID_SPEC, "cwd: contains a NUL byte" },
	{ WITH("\"capture_patterns\":[\"a\\u0000\"]"), SBX_E_INVALID_SPEC,
	  "capture_patterns[0]: contains a NUL byte" },
	{ "{\"command\":[\"\xff\"]}", SBX_E_INVALID_SPEC, "command[0]: is not valid UTF-8" },
	{ "{\"command\":[\"\\ud800\"]}", SBX_E_INVALID_SPEC,
	  "command[0]: has half of a surrogate pair" },
	{ WITH("\"timeout_sec\":NaN"), SBX_E_INVALID_SPEC, "timeout_sec: needs a value" },
	{ WITH("\"timeout_sec\":1e400"), SBX_E_INVALID_SPEC,
	  "timeout_sec: has a number that is out of range" },
	{ "{\"command\":" X16(X16("[")), SBX_E_INVALID_SPEC, "is nested deeper than 64 levels" },

	/* names */
	{ "{\"comand\":[\"true\"]}", SBX_E_INVALID_SPEC,
	  "unknown field 'comand'; did you mean 'command'?" },
	{ WITH("\"timeuot_sec\":5"), SBX_E_INVALID_SPEC,
	  "unknown field 'timeuot_sec'; did you mean 'timeout_sec'?" },
	{ WITH("\"Command\":[]"), SBX_E_INVALID_SPEC,
	  "unknown field 'Command'; did you mean 'command'?" },
	{ WITH("\"memory_mb\":64"), SBX_E_INVALID_SPEC,
	  "unknown field 'memory_mb'; did you mean 'resources.memory_mb'?" },
	{ WITH("\"resources\":{\"cpus\":1}"), SBX_E_INVALID_SPEC,
	  "unknown field 'resources.cpus'; did you mean 'resources.cpu'?" },
	{ WITH("\"resources\":{\"timeout_sec\":1}"), SBX_E_INVALID_SPEC,
	  "unknown field 'resources.timeout_sec'; did you mean 'timeout_sec'?" },
	{ WITH("\"resources\":{\"frobnicate\":1}"), SBX_E_INVALID_SPEC,
	  "unknown field 'resources.frobnicate'; allowed: cpu, memory_mb, pids" },
	{ WITH("\"resources.cpu\":1"), SBX_E_INVALID_SPEC, "unknown field 'resources.cpu'" },
	{ WITH("\"\":1"), SBX_E_INVALID_SPEC, "unknown field ''; allowed: spec_version, " },
	{ WITH("\"files\":[{\"path\":\"a\",\"content_b64\":\"\",\"mode\":\"0755\"}]"),
	  SBX_E_INVALID_SPEC, "unknown field 'files[0].mode'; allowed: path, content_b64" },

	/* types */
	{ "{\"command\":\"true\"}", SBX_E_INVALID_SPEC,
	  "command: found a string, allowed an array of strings" },
	{ "{\"command\":{}}", SBX_E_INVALID_SPEC, "command: found an object" },
	{ "{\"command\":[\"a\",1]}", SBX_E_INVALID_SPEC, "command[1]: found a number" },
	{ "{\"command\":[\"a\",null]}", SBX_E_INVALID_SPEC, "command[1]: found null" },
	{ WITH("\"spec_version\":1.0"), SBX_E_INVALID_SPEC, "spec_version: found a number" },
	{ WITH("\"base_image\":7"), SBX_E_INVALID_SPEC, "base_image: found a number" },
	{ WITH("\"runtime\":true"), SBX_E_INVALID_SPEC, "runtime: found a boolean" },
	{ WITH("\"env\":[]"), SBX_E_INVALID_SPEC, "env: found an array" },
	{ WITH("\"env\":{\"X\":5}"), SBX_E_INVALID_SPEC,
	  "env.X: found a number, allowed a string" },
	{ WITH("\"env\":{\"X\":null}"), SBX_E_INVALID_SPEC, "env.X: found null" },
	{ WITH("\"timeout_sec\":\"60\""), SBX_E_INVALID_SPEC,
	  "timeout_sec: found a string, allowed a whole number, 1 to 3600" },
	{ WITH("\"timeout_sec\":true"), SBX_E_INVALID_SPEC, "timeout_sec: found a boolean" },
	{ WITH("\"resources\":[]"), SBX_E_INVALID_SPEC, "resources: found an array" },
	{ WITH("\"resources\":{\"cpu\":\"1\"}"), SBX_E_INVALID_SPEC,
	  "resources.cpu: found a string, allowed a number, more than 0, up to 1024" },
	{ WITH("\"interactive\":1"), SBX_E_INVALID_SPEC,
	  "interactive: found a number, allowed true or false" },
	{ WITH("\"interactive\":\"true\""), SBX_E_INVALID_SPEC, "interactive: found a string" },
	{ WITH("\"files\":{}"), SBX_E_INVALID_SPEC, "files: found an object" },
	{ WITH("\"files\":[\"a\"]"), SBX_E_INVALID_SPEC, "files[0]: found a string" },
	{ FILE1("5", "\"\""), SBX_E_INVALID_SPEC, "files[0].path: found a number" },
	{ FILE1("\"a\"", "null"), SBX_E_INVALID_SPEC, "files[0].content_b64: found null" },
	{ WITH("\"files\":[{\"content_b64\":\"\"}]"), SBX_E_INVALID_SPEC,
	  "files[0].path: is missing" },
	{ WITH("\"files\":[{\"path\":\"a\"}]"), SBX_E_INVALID_SPEC,
	  "files[0].content_b64: is missing" },
	{ WITH("\"stdin_b64\":[]"), SBX_E_INVALID_SPEC, "stdin_b64: found an array" },
	{ WITH("\"labels\":{\"a\":[]}"), SBX_E_INVALID_SPEC, "labels.a: found an array" },
	{ WITH("\"name\":5"), SBX_E_INVALID_SPEC, "name: found a number" },

	/* numbers */
	{ WITH("\"timeout_sec\":0"), SBX_E_INVALID_SPEC,
	  "timeout_sec: found 0, allowed 1 to 3600" },
	{ WITH("\"timeout_sec\":-1"), SBX_E_INVALID_SPEC,
	  "timeout_sec: found -1, allowed 1 to 3600" },
	{ WITH("\"timeout_sec\":3601"), SBX_E_INVALID_SPEC, "timeout_sec: found 3601" },
	{ WITH("\"timeout_sec\":0.5"), SBX_E_INVALID_SPEC,
	  "timeout_sec: found 0.5, allowed a whole number, 1 to 3600" },
	{ WITH("\"timeout_sec\":2147483648"), SBX_E_INVALID_SPEC, "timeout_sec: found 2147483648" },
	{ WITH("\"timeout_sec\":9223372036854775808"), SBX_E_INVALID_SPEC,
	  "timeout_sec: found 9223372036854775808, allowed 1 to 3600" },
	{ WITH("\"timeout_sec\":-9223372036854775809"), SBX_E_INVALID_SPEC,
	  "timeout_sec: found -9223372036854775809" },
	{ WITH("\"timeout_sec\":1e30"), SBX_E_INVALID_SPEC, "timeout_sec: found 1e30" },
	{ WITH("\"startup_timeout_sec\":0"), SBX_E_INVALID_SPEC,
	  "startup_timeout_sec: found 0, allowed 1 to 600" },
	{ WITH("\"startup_timeout_sec\":601"), SBX_E_INVALID_SPEC,
	  "startup_timeout_sec: found 601" },
	{ WITH("\"resources\":{\"cpu\":0}"), SBX_E_INVALID_SPEC,
	  "resources.cpu: found 0, allowed more than 0, up to 1024" },
	{ WITH("\"resources\":{\"cpu\":-2}"), SBX_E_INVALID_SPEC, "resources.cpu: found -2" },
	{ WITH("\"resources\":{\"cpu\":1024.5}"), SBX_E_INVALID_SPEC,
	  "resources.cpu: found 1024.5" },
	{ WITH("\"resources\":{\"memory_mb\":63}"), SBX_E_INVALID_SPEC,
	  "resources.memory_mb: found 63, allowed 64 to 16777216" },
	{ WITH("\"resources\":{\"memory_mb\":-1}"), SBX_E_INVALID_SPEC,
	  "resources.memory_mb: found -1" },
	{ WITH("\"resources\":{\"memory_mb\":1e30}"), SBX_E_INVALID_SPEC,
	  "resources.memory_mb: found 1e30" },
	{ WITH("\"resources\":{\"memory_mb\":16777217}"), SBX_E_INVALID_SPEC,
	  "resources.memory_mb: found 16777217" },
	{ WITH("\"resources\":{\"pids\":0}"), SBX_E_INVALID_SPEC,
	  "resources.pids: found 0, allowed 1 to 1000000" },
	{ WITH("\"resources\":{\"pids\":1000001}"), SBX_E_INVALID_SPEC, "resources.pids: found" },
	{ WITH("\"stdin_max_bytes\":-1"), SBX_E_INVALID_SPEC,
	  "stdin_max_bytes: found -1, allowed 0 or more" },
	{ WITH("\"stdin_max_bytes\":1e300"), SBX_E_INVALID_SPEC, "stdin_max_bytes: found 1e300" },
	{ WITH("\"stdin_max_frame_bytes\":-1"), SBX_E_INVALID_SPEC,
	  "stdin_max_frame_bytes: found -1" },
	{ WITH("\"stdin_bps\":-1"), SBX_E_INVALID_SPEC, "stdin_bps: found -1" },
	{ WITH("\"stdin_idle_timeout_sec\":-1"), SBX_E_INVALID_SPEC,
	  "stdin_idle_timeout_sec: found -1" },
	{ WITH("\"resume_from_seq\":-1"), SBX_E_INVALID_SPEC, "resume_from_seq: found -1" },

	/* words */
	{ WITH("\"runtime\":\"podman\""), SBX_E_INVALID_SPEC,
	  "runtime: found 'podman', allowed one of namespace, docker, " },
	{ WITH("\"runtime\":\"\""), SBX_E_INVALID_SPEC, "runtime: found ''" },
	{ WITH("\"runtime\":\"docker lima\""), SBX_E_INVALID_SPEC, "runtime: found 'docker lima'" },
	{ WITH("\"network_policy\":7"), SBX_E_INVALID_SPEC, "network_policy: found " },
	{ WITH("\"trust_level\":\"root\""), SBX_E_INVALID_SPEC,
	  "trust_level: found 'root', allowed one of trusted, standard, untrusted" },
	{ WITH("\"lifetime\":\"forever\""), SBX_E_INVALID_SPEC,
	  "lifetime: found 'forever', allowed one of detached, handle" },
	{ WITH("\"spec_version\":\"2.0\""), SBX_E_INVALID_SPEC_VERSION,
	  "spec_version: found '2.0', allowed \"1.0\",\"1.1\"" },
	{ WITH("\"spec_version\":\"1\""), SBX_E_INVALID_SPEC_VERSION, "spec_version: found '1'" },

	/* rules of one field */
	{ "{}", SBX_E_INVALID_SPEC, "command: is missing" },
	{ "{\"command\":null}", SBX_E_INVALID_SPEC, "command: is empty" },
	{ "{\"command\":[]}", SBX_E_INVALID_SPEC, "command: is empty" },
	{ "{\"command\":[\"\"]}", SBX_E_INVALID_SPEC, "command[0]: is empty" },
	{ WITH("\"env\":{\"\":\"v\"}"), SBX_E_INVALID_SPEC,
	  "env: has an entry with an empty name" },
	{ WITH("\"env\":{\"A=B\":\"v\"}"), SBX_E_INVALID_SPEC, "env.A=B: has a '=' in its name" },
	{ WITH("\"cwd\":\"\""), SBX_E_INVALID_SPEC, "cwd: is empty" },
	{ WITH("\"cwd\":\"a/../b\""), SBX_E_INVALID_SPEC, "cwd: has a part '..'" },
	{ WITH("\"cwd\":\"/..\""), SBX_E_INVALID_SPEC, "cwd: has a part '..'" },
	{ WITH("\"network_allowlist\":[\"a\",\" \"]"), SBX_E_INVALID_SPEC,
	  "network_allowlist[1]: is empty" },
	{ WITH("\"capture_patterns\":[\"\"]"), SBX_E_INVALID_SPEC,
	  "capture_patterns[0]: is empty" },
	{ WITH("\"capture_patterns\":[\"a\",\"/etc/*\"]"), SBX_E_INVALID_SPEC,
	  "capture_patterns[1]: is absolute" },
	{ WITH("\"capture_patterns\":[\"../*\"]"), SBX_E_INVALID_SPEC,
	  "capture_patterns[0]: has a part '..'" },
	{ WITH("\"capture_patterns\":[\"a/..\"]"), SBX_E_INVALID_SPEC,
	  "capture_patterns[0]: has a part '..'" },
	{ WITH("\"stdin_b64\":\"@@@\""), SBX_E_INVALID_SPEC, "stdin_b64: is not base64" },
	{ WITH("\"stdin_b64\":\"QQ==\\n\""), SBX_E_INVALID_SPEC, "stdin_b64: is not base64" },
	{ WITH("\"name\":\"a\\nb\""), SBX_E_INVALID_SPEC, "name: has a control character" },
	{ WITH("\"name\":\"" X256("n") "\""), SBX_E_INVALID_SPEC,
	  "name: found 256 bytes, allowed up to 120 bytes" },
	{ WITH("\"idempotency_key\":\"" X256("k") "\""), SBX_E_INVALID_SPEC,
	  "idempotency_key: found 256 bytes, allowed up to 255 bytes" },
	{ WITH("\"labels\":{\"\":\"v\"}"), SBX_E_INVALID_SPEC,
	  "labels: has an entry with an empty" },
	{ WITH("\"labels\":{\"k\":\"a\\tb\"}"), SBX_E_INVALID_SPEC,
	  "labels.k: has a control character" },
	{ WITH("\"labels\":{\"k\":\"" X256("v") "\"}"), SBX_E_INVALID_SPEC,
	  "labels.k: found 256 bytes" },
	{ WITH("\"labels\":{\"" X256("k") "\":\"\"}"), SBX_E_INVALID_SPEC, "labels.kkkk" },
	{ WITH("\"persona_id\":\"" X16(X256("p")) "\""), SBX_E_INVALID_SPEC,
	  "persona_id: found 4096 bytes, allowed up to 1024 bytes" },
	{ WITH("\"session_id\":\"s\",\"base_image\":\"i\""), SBX_E_INVALID_SPEC,
	  "base_image: given together with session_id" },

	/* inline files */
	{ FILE1("\"../x\"", "\"\""), SBX_E_INVALID_INLINE_FILE,
	  "files[0].path: '../x' has a part '..'" },
	{ FILE1("\"a/../../x\"", "\"\""), SBX_E_INVALID_INLINE_FILE, "files[0].path: 'a/../../x'" },
	{ FILE1("\"/etc/x\"", "\"\""), SBX_E_INVALID_INLINE_FILE,
	  "files[0].path: '/etc/x' is absolute" },
	{ FILE1("\"//x\"", "\"\""), SBX_E_INVALID_INLINE_FILE, "files[0].path: '//x' is absolute" },
	{ FILE1("\"\"", "\"\""), SBX_E_INVALID_INLINE_FILE, "files[0].path: '' is empty" },
	{ FILE1("\".\"", "\"\""), SBX_E_INVALID_INLINE_FILE, "files[0].path: '.' has a part '.'" },
	{ FILE1("\"a/\"", "\"\""), SBX_E_INVALID_INLINE_FILE,
	  "files[0].path: 'a/' ends with a slash" },
	{ FILE1("\"a/./b\"", "\"\""), SBX_E_INVALID_INLINE_FILE, "files[0].path: 'a/./b'" },
	{ FILE1("\"a//b\"", "\"\""), SBX_E_INVALID_INLINE_FILE, "files[0].path: 'a//b'" },
	{ FILE1("\"" X256("x") "\"", "\"\""), SBX_E_INVALID_INLINE_FILE, "files[0].path: 'xxx" },
	{ FILE1("\"" X16("\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0"
			 "\xe4\xbd\xa0") "\"",
		"\"\""),
	  SBX_E_INVALID_INLINE_FILE, "has a name longer than 255 bytes" },
	{ FILE_B("a"), SBX_E_INVALID_INLINE_FILE,
	  "files[1].path: 'a' is also the path of files[0]" },
	{ FILE_B("a/b"), SBX_E_INVALID_INLINE_FILE,
	  "files[1].path: 'a/b' cannot be there together with files[0]" },
	{ FILE_B("a/b/c"), SBX_E_INVALID_INLINE_FILE, "files[1].path: 'a/b/c' cannot" },
	{ WITH("\"files\":[{\"path\":\"d/e\",\"content_b64\":\"\"},{\"path\":\"d e\","
	       "\"content_b64\":\"\"},{\"path\":\"d\",\"content_b64\":\"\"}]"),
	  SBX_E_INVALID_INLINE_FILE, "files[2].path: 'd' cannot be there together with files[0]" },
	{ FILE1("\"a\"", "\"@@@\""), SBX_E_INVALID_INLINE_FILE,
	  "files[0].content_b64: is not base64" },
	{ FILE1("\"a\"", "\"QQ==\\n\""), SBX_E_INVALID_INLINE_FILE,
	  "files[0].content_b64: is not base64" },
};

static void run__refuses(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		ms_autorun struct ms_run_spec *s = NULL;
		sbx_autojson *details = NULL;
		int rc = ms_run_parse(bad[i].text, strlen(bad[i].text), &mount, &s, &e);

		if (rc != -(int)bad[i].code || e.code != bad[i].code)
			fail_msg("row %zu: %d %s: %.200s", i, rc, e.message, bad[i].text);
		assert_null(s);
		if (!strstr(e.message, bad[i].says))
			fail_msg("row %zu: %s", i, e.message);
		assert_non_null(e.details);
		if (sbx_json_parse_object(e.details, strlen(e.details), &details, NULL) < 0)
			fail_msg("row %zu: details are not JSON: %s", i, e.details);
		assert_true(json_object_object_get_ex(details, "field", NULL));
		assert_int_equal(ms_run_parse(bad[i].text, strlen(bad[i].text), &mount, &s, NULL),
				 rc);
	}
}

static void details__name_the_parts(void **state)
{
	static const struct {
		const char *text, *details;
	} rows[] = {
		{ "{\"comand\":1}", "\"found\":\"a field that does not "
				    "exist\",\"allowed\":\"spec_version, session_id" },
		{ "{\"comand\":1}", "\"did_you_mean\":\"command\"}" },
		{ WITH("\"timeout_sec\":0"),
		  "{\"field\":\"timeout_sec\",\"found\":\"0\",\"allowed\":\"1 to 3600\"}" },
		{ FILE_B("../x"),
		  "{\"field\":\"files[1].path\",\"found\":\"'../x' has a part '..'\"" },
		{ FILE_B("../x"), "\"index\":1,\"path\":\"../x\"}" },
		{ FILE1("\"p\"", "\"!\""), "\"index\":0,\"path\":\"p\"}" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		struct ms_run_spec *s;

		assert_true(ms_run_parse(rows[i].text, strlen(rows[i].text), &mount, &s, &e) < 0);
		if (!strstr(e.details, rows[i].details))
			fail_msg("row %zu: %s", i, e.details);
	}
}

/* Whatever is wrong with it, the value of a variable is nobody's business. */
static void env__values_are_never_shown(void **state)
{
	static const char *const rows[] = {
		WITH("\"env\":{\"K\":\"hunter2\",\"K\":\"hunter2\"}"),
		WITH("\"env\":{\"K=\":\"hunter2\"}"),
		WITH("\"env\":{\"\":\"hunter2\"}"),
		WITH("\"env\":{\"K\":[\"hunter2\"]}"),
		WITH("\"env\":{\"K\":{\"hunter2\":1}}"),
		WITH("\"env\":{\"K\":\"hunter2\\u0000\"}"),
		WITH("\"env\":{\"K\":\"hunter2\xff\"}"),
		WITH("\"env\":{\"K\":\"hunter2\"},\"timeout_sec\":0"),
		WITH("\"env\":{\"K\":\"hunter2"),
		WITH("\"env\":\"hunter2\""),
		WITH("\"env\":[\"hunter2\"]"),
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		struct ms_run_spec *s;

		assert_true(ms_run_parse(rows[i], strlen(rows[i]), &mount, &s, &e) < 0);
		assert_null(strstr(e.message, "hunter2"));
		assert_null(strstr(e.details, "hunter2"));
	}
}

static void run__sizes(void **state)
{
	static const struct {
		const char *head;
		size_t n;
		const char *fill, *tail;
		int rc;
		const char *says;
	} rows[] = {
		{ "{\"command\":[\"a\",\"", MS_ARG_MAX - 1, "x", "\"]}", 0, NULL },
		{ "{\"command\":[\"a\",\"", MS_ARG_MAX, "x", "\"]}", -SBX_E_SPEC_TOO_LARGE,
		  "command[1]: found 131072 bytes, allowed up to 131071 bytes" },
		{ "{\"command\":[\"a\"", MS_ARGS_MAX - 1, ",\"\"", "]}", 0, NULL },
		{ "{\"command\":[\"a\"", MS_ARGS_MAX, ",\"\"", "]}", -SBX_E_INVALID_SPEC,
		  "command: found 4097 entries, allowed up to 4096 entries" },
		{ WITH("\"env\":{\"K\":\""), 0, "", "", -SBX_E_INVALID_SPEC,
		  "env.K: the document" },
		{ "{" CMD ",\"env\":{\"K\":\"", MS_ARG_MAX - 3, "x", "\"}}", 0, NULL },
		{ "{" CMD ",\"env\":{\"K\":\"", MS_ARG_MAX - 2, "x", "\"}}", -SBX_E_SPEC_TOO_LARGE,
		  "env.K: found 131073 bytes" },
		{ "{" CMD ",\"capture_patterns\":[\"a\"", MS_PATTERNS_MAX, ",\"b\"", "]}",
		  -SBX_E_INVALID_SPEC, "capture_patterns: found 257 entries" },
		{ "{" CMD ",\"network_allowlist\":[\"a\"", MS_PATTERNS_MAX, ",\"b\"", "]}",
		  -SBX_E_INVALID_SPEC, "network_allowlist: found 257 entries" },
		{ "{" CMD ",\"files\":[{}", MS_FILES_MAX, ",{}", "]}", -SBX_E_INVALID_SPEC,
		  "files: found 1001 entries, allowed up to 1000 entries" },
		{ "{" CMD ",\"stdin_b64\":\"", (MS_DOC_MAX - 100) / 4, "AAAA", "\"}", 0, NULL },
		{ "{" CMD "}", MS_DOC_MAX, " ", "", -SBX_E_SPEC_TOO_LARGE,
		  "the document: found 16777236 bytes" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *text =
			large(rows[i].head, rows[i].n, rows[i].fill, rows[i].tail);
		sbx_autoerror e = SBX_ERROR_INIT;
		ms_autorun struct ms_run_spec *s = NULL;
		int rc = ms_run_parse(text, strlen(text), &mount, &s, &e);

		if (rc != rows[i].rc || (rows[i].says && !strstr(e.message, rows[i].says)))
			fail_msg("row %zu: %d %s", i, rc, e.message);
	}
}

static void env__total_size(void **state)
{
	sbx_autobuf b = SBX_BUF_INIT(4 << 20);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct ms_run_spec *s = NULL;
	char value[1025];

	(void)state;
	memset(value, 'v', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	sbx_buf_puts(&b, "{" CMD ",\"env\":{");
	/* Each entry: 6 bytes of name, 1016 of value, '=' and NUL: 1024. */
	for (int i = 0; i < MS_ENV_MAX / 1024; i++)
		sbx_buf_printf(&b, "%s\"K%05d\":\"%.1016s\"", i ? "," : "", i, value);
	sbx_buf_puts(&b, "}}");
	assert_int_equal(ms_run_parse(b.data, b.len, &mount, &s, &e), 0);
	s = ms_run_free(s);
	b.len -= 2;
	sbx_buf_puts(&b, ",\"X\":\"\"}}");
	assert_int_equal(ms_run_parse(b.data, b.len, &mount, &s, &e), -SBX_E_SPEC_TOO_LARGE);
	assert_non_null(strstr(e.message, "env: found 1048579 bytes, allowed up to 1048576"));
}

static void labels__count(void **state)
{
	sbx_autobuf b = SBX_BUF_INIT(1 << 20);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct ms_run_spec *s = NULL;

	(void)state;
	sbx_buf_puts(&b, "{" CMD ",\"labels\":{\"l\":\"\"");
	for (int i = 0; i < MS_LABELS_MAX; i++)
		sbx_buf_printf(&b, ",\"l%d\":\"\"", i);
	sbx_buf_puts(&b, "}}");
	assert_int_equal(ms_run_parse(b.data, b.len, &mount, &s, &e), -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(e.message, "labels: found 65 entries, allowed up to 64"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(run__refuses),
		cmocka_unit_test(details__name_the_parts),
		cmocka_unit_test(env__values_are_never_shown),
		cmocka_unit_test(run__sizes),
		cmocka_unit_test(env__total_size),
		cmocka_unit_test(labels__count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
