/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said of a run that has ended does not change, and clients ask for it again and again. So
 * the last such answers are kept. The store is asked each time whether the row is still the same,
 * and still the caller's to see: that is a look at an index, where the answer is forty columns.
 */
#include <pthread.h>
#include <string.h>

#include "apid/apid_i.h"

enum {
	SLOTS = 256,
	TEXT_MAX = 8 << 10, /* longer ones are not kept; a status is 1 to 2 KiB */
};

struct slot {
	char id[37];
	char etag[API_ETAG];
	int64_t changed_us; /* of the row that it was made from */
	char *text;	    /* owned */
	size_t len;
};

struct finished {
	pthread_mutex_t lock;
	struct slot slots[SLOTS];
};

static struct slot *slot_of(struct finished *f, const char *id)
{
	return &f->slots[store_user_hash(id) % SLOTS];
}

struct finished *finished_new(void)
{
	struct finished *f = calloc(1, sizeof(*f));

	if (f)
		pthread_mutex_init(&f->lock, NULL);
	return f;
}

struct finished *finished_free(struct finished *f)
{
	if (!f)
		return NULL;
	for (size_t i = 0; i < SLOTS; i++)
		free(f->slots[i].text);
	pthread_mutex_destroy(&f->lock);
	free(f);
	return NULL;
}

bool finished_get(struct apid *a, const char *id, const struct orch_principal *who,
		  char etag[API_ETAG], struct sbx_buf *out)
{
	struct finished *f = a->finished;
	struct slot *s = slot_of(f, id);
	struct store_run_key key;
	int64_t changed_us = 0;
	bool found;

	pthread_mutex_lock(&f->lock);
	found = strcmp(s->id, id) == 0;
	if (found) {
		changed_us = s->changed_us;
		memcpy(etag, s->etag, sizeof(s->etag));
		sbx_buf_add(out, s->text, s->len);
	}
	pthread_mutex_unlock(&f->lock);
	found = found && !sbx_buf_failed(out) &&
		store_run_key(a->store, id, who->admin ? NULL : who->user, &key, NULL) == 0 &&
		store_phase_terminal(key.phase) && key.changed_us == changed_us;
	if (!found)
		out->len = 0;
	return found;
}

void finished_put(struct finished *f, const struct store_run *r, const char etag[API_ETAG],
		  const struct sbx_buf *text)
{
	struct slot *s = slot_of(f, r->id), made = { .len = text->len };
	char *old;

	if (!store_phase_terminal(r->phase) || text->failed || text->len > TEXT_MAX ||
	    strlen(r->id) >= sizeof(made.id))
		return;
	made.text = malloc(text->len);
	if (!made.text)
		return;
	memcpy(made.text, text->data, text->len);
	memcpy(made.id, r->id, strlen(r->id) + 1);
	memcpy(made.etag, etag, sizeof(made.etag));
	made.changed_us = r->changed_us;
	pthread_mutex_lock(&f->lock);
	old = s->text;
	*s = made;
	pthread_mutex_unlock(&f->lock);
	free(old);
}
