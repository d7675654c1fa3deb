/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "conf/conf_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COMMENT_WIDTH 78

/* The shortest form that is read back as the same number. */
static void number_text(double x, char *text, size_t size)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, x);
        if (strtod(text, NULL) == x) {
            return;
        }
    }
}

static void append(char *text, size_t size, const char *more)
{
    size_t len = strlen(text);

    snprintf(text + len, size - len, "%s", more);
}

static void choices_text(const struct zb_conf_opt *opt, char *text, size_t size)
{
    append(text, size, "one of");
    for (const struct zb_conf_choice *c = opt->choices; c->name != NULL; c++) {
        append(text, size, c == opt->choices ? " " : ", ");
        append(text, size, c->name);
        if (c->missing != NULL) {
            append(text, size, " (not yet)");
        }
    }
}

/* An end of a range: whole numbers in full, as they are accepted. */
static void end_text(const struct zb_conf_opt *opt, double x, char *text,
                     size_t size)
{
    if (opt->kind == ZB_OPT_DOUBLE || opt->kind == ZB_OPT_DOUBLES) {
        number_text(x, text, size);
    } else {
        snprintf(text, size, "%.0f", x);
    }
}

static void interval_text(const struct zb_conf_opt *opt, const char *what,
                          char *text, size_t size)
{
    char lo[32], hi[32];

    end_text(opt, opt->lo, lo, sizeof(lo));
    end_text(opt, opt->hi, hi, sizeof(hi));
    append(text, size, what);
    append(text, size, opt->lo_open ? " above " : " from ");
    append(text, size, lo);
    append(text, size, opt->hi_open ? " to below " : " to ");
    append(text, size, hi);
}

void zb_conf_range_text(const struct zb_conf_opt *opt, char *text, size_t size)
{
    text[0] = '\0';
    switch (opt->kind) {
    case ZB_OPT_INT:
    case ZB_OPT_I64:
        interval_text(opt, "a whole number", text, size);
        break;
    case ZB_OPT_BYTES:
        interval_text(opt, "a number of bytes", text, size);
        append(text, size, ", k, M, G, Ki, Mi or Gi may follow");
        break;
    case ZB_OPT_U64:
        append(text, size, "a whole number from 0 to 18446744073709551615");
        break;
    case ZB_OPT_DOUBLE:
        interval_text(opt, "a number", text, size);
        break;
    case ZB_OPT_BOOL:
        append(text, size, "true or false");
        break;
    case ZB_OPT_ENUM:
        choices_text(opt, text, size);
        return;
    case ZB_OPT_STRING:
        append(text, size, "a text");
        break;
    case ZB_OPT_PATH:
        append(text, size, "a path");
        break;
    case ZB_OPT_PATHS:
        append(text, size, "paths separated by commas");
        break;
    case ZB_OPT_WORDS:
        append(text, size, "words separated by commas");
        break;
    case ZB_OPT_INTS:
        interval_text(opt, "whole numbers separated by commas, each", text,
                      size);
        break;
    case ZB_OPT_DOUBLES:
        interval_text(opt, "numbers separated by commas, each", text, size);
        break;
    case ZB_OPT_MEM:
        append(text, size, "bytes (as 500M) or a multiple (as 1.5x), above 0");
        break;
    }
    if (opt->word != NULL) {
        append(text, size, ", or ");
        append(text, size, opt->word);
    }
}

int zb_conf_is_writable(const char *value)
{
    size_t len = strlen(value);

    if (len > 0 && (strchr(" \t", value[0]) != NULL || value[0] == ';' ||
                    strchr(" \t", value[len - 1]) != NULL)) {
        return 0;
    }
    for (const char *p = value; *p != '\0'; p++) {
        if (strchr("\n\r\v\f", *p) != NULL ||
            (strchr(" \t", *p) != NULL && p[1] == ';')) {
            return 0;
        }
    }
    return 1;
}

static enum zb_status print_string(const char *s, int is_in_list, FILE *f)
{
    if (!zb_conf_is_writable(s) || (is_in_list && strchr(s, ',') != NULL)) {
        return zb_fail(ZB_ECONFIG, "'%.200s' can not be written in an INI file",
                       s);
    }
    fputs(s, f);
    return ZB_OK;
}

static enum zb_status print_strings(const struct zb_conf_strings *list, FILE *f)
{
    for (size_t i = 0; i < list->n; i++) {
        fputs(i > 0 ? ", " : "", f);
        ZB_TRY(print_string(list->item[i], 1, f));
    }
    return ZB_OK;
}

static void print_double(double x, FILE *f)
{
    char text[64];

    number_text(x, text, sizeof(text));
    fputs(text, f);
}

static void print_numbers(const struct zb_conf_opt *opt, const void *field,
                          FILE *f)
{
    if (opt->kind == ZB_OPT_INTS) {
        const struct zb_conf_ints *list = field;

        for (size_t i = 0; i < list->n; i++) {
            fprintf(f, "%s%d", i > 0 ? ", " : "", list->item[i]);
        }
    } else {
        const struct zb_conf_doubles *list = field;

        for (size_t i = 0; i < list->n; i++) {
            fputs(i > 0 ? ", " : "", f);
            print_double(list->item[i], f);
        }
    }
}

static void print_int64(const struct zb_conf_opt *opt, int64_t x, FILE *f)
{
    if (x == opt->word_value && opt->word != NULL) {
        fputs(opt->word, f);
    } else {
        fprintf(f, "%" PRId64, x);
    }
}

static void print_choice(const struct zb_conf_opt *opt, int value, FILE *f)
{
    for (const struct zb_conf_choice *c = opt->choices; c->name != NULL; c++) {
        if (c->value == value) {
            fputs(c->name, f);
        }
    }
}

