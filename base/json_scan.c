/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON grammar (RFC 8259) as a machine that takes one byte at a time: one function for each
 * state. It stores nothing of the text, so a document of any size costs sizeof(struct).
 */
#include "base/json.h"

#include <string.h>

enum scan_state {
	S_START, /* white space before the brace */
	S_BOM_2, /* the byte order mark's second byte */
	S_BOM_3,
	S_FIRST_KEY, /* after '{' */
	S_KEY,	     /* after ',' in an object */
	S_COLON,
	S_FIRST_VALUE, /* after '[' */
	S_VALUE,
	S_AFTER_VALUE,
	S_STRING,
	S_ESCAPE, /* after a backslash */
	S_HEX,
	S_LOW_BACKSLASH, /* a high surrogate wants "\u" and its other half */
	S_LOW_U,
	S_MINUS,
	S_ZERO,
	S_DIGITS,
	S_POINT,
	S_FRACTION,
	S_E,
	S_E_SIGN,
	S_E_DIGITS,
	S_WORD, /* inside true, false or null; the place is kept in `hex` */
	S_DONE,
	S_BROKEN,
	S__COUNT,
};

/* Flags beside the state: the string is a key; the escape must be a low surrogate. */
enum { IN_KEY = 0x100, WANT_LOW = 0x200, STATE_MASK = 0xff };

/* The words that are values, one behind the other; each ends at its NUL. */
static const char words[] = "true\0false\0null";
enum { WORD_TRUE = 0, WORD_FALSE = 5, WORD_NULL = 11 };

static void go(struct sbx_json_scan *s, enum scan_state state)
{
	s->state = (unsigned)state;
}

static void broken(struct sbx_json_scan *s, const char *problem)
{
	s->problem = problem;
	s->problem_at = s->consumed;
	go(s, S_BROKEN);
}

