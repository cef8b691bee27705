/* SPDX-License-Identifier: Apache-2.0 */
/* Walking the table of nodes, and the one text that is made from it. */
#include "mountspec/tree.h"

#include <string.h>

static const struct ms_node nodes[MS_N__COUNT] = {
#define X(sym, up, nam, knd, bits, w, list, cond, v, act, text)                                    \
	[MS_N_##sym] = { .name = nam,                                                              \
			 .parent = MS_N_##up,                                                      \
			 .kind = MS_K_##knd,                                                       \
			 .mode = bits,                                                             \
			 .who = MS_WHO_##w,                                                        \
			 .listed = list,                                                           \
			 .when = MS_WHEN_##cond,                                                   \
			 .view = MS_V_##v,                                                         \
			 .verb = MS_W_##act,                                                       \
			 .doc = text },
#include "mountspec/tree.def"
#undef X
};

const struct ms_node *ms_node(enum ms_node_id id)
{
	return id > MS_N_NONE && id < MS_N__COUNT ? &nodes[id] : NULL;
}

enum ms_node_id ms_node_child(enum ms_node_id parent, const char *name)
{
	enum ms_node_id any = MS_N_NONE;

	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		if (nodes[i].parent != parent || nodes[i].name[0] == '<')
			continue; /* what stands between these is no name */
		if (strcmp(nodes[i].name, "*") == 0)
			any = (enum ms_node_id)i;
		else if (strcmp(nodes[i].name, name) == 0)
			return (enum ms_node_id)i;
	}
	return any;
}

enum ms_node_id ms_node_next(enum ms_node_id parent, enum ms_node_id after)
{
	for (int i = after + 1; i < MS_N__COUNT; i++)
		if (nodes[i].parent == parent)
			return (enum ms_node_id)i;
	return MS_N_NONE;
}

/* What is written where the state has a name. */
static const char *const stands_for[MS_N__COUNT] = {
	[MS_N_RUN] = "<run>",		[MS_N_SESS_RUN] = "<run>",
	[MS_N_BY_PHASE_RUN] = "<run>",	[MS_N_BY_LABEL_RUN] = "<run>",
	[MS_N_BY_SESS_RUN] = "<run>",	[MS_N_BY_USER_RUN] = "<run>",
	[MS_N_SESSION] = "<session>",	[MS_N_BY_SESS_OF] = "<session>",
	[MS_N_SHOT] = "<snapshot>",	[MS_N_BY_PHASE_OF] = "<phase>",
	[MS_N_BY_LABEL_OF] = "<label>", [MS_N_BY_USER_OF] = "<user>",
	[MS_N_RUNTIME] = "<name>.json", [MS_N_IMAGE] = "<image>",
};

void ms_node_path(enum ms_node_id id, struct sbx_buf *out)
{
	const struct ms_node *n = ms_node(id);

	if (!n || id == MS_N_ROOT)
		return;
	ms_node_path(n->parent, out);
	sbx_buf_puts(out, "/");
	sbx_buf_puts(out, strcmp(n->name, "*") == 0 ? stands_for[id] : n->name);
}

static bool is_escaped(const char *word, const char *at)
{
	bool dots = strcmp(word, ".") == 0 || strcmp(word, "..") == 0;
	unsigned char c = (unsigned char)*at;

	return c == '/' || c == '%' || c < ' ' || c == 0x7f || dots;
}

bool ms_word_name(const char *word, char ret[MS_WORD_SIZE])
{
	static const char digits[] = "0123456789ABCDEF";
	size_t n = 0;

	for (const char *p = word; *p; p++) {
		bool escaped = is_escaped(word, p);
		unsigned char c = (unsigned char)*p;

		if (n + (escaped ? 3 : 1) >= MS_WORD_SIZE)
			return false;
		if (!escaped) {
			ret[n++] = *p;
			continue;
		}
		ret[n++] = '%';
		ret[n++] = digits[c >> 4];
		ret[n++] = digits[c & 15];
	}
	ret[n] = '\0';
	return n > 0;
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool ms_name_word(const char *name, char ret[MS_WORD_SIZE])
{
	char again[MS_WORD_SIZE];
	size_t n = 0;

	for (const char *p = name; *p; p++) {
		int c = (unsigned char)*p;

		if (n + 1 >= MS_WORD_SIZE)
			return false;
		if (c == '%') {
			if (digit(p[1]) < 0 || digit(p[2]) < 0)
				return false;
			c = digit(p[1]) << 4 | digit(p[2]);
			p += 2;
		}
		if (c == '\0')
			return false;
		ret[n++] = (char)c;
	}
	ret[n] = '\0';
	/* What needs no escape is not escaped, so that a directory has one name. */
	return ms_word_name(ret, again) && strcmp(again, name) == 0;
}

static const char head[] =
	"sandboxfs: run code that you do not trust.\n"
	"\n"
	"    echo '{\"command\":[\"sh\",\"-c\",\"echo hi\"]}' > runs/new   start a run\n"
	"    cat runs/latest/.wait                                  wait, then print its exit "
	"code\n"
	"    cat runs/latest/log                                    what it printed\n"
	"    cat build.sh > runs/new                                a script works, too\n"
	"    exec 3<>runs/new; cat spec.json >&3; read id <&3       the id of the run just "
	"started\n"
	"    echo cancel > runs/$id/ctl                             end it\n"
	"    mkdir sessions/work                                    files that many runs share:\n"
	"    cp -r src sessions/work/workspace                      put some there,\n"
	"    echo '{...}' > sessions/work/runs/new                  run something on them\n"
	"    cat by/label/ci=17/*/status; ls by/phase/failed        find runs by what they have\n"
	"\n"
	"A spec is one JSON object; only \"command\" is needed:\n"
	"    {\"command\":[\"python3\",\"main.py\"],\n"
	"     \"files\":[{\"path\":\"main.py\",\"content_b64\":\"cHJpbnQoMSkK\"}],\n"
	"     \"env\":{\"NAME\":\"value\"}, \"timeout_sec\":60,\n"
	"     \"resources\":{\"memory_mb\":256,\"cpu\":1}, \"trust_level\":\"untrusted\",\n"
	"     \"capture_patterns\":[\"out/*\"]}\n"
	"The command starts in /workspace; files that match capture_patterns are under artifacts/\n"
	"afterwards. A refused spec makes the write fail; the reason is what runs/new reads.\n"
	"\n"
	"Every node (those marked + are not listed, so that grep -r never waits on them):\n"
	"\n";

void ms_tree_readme(struct sbx_buf *out)
{
	sbx_buf_puts(out, head);
	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		sbx_autobuf path = SBX_BUF_INIT(4096);

		ms_node_path((enum ms_node_id)i, &path);
		if (sbx_buf_failed(&path))
			continue;
		sbx_buf_printf(out, "%c %-42s %s\n", nodes[i].listed ? ' ' : '+', path.data,
			       nodes[i].doc);
	}
}
