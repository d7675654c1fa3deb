/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "conf/conf_int.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

#define LIST_MAX 4096

/* Shown at most of a bad value: the rest would push the message away. */
#define SHOWN "%.80s"

/* A field of any kind, to parse into before the old value is given up. */
union value {
    int i;
    int64_t i64;
    uint64_t u64;
    double d;
    char *s;
    struct zb_conf_strings strings;
    struct zb_conf_ints ints;
    struct zb_conf_doubles doubles;
    struct zb_conf_mem mem;
};

static size_t kind_bytes(enum zb_opt_kind kind)
{
    switch (kind) {
    case ZB_OPT_INT:
    case ZB_OPT_BOOL:
    case ZB_OPT_ENUM:
        return sizeof(int);
    case ZB_OPT_I64:
    case ZB_OPT_BYTES:
        return sizeof(int64_t);
    case ZB_OPT_U64:
        return sizeof(uint64_t);
    case ZB_OPT_DOUBLE:
        return sizeof(double);
    case ZB_OPT_STRING:
    case ZB_OPT_PATH:
        return sizeof(char *);
    case ZB_OPT_PATHS:
    case ZB_OPT_WORDS:
        return sizeof(struct zb_conf_strings);
    case ZB_OPT_INTS:
        return sizeof(struct zb_conf_ints);
    case ZB_OPT_DOUBLES:
        return sizeof(struct zb_conf_doubles);
    case ZB_OPT_MEM:
        return sizeof(struct zb_conf_mem);
    }
    return 0;
}

static void value_release(const struct zb_conf_opt *opt, union value *v)
{
    switch (opt->kind) {
    case ZB_OPT_STRING:
    case ZB_OPT_PATH:
        zb_free(v->s);
        break;
    case ZB_OPT_PATHS:
    case ZB_OPT_WORDS:
        for (size_t i = 0; i < v->strings.n; i++) {
            zb_free(v->strings.item[i]);
        }
        zb_free(v->strings.item);
        break;
    case ZB_OPT_INTS:
        zb_free(v->ints.item);
        break;
    case ZB_OPT_DOUBLES:
        zb_free(v->doubles.item);
        break;
    default:
        break;
    }
}

void zb_conf_value_clear(const struct zb_conf_opt *opt, void *field)
{
    union value v;

    memcpy(&v, field, kind_bytes(opt->kind));
    value_release(opt, &v);
    memset(field, 0, kind_bytes(opt->kind));
}

static enum zb_status bad_value(const struct zb_conf_opt *opt)
{
    char range[256];

    zb_conf_range_text(opt, range, sizeof(range));
    return zb_fail(ZB_ECONFIG, "must be %s", range);
}

static enum zb_status parse_double(const struct zb_conf_opt *opt,
                                   const char *text, double *x_out)
{
    char *end;
    double x = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(x) || x < opt->lo ||
        x > opt->hi || (opt->lo_open && x <= opt->lo) ||
        (opt->hi_open && x >= opt->hi)) {
        return bad_value(opt);
    }
    *x_out = x;
    return ZB_OK;
}

/* The factor of a suffix of bytes, 0 for none that is known. */
static int64_t suffix_factor(const char *s)
{
    static const struct {
        char letter;
        int64_t decimal, binary;
    } units[] = {
        {'k', 1000, 1024},
        {'M', 1000000, 1048576},
        {'G', 1000000000, 1073741824},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(units); i++) {
        if (*s == units[i].letter || (*s == 'K' && units[i].letter == 'k')) {
            int is_binary = s[1] == 'i';

            s += is_binary ? 2 : 1;
            if (strcmp(s, "") != 0 && strcmp(s, "B") != 0) {
                return 0;
            }
            return is_binary ? units[i].binary : units[i].decimal;
        }
    }
    return strcmp(s, "") == 0 || strcmp(s, "B") == 0 ? 1 : 0;
}

