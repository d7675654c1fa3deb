/* SPDX-License-Identifier: MIT
 *
 * Patterns of the library's engine (Oniguruma, Ruby's syntax) as PCRE2 says
 * them. What would mean something else and is not rewritten here is refused. */
#include "config.h"
#include "data/tok_int.h"

struct scan {
    const char *p, *end;
    const char *name; /* of the tokenizer */
    const char *all;  /* the whole pattern */
    size_t n_all;
    struct tok_buf *to;
};

static enum zb_status refuse(const struct scan *s, const char *what)
{
    return zb_fail(ZB_ECONFIG, "%s: %s in the pattern '%.*s' is not supported",
                   s->name, what, s->n_all < 200 ? (int)s->n_all : 200, s->all);
}

static enum zb_status put(struct scan *s, const char *text)
{
    return zb_tok_buf_add(s->to, text, strlen(text));
}

/* \p{Name} and \p{^Name}: names of categories and scripts are the same. */
static enum zb_status property(struct scan *s)
{
    const char *end = memchr(s->p, '}', (size_t)(s->end - s->p));

    if (end == NULL || s->end - s->p < 2 || s->p[1] != '{') {
        return refuse(s, "\\p without {}");
    }
    ZB_TRY(put(s, "\\"));
    ZB_TRY(zb_tok_buf_add(s->to, s->p, (size_t)(end + 1 - s->p)));
    s->p = end + 1;
    return ZB_OK;
}

/* After a backslash. White space is Unicode's in both engines but for one
 * character that PCRE2's \s has in addition. */
static enum zb_status escape(struct scan *s)
{
    static const struct {
        char c;
        const char *text;
    } rows[] = {{'s', "\\p{White_Space}"},
                {'S', "\\P{White_Space}"},
                {'d', "\\p{Nd}"},
                {'D', "\\P{Nd}"},
                {'r', "\\r"},
                {'n', "\\n"},
                {'t', "\\t"},
                {'f', "\\f"},
                {'a', "\\a"},
                {'v', "\\x0b"}};
    char text[3] = {'\\', 0, 0};

    if (s->p == s->end) {
        return refuse(s, "a backslash at the end");
    }
    text[1] = *s->p;
    if (*s->p == 'p' || *s->p == 'P') {
        return property(s);
    }
    for (size_t i = 0; i < ZB_COUNT_OF(rows); i++) {
        if (*s->p == rows[i].c) {
            s->p++;
            return put(s, rows[i].text);
        }
    }
    if ((*s->p >= 'a' && *s->p <= 'z') || (*s->p >= 'A' && *s->p <= 'Z') ||
        (*s->p >= '0' && *s->p <= '9') || (unsigned char)*s->p >= 0x80) {
        return refuse(s, text);
    }
    s->p++;
    return put(s, text);
}

/* Inside brackets. Sets in sets are unions there: their brackets are dropped.
 */
static enum zb_status set(struct scan *s)
{
    int depth = 1;

    ZB_TRY(put(s, "["));
    if (s->p < s->end && *s->p == '^') {
        s->p++;
        ZB_TRY(put(s, "^"));
    }
    if (s->p < s->end && *s->p == ']') {
        return refuse(s, "an empty set");
    }
    while (s->p < s->end) {
        char c = *s->p++;

        if (c == '\\') {
            ZB_TRY(escape(s));
        } else if (c == '[') {
            if (s->p < s->end && (*s->p == '^' || *s->p == ':')) {
                return refuse(s, *s->p == '^' ? "[^...] in a set"
                                              : "[:...:] in a set");
            }
            depth++;
        } else if (c == ']') {
            if (--depth == 0) {
                return put(s, "]");
            }
        } else if (c == '&' && s->p < s->end && *s->p == '&') {
            return refuse(s, "&& in a set");
        } else {
            ZB_TRY(zb_tok_buf_add(s->to, &c, 1));
        }
    }
    return refuse(s, "a set without an end");
}

/* Groups: what both engines have, and none that only one has. */
static enum zb_status group(struct scan *s)
{
    static const char *const known[] = {
        "?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"};

    if (s->p == s->end || (*s->p != '?' && *s->p != '*')) {
        return put(s, "(");
    }
    for (size_t i = 0; i < ZB_COUNT_OF(known); i++) {
        size_t n = strlen(known[i]);

        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, known[i], n) == 0) {
            s->p += n;
            ZB_TRY(put(s, "("));
            return put(s, known[i]);
        }
    }
    return refuse(s, "a group of its kind");
}

enum zb_status zb_tok_pattern(const char *from, size_t n, const char *name,
                              struct tok_buf *to)
{
    struct scan s = {.p = from,
                     .end = from + n,
                     .name = name,
                     .all = from,
                     .n_all = n,
                     .to = to};

    while (s.p < s.end) {
        char c = *s.p++;

        switch (c) {
        case '\\':
            ZB_TRY(escape(&s));
            break;
        case '[':
            ZB_TRY(set(&s));
            break;
        case '(':
            ZB_TRY(group(&s));
            break;
        case '{':
            if (s.p < s.end && *s.p == ',') {
                return refuse(&s, "{,n}");
            }
            ZB_TRY(put(&s, "{"));
            break;
        case '}':
            if (s.p < s.end && *s.p == '+') {
                return refuse(&s, "+ after {n,m}");
            }
            ZB_TRY(put(&s, "}"));
            break;
        default:
            ZB_TRY(zb_tok_buf_add(to, &c, 1));
        }
    }
    return zb_tok_buf_add(to, "", 0);
}
