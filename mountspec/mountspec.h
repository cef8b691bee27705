/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The documents that one may write: of a run, whose fields are the table fields.def, and of a
 * session, session_fields.def. The tables drive the parser, the validator, the canonical form, the
 * JSON that spec.json shows, and docs/spec.md.
 */
#ifndef SBX_MOUNTSPEC_MOUNTSPEC_H
#define SBX_MOUNTSPEC_MOUNTSPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/error.h"

enum {
	MS_DOC_MAX = 16 << 20,	/* bytes in one document */
	MS_ENV_MAX = 1 << 20,	/* bytes of all env names and values with their '=' and NUL */
	MS_ARG_MAX = 128 << 10, /* bytes in one argument; the kernel's MAX_ARG_STRLEN */
	MS_ARGS_MAX = 4096,	/* arguments */
	MS_FILES_MAX = 1000,	/* inline files */
	MS_PATTERNS_MAX = 256,	/* capture patterns */
	MS_KEY_MAX = 255,	/* bytes in an idempotency key */
	MS_LABELS_MAX = 64,	/* labels */
	MS_NAME_MAX = 120,	/* bytes in a name, a label key or value */
};

enum ms_type {
	MS_STRING = 1,
	MS_ENUM, /* a string out of a list */
	MS_INT,	 /* a whole number, also written 1e3 */
	MS_NUMBER,
	MS_BOOL,
	MS_STRINGS, /* array of strings */
	MS_STRMAP,  /* object of strings */
	MS_FILES,   /* array of {path, content_b64} */
	MS_BYTES,   /* base64 */
	MS_GROUP,   /* object whose members are fields of their own ("resources") */
};

enum ms_field {
	MS_F_NONE = 0,
#define X(sym, ...) MS_F_##sym,
#include "mountspec/fields.def"
#undef X
	MS_F__COUNT,
};
enum ms_session_field {
	MS_S_NONE = 0,
#define X(sym, ...) MS_S_##sym,
#include "mountspec/session_fields.def"
#undef X
	MS_S__COUNT,
};
_Static_assert(MS_F__COUNT <= 64 && MS_S__COUNT <= 64,
	       "struct ms_run_spec.present has one bit per field");

/* A row of a table, for documentation, discovery and tests. */
struct ms_field_info {
	const char *name; /* path with dots: "resources.cpu" */
	enum ms_type type;
	const char *unit;    /* "s", "MiB", "bytes", "" */
	double min, max;     /* of numbers; min of MS_NUMBER is excluded; 2^63: no maximum */
	size_t bytes;	     /* most bytes in one string, or in a key or value; 0: no limit */
	size_t entries;	     /* most entries of a list or map; 0: no limit of its own */
	const char *def;     /* the default as JSON text, "null" when there is none */
	const char *choices; /* MS_ENUM: the words, separated by one space */
	const char *since;   /* "1.0", "1.1", or "+" for our own */
	bool inherit;	     /* a run takes it from its session when the key is absent */
	const char *doc;     /* one line */
};
/* NULL for ..._NONE and beyond. */
const struct ms_field_info *ms_field_info(enum ms_field f);
const struct ms_field_info *ms_session_field_info(enum ms_session_field f);

struct ms_pair {
	char *key, *value; /* owned */
};
struct ms_file {
	char *path;    /* owned, checked by sbx_path_problem */
	uint8_t *data; /* owned, never NULL */
	size_t len;
};

/* A run spec, and a session spec: members that a session does not have are empty there. Strings are
 * owned and NULL where the document says null or nothing and the table has no default. Numbers
 * without a value are -1 (cpu: -1.0). */