static enum zb_status parse_i64(const struct zb_conf_opt *opt, const char *text,
                                int64_t *x_out)
{
    char *end;
    long long x;
    int64_t factor = 1, product;

    errno = 0;
    x = strtoll(text, &end, 10);
    if (end == text || errno != 0) {
        return bad_value(opt);
    }
    if (opt->kind == ZB_OPT_BYTES) {
        factor = suffix_factor(end + strspn(end, " "));
    } else if (*end != '\0') {
        factor = 0;
    }
    if (factor == 0 || __builtin_mul_overflow(x, factor, &product) ||
        (double)product < opt->lo || (double)product > opt->hi) {
        return bad_value(opt);
    }
    *x_out = product;
    return ZB_OK;
}

static enum zb_status parse_int(const struct zb_conf_opt *opt, const char *text,
                                int *x_out)
{
    int64_t x;

    ZB_TRY(parse_i64(opt, text, &x));
    if (x < INT_MIN || x > INT_MAX) {
        return bad_value(opt);
    }
    *x_out = (int)x;
    return ZB_OK;
}

static enum zb_status parse_u64(const struct zb_conf_opt *opt, const char *text,
                                uint64_t *x_out)
{
    char *end;
    unsigned long long x;

    errno = 0;
    x = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 ||
        strchr(text, '-') != NULL) {
        return bad_value(opt);
    }
    *x_out = x;
    return ZB_OK;
}

