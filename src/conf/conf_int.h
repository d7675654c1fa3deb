/* SPDX-License-Identifier: MIT
 *
 * Inside the configuration: the table of keys, values as text, the INI reader.
 *
 * Who does what: conf_table.c has the rows; conf_value.c turns text into a
 * field of struct zb_conf and back; conf_ini.c reads lines; conf.c puts them
 * together; conf_check.c has the rules between keys; conf_print.c prints.
 *
 * Threads: the table is constant; everything else works on its arguments.
 */
#ifndef ZB_CONF_INT_H
#define ZB_CONF_INT_H

#include <stddef.h>
#include <stdio.h>

#include "zb/conf.h"

/* The kind of a key says the type of its field in struct zb_conf. */
enum zb_opt_kind {
    ZB_OPT_INT,     /* int */
    ZB_OPT_I64,     /* int64_t */
    ZB_OPT_U64,     /* uint64_t, any value */
    ZB_OPT_BYTES,   /* int64_t; k, M, G, Ki, Mi, Gi (and a B) may follow */
    ZB_OPT_DOUBLE,  /* double */
    ZB_OPT_BOOL,    /* int */
    ZB_OPT_ENUM,    /* int */
    ZB_OPT_STRING,  /* char * */
    ZB_OPT_PATH,    /* char *; "" or "none" is NULL */
    ZB_OPT_PATHS,   /* struct zb_conf_strings */
    ZB_OPT_WORDS,   /* the same, of any words */
    ZB_OPT_INTS,    /* struct zb_conf_ints */
    ZB_OPT_DOUBLES, /* struct zb_conf_doubles */
    ZB_OPT_MEM      /* struct zb_conf_mem */
};

/* One value of an enumeration; `missing` names the feature it asks for when
 * this version does not have it. A list ends with a NULL name. */
struct zb_conf_choice {
    const char *name;
    int value;
    const char *missing;
};

/* One key. */
struct zb_conf_opt {
    const char *section;
    const char *name;
    enum zb_opt_kind kind;
    size_t offset;   /* of its field in struct zb_conf */
    const char *def; /* default as text; "" is unset */
    const char *help;
    double lo, hi;        /* numbers, each entry of a list: lo <= x <= hi */
    int lo_open, hi_open; /* 1: lo < x, x < hi */
    const char *word;     /* how word_value is written: "never", "auto"; of a
                             path: a value that is none, kept as it is */
    int word_value;       /* 0; of an I64 also a number below the range */
    const struct zb_conf_choice *choices;
    /* The feature that every value but `idle` asks for, when this version does
     * not have it; NULL: all values work. */
    const char *missing;
    const char *idle;
};

/* The table, in the order of printing; a section's keys are together. */
const struct zb_conf_opt *zb_conf_table(size_t *n_out);

/* The row of section.name, or NULL. */
const struct zb_conf_opt *zb_conf_opt_find(const char *section,
                                           const char *name);

/* The field of `opt` in `conf`. */
void *zb_conf_field(struct zb_conf *conf, const struct zb_conf_opt *opt);
const void *zb_conf_field_const(const struct zb_conf *conf,
                                const struct zb_conf_opt *opt);

/* Parse `text` into `field`, whose old value is released. On failure the field
 * is unchanged and the error text says what is wrong with the value only. */
enum zb_status zb_conf_value_set(const struct zb_conf_opt *opt,
                                 const char *text, void *field) ZB_CHECKED;

/* Release what a field owns and zero it. */
void zb_conf_value_clear(const struct zb_conf_opt *opt, void *field);

/* 1 when the field holds what `text` (valid for this key) means. Numbers,
 * enumerations and strings; of lists and paths only "" is compared. */
int zb_conf_value_is(const struct zb_conf_opt *opt, const void *field,
                     const char *text);

/* Write the value as it is written in a file. ZB_ECONFIG when it can not be. */
enum zb_status zb_conf_value_print(const struct zb_conf_opt *opt,
                                   const void *field, FILE *f) ZB_CHECKED;

/* 1 when `value`, put after "key = ", is read back as it is. */
int zb_conf_is_writable(const char *value);

/* The feature the present value asks for and this version does not have, or
 * NULL. */
const char *zb_conf_value_missing(const struct zb_conf_opt *opt,
                                  const void *field);

/* 1 when the default itself asks for a feature this version does not have (such
 * rows are numbers or booleans); the field then holds the idle value. */
int zb_conf_default_is_missing(const struct zb_conf_opt *opt);

/* "a whole number from 1 to 8", "one of adamw, sgd", ...: what a value may be,
 * for messages and comments. Truncated to `size`. */
void zb_conf_range_text(const struct zb_conf_opt *opt, char *text, size_t size);

/* One line of a file: a section header (key NULL) or a key with its value. */
struct zb_ini_entry {
    char *section;
    char *key;
    char *value;
    int line;
};

struct zb_ini {
    size_t n, cap;
    struct zb_ini_entry *entry;
};

/* Read an INI file; `path` names it in messages. Release `ini_out` also after
 * a failure. */
enum zb_status zb_ini_read(const char *path, struct zb_ini *ini_out) ZB_CHECKED;
void zb_ini_release(struct zb_ini *ini);

/* Where a key was set. */
struct zb_conf_place {
    char *key;  /* "section.name" */
    char *text; /* "config.ini:12" or "--set" */
    int line;   /* 0: --set */
};

struct zb_conf_places {
    size_t n, cap;
    struct zb_conf_place *place;
    size_t kv_cap; /* room in model.kv */
};

/* Fill what depends on other keys, then the rules between keys: missing
 * features, ranges against each other, warnings about keys without effect. */
enum zb_status zb_conf_check(struct zb_conf *conf) ZB_CHECKED;

#endif