struct ms_run_spec {
	/* 1 << enum ms_field, or of a session enum ms_session_field: the key was in the document,
	 * also as null; and it was null there. */
	uint64_t present, null;
	char *spec_version, *session_id, *runtime, *base_image;
	char **command; /* n_command strings and a NULL */
	size_t n_command;
	struct ms_pair *env;
	size_t n_env;
	char *cwd; /* relative to /workspace, or absolute; NULL: /workspace */
	int64_t startup_timeout_sec, timeout_sec;
	double cpu;
	int64_t memory_mb, pids;
	char *network_policy;
	char **network_allowlist;
	size_t n_network_allowlist;
	struct ms_file *files;
	size_t n_files;
	char **capture_patterns;
	size_t n_capture_patterns;
	bool interactive;
	int64_t stdin_max_bytes, stdin_max_frame_bytes, stdin_bps, stdin_idle_timeout_sec;
	uint8_t *stdin_data; /* stdin_b64, decoded; NULL: none */
	size_t stdin_len;
	int64_t resume_from_seq;
	char *trust_level;
	char *persona_id, *workspace_id, *workspace_group_id, *scope_snapshot_id;
	char *name;
	struct ms_pair *labels;
	size_t n_labels;
	char *idempotency_key;
	char *lifetime;	 /* "detached" (default) or "handle" */
	bool concurrent; /* a session's */
};

struct ms_run_spec *ms_run_free(struct ms_run_spec *s); /* NULL is fine; returns NULL */
SBX_DEFINE_AUTO(struct ms_run_spec, ms_run_free)
#define ms_autorun SBX_AUTO(ms_run_freep)

struct ms_options {
	bool refuse_unknown;	   /* the mount does, the API does not */
	const char *versions;	   /* comma separated spec versions; NULL: "1.0,1.1" */
	const char *default_image; /* of a run, used when neither base_image nor session_id is
				      given; NULL: that is INVALID_SPEC, as in the reference */
	/* Where it depends on the runtime (NULL: the document names none), and then default_image
	 * does not count; NULL: it does not. */
	const char *(*default_image_of)(const void *ctx, const char *runtime);
	const void *default_image_ctx;
	const char *session_id; /* of a run, from where it was submitted; the document's must be the
				   same. NULL: what the document says */
	bool stored;		/* text from our own store: no checks of meaning, only of form */
};

/*
 * Parses and validates one document. INVALID_SPEC carries in its message the field's path, what
 * was found and what is allowed (and the nearest known name for an unknown field), and in its
 * details {"field","found","allowed"[,"did_you_mean"]}. Also INVALID_SPEC_VERSION (details
 * supported, provided), INVALID_INLINE_FILE (details index, path), SPEC_TOO_LARGE.
 * Secrets: the value of an env entry never appears in a message.
 */
int ms_run_parse(const char *text, size_t len, const struct ms_options *opts,
		 struct ms_run_spec **ret, struct sbx_error *e);
/* A text that begins with "#!": it becomes the file `script` (mode 0755 is given by the runner),
 * the command is the interpreter, its one optional argument as the kernel splits it, and "script".
 */
int ms_run_from_script(const char *text, size_t len, const struct ms_options *opts,
		       struct ms_run_spec **ret, struct sbx_error *e);

/* The effective spec as JSON text: set members only, in table order, files and stdin as base64.
 * ms_run_parse with .stored reads it back to an equal struct. malloc'd, NULL without memory. */
char *ms_run_json(const struct ms_run_spec *s);
/* What idempotency compares: canonical JSON (sbx_json_canonical) with defaults filled in, nulls
 * and idempotency_key dropped. malloc'd, NULL without memory. */
char *ms_run_canonical(const struct ms_run_spec *s);

/*
 * The same for the document of a session, with the same refusals; len 0 is "{}". Nothing is
 * required. timeout_sec null is -1, which the host fills in; any other null is the default.
 */
int ms_session_parse(const char *text, size_t len, const struct ms_options *opts,
		     struct ms_run_spec **ret, struct sbx_error *e);
char *ms_session_json(const struct ms_run_spec *s);
char *ms_session_canonical(const struct ms_run_spec *s);

/*
 * Copies from the session what the run's document leaves out: every field whose row says so and
 * whose key was not there (`present`; null is a key that was there, and each member of "resources"
 * counts for itself). A session without a value leaves none in the run, whatever the run's default
 * is. `present` stays as it is: it is about the run's document. Whether the run has an image now is
 * for the caller to see. NO_MEMORY, and then the run is only good for freeing.
 */
int ms_run_inherit(struct ms_run_spec *run, const struct ms_run_spec *session, struct sbx_error *e);

#endif
