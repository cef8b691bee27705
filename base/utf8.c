/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

/* What the first byte promises: the length, and the range of the second byte. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
	*lo = 0x80;
	*hi = 0xbf;
	if (c < 0x80)
		return 1;
	if (c >= 0xc2 && c <= 0xdf)
		return 2;
	if (c >= 0xe0 && c <= 0xef) {
		if (c == 0xe0)
			*lo = 0xa0;
		else if (c == 0xed)
			*hi = 0x9f;
		return 3;
	}
	if (c >= 0xf0 && c <= 0xf4) {
		if (c == 0xf0)
			*lo = 0x90;
		else if (c == 0xf4)
			*hi = 0x8f;
		return 4;
	}
	return 0;
}

/* How many of the len bytes at s fit the character that begins there; *need is its length. */
static size_t fits(const char *s, size_t len, size_t *need)
{
	const unsigned char *u = (const unsigned char *)s;
	unsigned char lo, hi;
	size_t i;

	*need = len ? lead(u[0], &lo, &hi) : 0;
	if (*need == 0)
		return 0;
	for (i = 1; i < *need && i < len; i++) {
		if (u[i] < lo || u[i] > hi)
			return 0;
		lo = 0x80;
		hi = 0xbf;
	}
	return i;
}

size_t sbx_utf8_char(const char *s, size_t len)
{
	size_t need, got = fits(s, len, &need);

	return got == need ? got : 0;
}

bool sbx_utf8_valid(const char *s, size_t len)
{
	size_t i = 0, n;
	uint64_t word;

	while (i < len) {
		/* Eight plain bytes at a time: logs are mostly ASCII. */
		if (len - i >= sizeof(word)) {
			memcpy(&word, s + i, sizeof(word));
			if (!(word & 0x8080808080808080u)) {
				i += sizeof(word);
				continue;
			}
		}
		n = sbx_utf8_char(s + i, len - i);
		if (n == 0)
			return false;
		i += n;
	}
	return true;
}

size_t sbx_utf8_partial_tail(const char *s, size_t len)
{
	size_t need, max = len < 3 ? len : 3;

	for (size_t back = 1; back <= max; back++) {
		size_t got = fits(s + len - back, back, &need);

		if (got == back && need > back)
			return back;
	}
	return 0;
}