static void print_mem(const struct zb_conf_mem *mem, FILE *f)
{
    if (mem->is_set && mem->is_multiple) {
        print_double(mem->value, f);
        fputc('x', f);
    } else if (mem->is_set) {
        fprintf(f, "%.0f", mem->value);
    }
}

enum zb_status zb_conf_value_print(const struct zb_conf_opt *opt,
                                   const void *field, FILE *f)
{
    switch (opt->kind) {
    case ZB_OPT_INT:
        print_int64(opt, *(const int *)field, f);
        break;
    case ZB_OPT_I64:
    case ZB_OPT_BYTES:
        print_int64(opt, *(const int64_t *)field, f);
        break;
    case ZB_OPT_U64:
        fprintf(f, "%" PRIu64, *(const uint64_t *)field);
        break;
    case ZB_OPT_DOUBLE:
        if (*(const double *)field >= 0 || opt->def[0] != '\0') {
            print_double(*(const double *)field, f);
        }
        break;
    case ZB_OPT_BOOL:
        fputs(*(const int *)field ? "true" : "false", f);
        break;
    case ZB_OPT_ENUM:
        print_choice(opt, *(const int *)field, f);
        break;
    case ZB_OPT_STRING:
    case ZB_OPT_PATH:
        if (*(char *const *)field != NULL) {
            return print_string(*(char *const *)field, 0, f);
        }
        break;
    case ZB_OPT_PATHS:
    case ZB_OPT_WORDS:
        return print_strings(field, f);
    case ZB_OPT_INTS:
    case ZB_OPT_DOUBLES:
        print_numbers(opt, field, f);
        break;
    case ZB_OPT_MEM:
        print_mem(field, f);
        break;
    }
    return ZB_OK;
}

/* "; words" lines of at most COMMENT_WIDTH columns. */
static void print_comment(const char *text, FILE *f)
{
    size_t column = 0;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (column > 0 && column + 1 + len > COMMENT_WIDTH) {
            fputc('\n', f);
            column = 0;
        }
        fprintf(f, "%s %.*s", column == 0 ? ";" : "", (int)len, text);
        column += len + (column == 0 ? 2 : 1);
        text += len + strspn(text + len, " ");
    }
    fputc('\n', f);
}

/* A default that names a missing feature and was not overruled. */
static int is_not_yet(const struct zb_conf *conf, const struct zb_conf_opt *opt)
{
    char key[128];

    snprintf(key, sizeof(key), "%s.%s", opt->section, opt->name);
    return zb_conf_default_is_missing(opt) && !zb_conf_is_set(conf, key);
}

static void print_help(const struct zb_conf_opt *opt, FILE *f)
{
    char text[1024] = "", range[512];

    zb_conf_range_text(opt, range, sizeof(range));
    snprintf(text, sizeof(text), "%s Value: %s. Default: %s.%s%s%s", opt->help,
             range, opt->def[0] != '\0' ? opt->def : "unset",
             opt->missing != NULL ? " Not yet: " : "",
             opt->missing != NULL ? opt->missing : "",
             opt->missing != NULL ? "." : "");
    print_comment(text, f);
}

static enum zb_status print_key(const struct zb_conf *conf,
                                const struct zb_conf_opt *opt, FILE *f)
{
    enum zb_status st;

    print_help(opt, f);
    if (is_not_yet(conf, opt)) {
        fprintf(f, "; %s = %s (not yet)\n", opt->name, opt->def);
        return ZB_OK;
    }
    fprintf(f, "%s = ", opt->name);
    st = zb_conf_value_print(opt, zb_conf_field_const(conf, opt), f);
    fputc('\n', f);
    if (st != ZB_OK) {
        return zb_fail_in(st, "%s.%s", opt->section, opt->name);
    }
    return ZB_OK;
}

static enum zb_status print_model_keys(const struct zb_conf *conf, FILE *f)
{
    for (size_t i = 0; i < conf->model.n_kv; i++) {
        const struct zb_conf_kv *kv = &conf->model.kv[i];

        fprintf(f, "%s = %s\n", kv->key, kv->value);
    }
    return ZB_OK;
}

static enum zb_status print_all(const struct zb_conf *conf, FILE *f)
{
    const char *section = "";
    size_t n;
    const struct zb_conf_opt *table = zb_conf_table(&n);

    for (size_t i = 0; i < n; i++) {
        if (strcmp(section, table[i].section) != 0) {
            if (strcmp(section, "model") == 0) {
                ZB_TRY(print_model_keys(conf, f));
            }
            section = table[i].section;
            fprintf(f, "%s[%s]\n", i > 0 ? "\n" : "", section);
        }
        ZB_TRY(print_key(conf, &table[i], f));
    }
    return ZB_OK;
}

static void print_not_yet(const struct zb_conf *conf, FILE *f)
{
    size_t n;
    const struct zb_conf_opt *table = zb_conf_table(&n);

    for (size_t i = 0; i < n; i++) {
        if (is_not_yet(conf, &table[i])) {
            fprintf(f, "%s.%s = %s (not yet)\n", table[i].section,
                    table[i].name, table[i].def);
        }
    }
}

enum zb_status zb_conf_print(const struct zb_conf *conf, FILE *f,
                             enum zb_conf_print_what what)
{
    if (what == ZB_CONF_PRINT_ALL) {
        ZB_TRY(print_all(conf, f));
    } else {
        print_not_yet(conf, f);
    }
    if (fflush(f) != 0 || ferror(f)) {
        return zb_fail(ZB_EIO, "the configuration can not be written");
    }
    return ZB_OK;
}