/* Which of the words for "no" a text is, also for keys that count. */
static int is_nothing(const char *text)
{
    static const char *const words[] = {"never", "none", "false", "off", "no"};

    for (size_t i = 0; i < ZB_COUNT_OF(words); i++) {
        if (strcmp(text, words[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static enum zb_status parse_bool(const struct zb_conf_opt *opt,
                                 const char *text, int *x_out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};

    for (size_t i = 0; i < ZB_COUNT_OF(yes); i++) {
        if (strcmp(text, yes[i]) == 0) {
            *x_out = 1;
            return ZB_OK;
        }
    }
    if (!is_nothing(text) && strcmp(text, "0") != 0) {
        return bad_value(opt);
    }
    *x_out = 0;
    return ZB_OK;
}

static enum zb_status parse_enum(const struct zb_conf_opt *opt,
                                 const char *text, int *x_out)
{
    const char *names[32], *nearest;
    char range[256];
    size_t n = 0;

    for (const struct zb_conf_choice *c = opt->choices; c->name != NULL; c++) {
        if (strcmp(c->name, text) == 0) {
            *x_out = c->value;
            return ZB_OK;
        }
        names[n++] = c->name;
    }
    nearest = zb_conf_nearest(text, names, n);
    zb_conf_range_text(opt, range, sizeof(range));
    return zb_fail(ZB_ECONFIG, "must be %s%s%s%s", range,
                   nearest != NULL ? " (did you mean " : "",
                   nearest != NULL ? nearest : "", nearest != NULL ? "?)" : "");
}

static enum zb_status parse_mem(const struct zb_conf_opt *opt, const char *text,
                                struct zb_conf_mem *mem_out)
{
    struct zb_conf_mem mem = {0};
    size_t len = strlen(text);
    enum zb_status st;

    if (len == 0 || is_nothing(text)) {
        *mem_out = mem;
        return ZB_OK;
    }
    mem.is_set = 1;
    mem.is_multiple = text[len - 1] == 'x';
    if (mem.is_multiple) {
        char *number = zb_strndup(text, len - 1);

        if (number == NULL) {
            return ZB_ENOMEM;
        }
        st = parse_double(opt, number, &mem.value);
        zb_free(number);
    } else {
        struct zb_conf_opt bytes = *opt;
        int64_t x = 0;

        bytes.kind = ZB_OPT_BYTES;
        bytes.lo = 1;
        bytes.hi = 1e18;
        st = parse_i64(&bytes, text, &x);
        mem.value = (double)x;
        if (st == ZB_ECONFIG) {
            st = bad_value(opt);
        }
    }
    ZB_TRY(st);
    *mem_out = mem;
    return ZB_OK;
}

/* The entry of a list that starts at *pos, as a string of its own without
 * blanks around; *pos goes behind its comma, or to NULL after the last one. */
static enum zb_status list_entry(const char **pos, char **entry_out)
{
    const char *s = *pos + strspn(*pos, " \t");
    const char *comma = strchr(s, ',');
    size_t len = comma == NULL ? strlen(s) : (size_t)(comma - s);

    while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\t')) {
        len--;
    }
    if (len == 0) {
        return zb_fail(ZB_ECONFIG, "has an empty entry");
    }
    *entry_out = zb_strndup(s, len);
    if (*entry_out == NULL) {
        return ZB_ENOMEM;
    }
    *pos = comma == NULL ? NULL : comma + 1;
    return ZB_OK;
}

/* Append one entry to the list in `v`; takes `entry`. */
static enum zb_status list_append(const struct zb_conf_opt *opt, char *entry,
                                  union value *v)
{
    enum zb_status st = ZB_OK;

    switch (opt->kind) {
    case ZB_OPT_PATHS:
    case ZB_OPT_WORDS:
        v->strings.item[v->strings.n++] = entry;
        return ZB_OK;
    case ZB_OPT_INTS:
        st = parse_int(opt, entry, &v->ints.item[v->ints.n]);
        v->ints.n += st == ZB_OK;
        break;
    default:
        st = parse_double(opt, entry, &v->doubles.item[v->doubles.n]);
        v->doubles.n += st == ZB_OK;
        break;
    }
    zb_free(entry);
    return st;
}

static int is_strings(const struct zb_conf_opt *opt)
{
    return opt->kind == ZB_OPT_PATHS || opt->kind == ZB_OPT_WORDS;
}

static enum zb_status parse_list(const struct zb_conf_opt *opt,
                                 const char *text, union value *v)
{
    const char *pos = text;
    size_t n = 1, size;
    void *item;

    memset(v, 0, sizeof(*v));
    if (text[0] == '\0' || is_nothing(text)) {
        return ZB_OK;
    }
    for (const char *p = text; *p != '\0'; p++) {
        n += *p == ',';
    }
    if (n > LIST_MAX) {
        return zb_fail(ZB_ECONFIG, "has %zu entries, more than %d", n,
                       LIST_MAX);
    }
    size = is_strings(opt)            ? sizeof(char *)
           : opt->kind == ZB_OPT_INTS ? sizeof(int)
                                      : sizeof(double);
    item = zb_alloc_array(n, size);
    if (item == NULL) {
        return ZB_ENOMEM;
    }
    if (is_strings(opt)) {
        v->strings.item = item;
    } else if (opt->kind == ZB_OPT_INTS) {
        v->ints.item = item;
    } else {
        v->doubles.item = item;
    }
    while (pos != NULL) {
        char *entry = NULL;

        ZB_TRY(list_entry(&pos, &entry));
        ZB_TRY(list_append(opt, entry, v));
    }
    return ZB_OK;
}

static enum zb_status parse_string(const struct zb_conf_opt *opt,
                                   const char *text, char **s_out)
{
    *s_out = NULL;
    if (text[0] == '\0' || (opt->kind == ZB_OPT_PATH && is_nothing(text))) {
        return ZB_OK;
    }
    *s_out = zb_strdup(text);
    return *s_out == NULL ? ZB_ENOMEM : ZB_OK;
}

static enum zb_status parse(const struct zb_conf_opt *opt, const char *text,
                            union value *v)
{
    if (opt->word_value != 0 && strcmp(text, opt->word) == 0) {
        v->i64 = opt->word_value; /* the only kind that has one is I64 */
        return ZB_OK;
    }
    if (opt->word != NULL && opt->kind != ZB_OPT_PATH &&
        (strcmp(text, opt->word) == 0 || is_nothing(text))) {
        text = "0";
    }
    switch (opt->kind) {
    case ZB_OPT_INT:
        return parse_int(opt, text, &v->i);
    case ZB_OPT_I64:
    case ZB_OPT_BYTES:
        return parse_i64(opt, text, &v->i64);
    case ZB_OPT_U64:
        return parse_u64(opt, text, &v->u64);
    case ZB_OPT_DOUBLE:
        if (text[0] == '\0' && opt->def[0] == '\0') {
            v->d = -1;
            return ZB_OK;
        }
        return parse_double(opt, text, &v->d);
    case ZB_OPT_BOOL:
        return parse_bool(opt, text, &v->i);
    case ZB_OPT_ENUM:
        return parse_enum(opt, text, &v->i);
    case ZB_OPT_STRING:
    case ZB_OPT_PATH:
        return parse_string(opt, text, &v->s);
    case ZB_OPT_PATHS:
    case ZB_OPT_WORDS:
    case ZB_OPT_INTS:
    case ZB_OPT_DOUBLES:
        return parse_list(opt, text, v);
    case ZB_OPT_MEM:
        return parse_mem(opt, text, &v->mem);
    }
    return ZB_OK;
}

enum zb_status zb_conf_value_set(const struct zb_conf_opt *opt,
                                 const char *text, void *field)
{
    union value v;
    enum zb_status st;

    memset(&v, 0, sizeof(v));
    st = parse(opt, text, &v);
    if (st != ZB_OK) {
        value_release(opt, &v);
        return st;
    }
    zb_conf_value_clear(opt, field);
    memcpy(field, &v, kind_bytes(opt->kind));
    return ZB_OK;
}

int zb_conf_value_is(const struct zb_conf_opt *opt, const void *field,
                     const char *text)
{
    union value have, want;
    int is_equal;

    memset(&have, 0, sizeof(have));
    memset(&want, 0, sizeof(want));
    memcpy(&have, field, kind_bytes(opt->kind));
    switch (opt->kind) {
    case ZB_OPT_PATH:
        return text[0] == '\0' && have.s == NULL;
    case ZB_OPT_STRING:
        return strcmp(text, have.s != NULL ? have.s : "") == 0;
    case ZB_OPT_PATHS:
    case ZB_OPT_WORDS:
        return text[0] == '\0' && have.strings.n == 0;
    case ZB_OPT_INTS:
        return text[0] == '\0' && have.ints.n == 0;
    case ZB_OPT_DOUBLES:
        return text[0] == '\0' && have.doubles.n == 0;
    case ZB_OPT_MEM:
        return text[0] == '\0' && !have.mem.is_set;
    case ZB_OPT_DOUBLE:
        return parse(opt, text, &want) == ZB_OK && have.d == want.d;
    default:
        is_equal = parse(opt, text, &want) == ZB_OK;
        return is_equal && memcmp(&have, &want, kind_bytes(opt->kind)) == 0;
    }
}

const char *zb_conf_value_missing(const struct zb_conf_opt *opt,
                                  const void *field)
{
    if (opt->kind == ZB_OPT_ENUM) {
        int value;

        memcpy(&value, field, sizeof(value));
        for (const struct zb_conf_choice *c = opt->choices; c->name != NULL;
             c++) {
            if (c->value == value) {
                return c->missing;
            }
        }
    }
    if (opt->missing == NULL || zb_conf_value_is(opt, field, opt->idle)) {
        return NULL;
    }
    return opt->missing;
}

int zb_conf_default_is_missing(const struct zb_conf_opt *opt)
{
    union value v;

    if (opt->missing == NULL || strcmp(opt->def, opt->idle) == 0) {
        return 0;
    }
    memset(&v, 0, sizeof(v));
    ZB_BUG_IF(parse(opt, opt->def, &v) != ZB_OK, "default of %s", opt->name);
    return !zb_conf_value_is(opt, &v, opt->idle);
}
