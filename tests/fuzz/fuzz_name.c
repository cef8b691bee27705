/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a name in by/, and as a word that gets one: a name leads to one word and the
 * word back to it; it has no slash, is never "." or "..", and is no longer than a name may be.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "mountspec/tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_name: broken: %s\n", what);
	abort();
}

static void check_name(const char *name)
{
	char word[MS_WORD_SIZE], again[MS_WORD_SIZE];

	if (!ms_name_word(name, word))
		return;
	must(ms_word_name(word, again), "a word that was named has a name");
	must(strcmp(again, name) == 0, "and it is that name");
}

static void check_word(const char *word)
{
	char name[MS_WORD_SIZE], again[MS_WORD_SIZE];

	if (!ms_word_name(word, name)) {
		must(!*word || strlen(word) * 3 >= MS_WORD_SIZE, "only what is long has no name");
		return;
	}
	must(*name && !strchr(name, '/'), "a name is one part of a path");
	must(strcmp(name, ".") != 0 && strcmp(name, "..") != 0, "a name is no place of its own");
	must(ms_name_word(name, again) && strcmp(again, word) == 0, "a name leads to its word");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	sbx_autofree char *text = size < 4096 ? strndup((const char *)data, size) : NULL;

	if (!text)
		return 0;
	check_name(text);
	check_word(text);
	return 0;
}
