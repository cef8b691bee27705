/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a link says, what it shows stays in the workspace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "fsd/work_i.h"

static void shows(const char *target, unsigned depth, const char *wanted)
{
	sbx_autobuf out = SBX_BUF_INIT(4095);

	work_target(target, depth, &out);
	assert_false(sbx_buf_failed(&out));
	assert_string_equal(out.data, wanted);
}

static void link__that_stays_is_shown_as_it_is(void **state)
{
	(void)state;
	shows("a", 0, "a");
	shows("./a//b/", 0, "./a//b/");
	shows("../a", 1, "../a");
	shows("../../..", 3, "../../..");
	shows("...", 0, "...");
	shows("..a", 0, "..a");
}

static void link__that_climbs_out_stops_at_the_root(void **state)
{
	(void)state;
	shows("..", 0, ".");
	shows("../..", 1, "..");
	shows("../../../etc", 2, "../../etc");
	shows("a/../../b", 0, "b");
	shows("a/../../../b", 1, "../b");
	shows("a/b/../c", 0, "a/c");
}

static void link__that_is_absolute_begins_at_the_root(void **state)
{
	(void)state;
	shows("/", 0, ".");
	shows("/", 2, "../..");
	shows("/etc/passwd", 1, "../etc/passwd");
	shows("/workspace", 1, "..");
	shows("/workspace/a", 1, "../a");
	shows("/workspace2", 0, "workspace2");
	shows("/../../etc", 1, "../etc");
	shows("/workspace/../etc", 0, "etc");
}

/* What is shown has its ".." in front, and no more of them than there are directories above. */
static void check(const char *target, unsigned depth)
{
	sbx_autobuf out = SBX_BUF_INIT(4095);
	unsigned up = 0;
	bool named = false;

	work_target(target, depth, &out);
	assert_false(sbx_buf_failed(&out));
	assert_true(out.len > 0 && out.data[0] != '/');
	for (char *save = NULL, *p = strtok_r(out.data, "/", &save); p;
	     p = strtok_r(NULL, "/", &save)) {
		if (strcmp(p, "..") == 0) {
			assert_false(named);
			up++;
		} else if (strcmp(p, ".") != 0) {
			named = true;
		}
	}
	assert_true(up <= depth);
}

static void link__never_leads_out(void **state)
{
	static const char *const parts[] = { "a", "..", ".", "", "workspace", "...", "/" };
	enum { N = sizeof(parts) / sizeof(parts[0]) };
	char target[64];

	(void)state;
	for (unsigned i = 1; i < N * N * N * N * N; i++) {
		target[0] = '\0';
		for (unsigned n = i; n; n /= N) {
			strcat(target, parts[n % N]);
			strcat(target, n / N ? "/" : "");
		}
		for (unsigned depth = 0; *target && depth < 4; depth++)
			check(target, depth);
	}
}

static void link__too_long_to_be_shown_fails(void **state)
{
	sbx_autobuf out = SBX_BUF_INIT(4095);

	(void)state;
	work_target("/a", 2000, &out);
	assert_true(sbx_buf_failed(&out));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(link__that_stays_is_shown_as_it_is),
		cmocka_unit_test(link__that_climbs_out_stops_at_the_root),
		cmocka_unit_test(link__that_is_absolute_begins_at_the_root),
		cmocka_unit_test(link__never_leads_out),
		cmocka_unit_test(link__too_long_to_be_shown_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
