/* SPDX-License-Identifier: Apache-2.0 */
/* A table with 32 bytes as key. Keys may come from somebody who wants them to collide, so their
 * order depends on a number that only this process knows. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/snap_i.h"

static size_t first_slot(const struct snap_table *t, const uint8_t key[SNAP_HASH_LEN])
{
	uint64_t a[4];

	memcpy(a, key, sizeof(a));
	a[0] = (a[0] ^ a[2]) * t->salt;
	a[1] = ((a[1] ^ a[3]) + (a[0] >> 29)) * t->salt;
	return (size_t)(a[1] >> 32) & (t->size - 1);
}

static struct snap_slot *find(const struct snap_table *t, const uint8_t key[SNAP_HASH_LEN])
{
	size_t i = first_slot(t, key);

	while (t->slots[i].value && memcmp(t->slots[i].key, key, SNAP_HASH_LEN) != 0)
		i = (i + 1) & (t->size - 1);
	return &t->slots[i];
}

static int grow(struct snap_table *t)
{
	struct snap_table bigger = { .used = t->used, .salt = t->salt };

	if (!bigger.salt) {
		sbx_random(&bigger.salt, sizeof(bigger.salt));
		bigger.salt |= 1;
	}
	bigger.size = t->size ? 2 * t->size : 64;
	bigger.slots = calloc(bigger.size, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	for (size_t i = 0; i < t->size; i++)
		if (t->slots[i].value)
			*find(&bigger, t->slots[i].key) = t->slots[i];
	free(t->slots);
	*t = bigger;
	return 0;
}

int snap_table_add(struct snap_table *t, const uint8_t key[SNAP_HASH_LEN], uint32_t value,
		   uint32_t *ret)
{
	struct snap_slot *slot;

	if (2 * (t->used + 1) > t->size && grow(t) < 0)
		return -ENOMEM;
	slot = find(t, key);
	if (slot->value) {
		if (ret)
			*ret = slot->value - 1;
		return 0;
	}
	memcpy(slot->key, key, SNAP_HASH_LEN);
	slot->value = value + 1;
	t->used++;
	if (ret)
		*ret = value;
	return 1;
}

bool snap_table_has(const struct snap_table *t, const uint8_t key[SNAP_HASH_LEN])
{
	return t->size && find(t, key)->value;
}

void snap_table_fini(struct snap_table *t)
{
	free(t->slots);
	*t = (struct snap_table){ .slots = NULL };
}