static bool is_space(unsigned char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(unsigned char c)
{
	return c >= '0' && c <= '9';
}

static bool in_object(const struct sbx_json_scan *s)
{
	return s->stack[(s->depth - 1) / 8] >> ((s->depth - 1) % 8) & 1;
}

static void push(struct sbx_json_scan *s, bool object)
{
	unsigned char bit;

	if (s->depth == SBX_JSON_DEPTH) {
		broken(s, "is nested deeper than 64 levels");
		return;
	}
	bit = (unsigned char)(1u << (s->depth % 8));
	if (object)
		s->stack[s->depth / 8] |= bit;
	else
		s->stack[s->depth / 8] &= (unsigned char)~bit;
	s->depth++;
	go(s, object ? S_FIRST_KEY : S_FIRST_VALUE);
}

static void pop(struct sbx_json_scan *s)
{
	s->depth--;
	go(s, s->depth ? S_AFTER_VALUE : S_DONE);
}

static void start(struct sbx_json_scan *s, unsigned char c)
{
	if (c == '{') {
		s->begun = true;
		push(s, true);
	} else if (c == 0xef && s->consumed == 0) {
		go(s, S_BOM_2);
	} else if (!is_space(c)) {
		broken(s, "is not a JSON object");
	}
}

static void bom_2(struct sbx_json_scan *s, unsigned char c)
{
	if (c == 0xbb)
		go(s, S_BOM_3);
	else
		broken(s, "is not a JSON object");
}

static void bom_3(struct sbx_json_scan *s, unsigned char c)
{
	if (c == 0xbf)
		go(s, S_START);
	else
		broken(s, "is not a JSON object");
}

static void key(struct sbx_json_scan *s, unsigned char c)
{
	if (c == '"')
		s->state = S_STRING | IN_KEY;
	else if (!is_space(c))
		broken(s, "needs a name in double quotes here");
}

static void first_key(struct sbx_json_scan *s, unsigned char c)
{
	if (c == '}')
		pop(s);
	else
		key(s, c);
}

static void colon(struct sbx_json_scan *s, unsigned char c)
{
	if (c == ':')
		go(s, S_VALUE);
	else if (!is_space(c))
		broken(s, "needs a ':' here");
}

static void word(struct sbx_json_scan *s, unsigned place)
{
	s->hex = place;
	go(s, S_WORD);
}

static void value(struct sbx_json_scan *s, unsigned char c)
{
	if (c == '"')
		go(s, S_STRING);
	else if (c == '{' || c == '[')
		push(s, c == '{');
	else if (c == '-')
		go(s, S_MINUS);
	else if (c == '0')
		go(s, S_ZERO);
	else if (is_digit(c))
		go(s, S_DIGITS);
	else if (c == 't')
		word(s, WORD_TRUE + 1);
	else if (c == 'f')
		word(s, WORD_FALSE + 1);
	else if (c == 'n')
		word(s, WORD_NULL + 1);
	else if (!is_space(c))
		broken(s, "needs a value here");
}

static void first_value(struct sbx_json_scan *s, unsigned char c)
{
	if (c == ']')
		pop(s);
	else
		value(s, c);
}

static void after_value(struct sbx_json_scan *s, unsigned char c)
{
	bool object = in_object(s);

	if (c == ',')
		go(s, object ? S_KEY : S_VALUE);
	else if (c == (object ? '}' : ']'))
		pop(s);
	else if (!is_space(c))
		broken(s, object ? "needs a ',' or '}' here" : "needs a ',' or ']' here");
}

/* The first byte of a character of several: what the next one may be (RFC 3629). */
static void utf8_lead(struct sbx_json_scan *s, unsigned char c)
{
	s->utf8_lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
	s->utf8_hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
	if (c >= 0xc2 && c <= 0xdf)
		s->utf8_need = 1;
	else if (c >= 0xe0 && c <= 0xef)
		s->utf8_need = 2;
	else if (c >= 0xf0 && c <= 0xf4)
		s->utf8_need = 3;
	else
		broken(s, "is not valid UTF-8");
}

static void string(struct sbx_json_scan *s, unsigned char c)
{
	if (s->utf8_need) {
		if (c < s->utf8_lo || c > s->utf8_hi) {
			broken(s, "is not valid UTF-8");
			return;
		}
		s->utf8_need--;
		s->utf8_lo = 0x80;
		s->utf8_hi = 0xbf;
	} else if (c == '"') {
		go(s, s->state & IN_KEY ? S_COLON : S_AFTER_VALUE);
	} else if (c == '\\') {
		s->state = S_ESCAPE | (s->state & IN_KEY);
	} else if (c == 0) {
		broken(s, "contains a NUL byte");
	} else if (c < 0x20) {
		broken(s, "has a control character that is not escaped");
	} else if (c >= 0x80) {
		utf8_lead(s, c);
	}
}

static void escape(struct sbx_json_scan *s, unsigned char c)
{
	if (c == 'u') {
		s->hex = 0;
		s->hex_left = 4;
		s->state = S_HEX | (s->state & IN_KEY);
	} else if (c && strchr("\"\\/bfnrt", c)) {
		s->state = S_STRING | (s->state & IN_KEY);
	} else {
		broken(s, "has an unknown escape");
	}
}

static void hex_done(struct sbx_json_scan *s)
{
	bool low = s->hex >= 0xdc00 && s->hex <= 0xdfff;
	bool want_low = s->state & WANT_LOW;

	if (s->hex == 0)
		broken(s, "contains a NUL byte");
	else if (low != want_low)
		broken(s, "has half of a surrogate pair");
	else if (s->hex >= 0xd800 && s->hex <= 0xdbff)
		s->state = S_LOW_BACKSLASH | (s->state & IN_KEY);
	else
		s->state = S_STRING | (s->state & IN_KEY);
}

static void hex(struct sbx_json_scan *s, unsigned char c)
{
	unsigned digit;

	if (is_digit(c)) {
		digit = c - '0';
	} else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
		digit = (c | 0x20u) - 'a' + 10;
	} else {
		broken(s, "has a \\u escape without its four hex digits");
		return;
	}
	s->hex = s->hex << 4 | digit;
	if (--s->hex_left == 0)
		hex_done(s);
}

static void low_backslash(struct sbx_json_scan *s, unsigned char c)
{
	if (c == '\\')
		s->state = S_LOW_U | (s->state & IN_KEY);
	else
		broken(s, "has half of a surrogate pair");
}

static void low_u(struct sbx_json_scan *s, unsigned char c)
{
	if (c != 'u') {
		broken(s, "has half of a surrogate pair");
		return;
	}
	s->hex = 0;
	s->hex_left = 4;
	s->state = S_HEX | WANT_LOW | (s->state & IN_KEY);
}

/* States of a number in which a digit must come. */
static void need_digit(struct sbx_json_scan *s, unsigned char c, enum scan_state next)
{
	if (is_digit(c))
		go(s, next);
	else
		broken(s, "has a number that is not written as JSON has it");
}

