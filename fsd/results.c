/* SPDX-License-Identifier: Apache-2.0 */
/* The last result of each user, which a fresh reader of runs/new and its like is told. */
#include "fsd/fsd_i.h"

#include <string.h>

enum { RESULTS_MAX = 256 };

struct results {
	pthread_mutex_t lock;
	unsigned next;
	struct {
		uid_t uid;
		enum ms_view view;
		char *text; /* owned */
		size_t len;
	} rows[RESULTS_MAX]; /* the oldest is overwritten */
};

struct results *results_new(void)
{
	struct results *r = calloc(1, sizeof(*r));

	if (r)
		pthread_mutex_init(&r->lock, NULL);
	return r;
}

void results_free(struct results *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < RESULTS_MAX; i++)
		free(r->rows[i].text);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

void results_set(struct results *r, uid_t uid, enum ms_view view, const char *text, size_t len)
{
	size_t at;
	char *copy = malloc(len + 1);

	if (!copy)
		return;
	memcpy(copy, text, len);
	copy[len] = '\0';
	pthread_mutex_lock(&r->lock);
	for (at = 0; at < RESULTS_MAX; at++)
		if (r->rows[at].text && r->rows[at].uid == uid && r->rows[at].view == view)
			break;
	if (at == RESULTS_MAX)
		at = r->next++ % RESULTS_MAX;
	free(r->rows[at].text);
	r->rows[at].uid = uid;
	r->rows[at].view = view;
	r->rows[at].text = copy;
	r->rows[at].len = len;
	pthread_mutex_unlock(&r->lock);
}

char *results_get(struct results *r, uid_t uid, enum ms_view view, size_t *ret_len)
{
	char *copy = NULL;

	*ret_len = 0;
	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < RESULTS_MAX && !copy; i++) {
		if (!r->rows[i].text || r->rows[i].uid != uid || r->rows[i].view != view)
			continue;
		copy = malloc(r->rows[i].len + 1);
		if (copy) {
			memcpy(copy, r->rows[i].text, r->rows[i].len + 1);
			*ret_len = r->rows[i].len;
		}
	}
	pthread_mutex_unlock(&r->lock);
	return copy ? copy : calloc(1, 1);
}
