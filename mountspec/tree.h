/* SPDX-License-Identifier: Apache-2.0 */
/* The tree that one sees, as data: no path is compared by hand anywhere else. */
#ifndef SBX_MOUNTSPEC_TREE_H
#define SBX_MOUNTSPEC_TREE_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"

enum ms_node_id {
	MS_N_NONE = 0,
#define X(sym, ...) MS_N_##sym,
#include "mountspec/tree.def"
#undef X
	MS_N__COUNT,
};
_Static_assert(MS_N_ROOT == 1, "the root's inode number is FUSE_ROOT_ID");
_Static_assert(MS_N__COUNT < 256, "an inode number keeps eight bits for the node");

enum ms_kind { MS_K_DIR = 1, MS_K_FILE, MS_K_LOG, MS_K_LINK, MS_K_STREAM, MS_K_CONTROL };
enum ms_who { MS_WHO_ALL = 1, MS_WHO_OWNER, MS_WHO_ADMIN };
enum ms_when { MS_WHEN_ALWAYS = 1, MS_WHEN_EXITED, MS_WHEN_INTERACTIVE, MS_WHEN_SESSION };

enum ms_view {
	MS_V_NONE = 0,
	MS_V_README,
	MS_V_LAST_RESULT,
	MS_V_LAST_CHECK,
	MS_V_LATEST,
	MS_V_SPEC,
	MS_V_STATUS,
	MS_V_STATUS_JSON,
	MS_V_EXIT_CODE,
	MS_V_WHY,
	MS_V_LOG,
	MS_V_STDOUT,
	MS_V_STDERR,
	MS_V_NDJSON,
	MS_V_SESSION_LINK,
	MS_V_WAIT,
	MS_V_STREAM,
	MS_V_RUNTIME,
	MS_V_EVENTS,
	MS_V_HEALTH,
	MS_V_METRICS,
	MS_V_DIAGNOSTICS,
	MS_V_OPERATOR,
	MS_V_USAGE,
	MS_V_ADMIN_RUNS,
	MS_V_QUEUE,
	MS_V_LAST_SESSION,
	MS_V_LATEST_SESSION,
	MS_V_SESSION_NAME,
	MS_V_SESSION_SPEC,
	MS_V_SESSION_STATUS,
	MS_V_WORK_PLACE,
	MS_V_RUN_LINK,
	MS_V_SHOT_META,
	MS_V_SHOT_DIFF,
	MS_V_IMAGE_DIGEST,
	MS_V_IMAGE_SIZE,
	MS_V_IMAGE_SOURCE,
	MS_V_IMAGE_INFO,
	MS_V_IMPORT_ERROR,
	MS_V_SHOT_TAR,
	MS_V__COUNT,
};

enum ms_verb {
	MS_W_NONE = 0,
	MS_W_SUBMIT,
	MS_W_CHECK,
	MS_W_STDIN,
	MS_W_CTL,
	MS_W_EVENTS_AT,
	MS_W_MAKE_SESSION,
	MS_W_SESSION_CTL,
	MS_W_IMPORT,
	MS_W__COUNT,
};

struct ms_node {
	const char *name; /* "*": the state names it */
	enum ms_node_id parent;
	enum ms_kind kind;
	mode_t mode; /* permission bits */
	enum ms_who who;
	bool listed;
	enum ms_when when;
	enum ms_view view;
	enum ms_verb verb;
	const char *doc;
};

const struct ms_node *ms_node(enum ms_node_id id); /* NULL for MS_N_NONE and beyond */
/* The child with this name; the "*" child when there is one and no fixed name fits. */
enum ms_node_id ms_node_child(enum ms_node_id parent, const char *name);
/* The children in table order: start with MS_N_NONE, ends with MS_N_NONE. */
enum ms_node_id ms_node_next(enum ms_node_id parent, enum ms_node_id after);
/* "/runs/<run>/status" and the like. */
void ms_node_path(enum ms_node_id id, struct sbx_buf *out);

/*
 * A word of the state as a name: '/', '%' and control characters, and the dots of a word that is
 * "." or "..", are written as % and two digits (upper case), as in a URL. One name for each word
 * and the other way round.
 */
enum { MS_WORD_SIZE = 256 };
/* False: it has no name, since it is empty or the name would be longer than one may be. */
bool ms_word_name(const char *word, char ret[MS_WORD_SIZE]);
/* False: it is no name of a word. */
bool ms_name_word(const char *name, char ret[MS_WORD_SIZE]);

/* The text of README on the mount. */
void ms_tree_readme(struct sbx_buf *out);

#endif