/* A number has no end of its own: what cannot continue it comes after it. */
static void number_end(struct sbx_json_scan *s, unsigned char c)
{
	go(s, S_AFTER_VALUE);
	after_value(s, c);
}

static void minus(struct sbx_json_scan *s, unsigned char c)
{
	need_digit(s, c, c == '0' ? S_ZERO : S_DIGITS);
}

static void zero(struct sbx_json_scan *s, unsigned char c)
{
	if (c == '.')
		go(s, S_POINT);
	else if (c == 'e' || c == 'E')
		go(s, S_E);
	else if (is_digit(c))
		broken(s, "has a number that is not written as JSON has it");
	else
		number_end(s, c);
}

static void digits(struct sbx_json_scan *s, unsigned char c)
{
	if (!is_digit(c))
		zero(s, c);
}

static void point(struct sbx_json_scan *s, unsigned char c)
{
	need_digit(s, c, S_FRACTION);
}

static void fraction(struct sbx_json_scan *s, unsigned char c)
{
	if (c == 'e' || c == 'E')
		go(s, S_E);
	else if (!is_digit(c))
		number_end(s, c);
}

static void exponent(struct sbx_json_scan *s, unsigned char c)
{
	if (c == '+' || c == '-')
		go(s, S_E_SIGN);
	else
		need_digit(s, c, S_E_DIGITS);
}

static void exponent_sign(struct sbx_json_scan *s, unsigned char c)
{
	need_digit(s, c, S_E_DIGITS);
}

static void exponent_digits(struct sbx_json_scan *s, unsigned char c)
{
	if (!is_digit(c))
		number_end(s, c);
}

static void in_word(struct sbx_json_scan *s, unsigned char c)
{
	if (c != (unsigned char)words[s->hex])
		broken(s, "has a word that is not true, false or null");
	else if (words[++s->hex] == '\0')
		go(s, S_AFTER_VALUE);
}

static void (*const steps[S__COUNT])(struct sbx_json_scan *s, unsigned char c) = {
	[S_START] = start,
	[S_BOM_2] = bom_2,
	[S_BOM_3] = bom_3,
	[S_FIRST_KEY] = first_key,
	[S_KEY] = key,
	[S_COLON] = colon,
	[S_FIRST_VALUE] = first_value,
	[S_VALUE] = value,
	[S_AFTER_VALUE] = after_value,
	[S_STRING] = string,
	[S_ESCAPE] = escape,
	[S_HEX] = hex,
	[S_LOW_BACKSLASH] = low_backslash,
	[S_LOW_U] = low_u,
	[S_MINUS] = minus,
	[S_ZERO] = zero,
	[S_DIGITS] = digits,
	[S_POINT] = point,
	[S_FRACTION] = fraction,
	[S_E] = exponent,
	[S_E_SIGN] = exponent_sign,
	[S_E_DIGITS] = exponent_digits,
	[S_WORD] = in_word,
};

void sbx_json_scan_init(struct sbx_json_scan *s)
{
	*s = (struct sbx_json_scan){ .state = S_START };
}

/* Most of a large document is the inside of strings: steps over what is plain there. */
static size_t plain_run(const struct sbx_json_scan *s, const char *data, size_t len)
{
	size_t n = 0;

	if ((s->state & STATE_MASK) != S_STRING || s->utf8_need)
		return 0;
	while (n < len && (unsigned char)data[n] >= 0x20 && (unsigned char)data[n] < 0x80 &&
	       data[n] != '"' && data[n] != '\\')
		n++;
	return n;
}

enum sbx_json_state sbx_json_scan_feed(struct sbx_json_scan *s, const char *data, size_t len,
				       size_t *ret_used)
{
	size_t i = 0, run;

	while (i < len && s->state != S_DONE && s->state != S_BROKEN) {
		run = plain_run(s, data + i, len - i);
		i += run;
		s->consumed += run;
		if (i == len)
			break;
		steps[s->state & STATE_MASK](s, (unsigned char)data[i]);
		i++;
		s->consumed++;
	}
	if (ret_used)
		*ret_used = i;
	if (s->state == S_BROKEN)
		return SBX_JSON_BROKEN;
	return s->state == S_DONE ? SBX_JSON_COMPLETE : SBX_JSON_MORE;
}
