/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "conf/conf_int.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

#define KEY_MAX_BYTES 128
#define NAMES_MAX 160

/* Where a value comes from while it is being set. */
struct origin {
    char *text;       /* "config.ini:12" or "--set" */
    int line;         /* 0: --set */
    int may_override; /* a second value replaces the first */
};

void *zb_conf_field(struct zb_conf *conf, const struct zb_conf_opt *opt)
{
    return (char *)conf + opt->offset;
}

const void *zb_conf_field_const(const struct zb_conf *conf,
                                const struct zb_conf_opt *opt)
{
    return (const char *)conf + opt->offset;
}

static const struct zb_conf_place *place_find(const struct zb_conf *conf,
                                              const char *key)
{
    const struct zb_conf_places *places = conf->places;

    for (size_t i = 0; i < places->n; i++) {
        if (strcmp(places->place[i].key, key) == 0) {
            return &places->place[i];
        }
    }
    return NULL;
}

const char *zb_conf_where(const struct zb_conf *conf, const char *key)
{
    const struct zb_conf_place *place = place_find(conf, key);

    return place == NULL ? "default" : place->text;
}

int zb_conf_is_set(const struct zb_conf *conf, const char *key)
{
    return place_find(conf, key) != NULL;
}

/* Note that `key` was set at `from`; a second time replaces the first. */
static enum zb_status place_put(struct zb_conf *conf, const char *key,
                                const struct origin *from)
{
    struct zb_conf_places *places = conf->places;
    struct zb_conf_place *place = NULL;
    char *text;

    for (size_t i = 0; i < places->n && place == NULL; i++) {
        if (strcmp(places->place[i].key, key) == 0) {
            place = &places->place[i];
        }
    }
    text = zb_strdup(from->text);
    if (text == NULL) {
        return ZB_ENOMEM;
    }
    if (place == NULL) {
        char *name = zb_strdup(key);

        if (name == NULL || zb_grow(&places->place, places->n, &places->cap,
                                    sizeof(*place)) != ZB_OK) {
            zb_free(name);
            zb_free(text);
            return ZB_ENOMEM;
        }
        place = &places->place[places->n++];
        place->key = name;
    }
    zb_free(place->text);
    place->text = text;
    place->line = from->line;
    return ZB_OK;
}

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

/* Levenshtein's distance, by rows; both shorter than KEY_MAX_BYTES. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[KEY_MAX_BYTES + 1];
    size_t len_b = strlen(b);

    for (size_t j = 0; j <= len_b; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i + 1;
        for (size_t j = 0; j < len_b; j++) {
            size_t above = row[j + 1];

            row[j + 1] = min3(above + 1, row[j] + 1,
                              diagonal + (tolower((unsigned char)a[i]) !=
                                          tolower((unsigned char)b[j])));
            diagonal = above;
        }
    }
    return row[len_b];
}

const char *zb_conf_nearest(const char *name, const char *const *list, size_t n)
{
    const char *best = NULL;
    size_t len = strlen(name);
    size_t best_distance = (len < 6 ? 1 : len / 3) + 1;

    if (len >= KEY_MAX_BYTES) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        size_t distance;

        if (strlen(list[i]) >= KEY_MAX_BYTES) {
            continue;
        }
        distance = edit_distance(name, list[i]);
        if (distance < best_distance) {
            best = list[i];
            best_distance = distance;
        }
    }
    return best;
}

static enum zb_status unknown(const char *what, const char *name,
                              const char *const *list, size_t n)
{
    const char *nearest = zb_conf_nearest(name, list, n);

    if (nearest != NULL) {
        return zb_fail(ZB_ECONFIG, "unknown %s '%.60s', did you mean '%s'?",
                       what, name, nearest);
    }
    return zb_fail(ZB_ECONFIG, "unknown %s '%.60s'", what, name);
}

/* The names of the sections (section NULL) or of the keys of one. */
static size_t names_of(const char *section, const char **names)
{
    size_t n_rows, n = 0;
    const struct zb_conf_opt *table = zb_conf_table(&n_rows);

    for (size_t i = 0; i < n_rows && n < NAMES_MAX; i++) {
        if (section != NULL && strcmp(section, table[i].section) == 0) {
            names[n++] = table[i].name;
        } else if (section == NULL &&
                   (n == 0 || strcmp(names[n - 1], table[i].section) != 0)) {
            names[n++] = table[i].section;
        }
    }
    return n;
}

static enum zb_status section_check(const char *section)
{
    const char *names[NAMES_MAX];
    size_t n = names_of(NULL, names);

    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], section) == 0) {
            return ZB_OK;
        }
    }
    return unknown("section", section, names, n);
}

static enum zb_status unknown_key(const char *section, const char *key)
{
    const char *names[NAMES_MAX];
    char what[KEY_MAX_BYTES];
    size_t n = names_of(NULL, names);

    for (size_t i = 0; i < n; i++) {
        if (zb_conf_opt_find(names[i], key) != NULL) {
            return zb_fail(ZB_ECONFIG,
                           "unknown key '%s' in [%s]; it is a key of [%s]", key,
                           section, names[i]);
        }
    }
    n = names_of(section, names);
    snprintf(what, sizeof(what), "key in [%s]:", section);
    return unknown(what, key, names, n);
}

/* A key of the family's config.json: kept as it is. */
static enum zb_status model_key_put(struct zb_conf *conf, const char *key,
                                    const char *value,
                                    const struct origin *from)
{
    struct zb_conf_model *model = &conf->model;
    struct zb_conf_kv *kv = NULL;
    char *copy;

    for (const char *p = key; *p != '\0'; p++) {
        if (!isalnum((unsigned char)*p) && *p != '_') {
            return unknown_key("model", key);
        }
    }
    if (value[0] == '\0') {
        return zb_fail(ZB_ECONFIG, "model.%s has no value", key);
    }
    for (size_t i = 0; i < model->n_kv && kv == NULL; i++) {
        kv = strcmp(model->kv[i].key, key) == 0 ? &model->kv[i] : NULL;
    }
    copy = zb_strdup(value);
    if (copy == NULL) {
        return ZB_ENOMEM;
    }
    if (kv == NULL) {
        char *name = zb_strdup(key);
        size_t cap = conf->places->kv_cap;

        if (name == NULL ||
            zb_grow(&model->kv, model->n_kv, &cap, sizeof(*kv)) != ZB_OK) {
            zb_free(name);
            zb_free(copy);
            return ZB_ENOMEM;
        }
        conf->places->kv_cap = cap;
        kv = &model->kv[model->n_kv++];
        kv->key = name;
    }
    zb_free(kv->value);
    kv->value = copy;
    kv->line = from->line;
    return ZB_OK;
}

/* Set one key of the table or, in [model], one of config.json. The error text
 * lacks only the place. */
static enum zb_status key_set(struct zb_conf *conf, const char *section,
                              const char *key, const char *value,
                              const struct origin *from)
{
    const struct zb_conf_opt *opt;
    const struct zb_conf_place *before;
    char full[2 * KEY_MAX_BYTES];
    enum zb_status st;

    ZB_TRY(section_check(section));
    if (strlen(section) >= KEY_MAX_BYTES || strlen(key) >= KEY_MAX_BYTES) {
        return zb_fail(ZB_ECONFIG, "the key '%.60s...' is too long", key);
    }
    snprintf(full, sizeof(full), "%s.%s", section, key);
    opt = zb_conf_opt_find(section, key);
    if (opt == NULL && strcmp(section, "model") != 0) {
        return unknown_key(section, key);
    }
    before = place_find(conf, full);
    if (before != NULL && !from->may_override) {
        return zb_fail(ZB_ECONFIG, "%s is given twice, first at line %d", full,
                       before->line);
    }
    if (opt == NULL) {
        st = model_key_put(conf, key, value, from);
    } else {
        st = zb_conf_value_set(opt, value, zb_conf_field(conf, opt));
        if (st == ZB_ECONFIG && !from->may_override) {
            return zb_fail_in(st, "%s = %.80s", full, value);
        }
    }
    ZB_TRY(st);
    return place_put(conf, full, from);
}

static enum zb_status defaults_set(struct zb_conf *conf)
{
    size_t n;
    const struct zb_conf_opt *table = zb_conf_table(&n);

    for (size_t i = 0; i < n; i++) {
        const char *text = zb_conf_default_is_missing(&table[i]) ? table[i].idle
                                                                 : table[i].def;
        enum zb_status st =
            zb_conf_value_set(&table[i], text, zb_conf_field(conf, &table[i]));

        ZB_BUG_IF(st == ZB_ECONFIG, "default of %s.%s: %s", table[i].section,
                  table[i].name, zb_error_text());
        ZB_TRY(st);
    }
    return ZB_OK;
}

static enum zb_status entry_apply(struct zb_conf *conf,
                                  const struct zb_ini_entry *e)
{
    struct origin from = {.line = e->line};
    enum zb_status st;

    from.text = zb_format("%s:%d", conf->file, e->line);
    if (from.text == NULL) {
        return ZB_ENOMEM;
    }
    st = e->key == NULL ? section_check(e->section)
                        : key_set(conf, e->section, e->key, e->value, &from);
    if (st == ZB_ECONFIG) {
        st = zb_fail_in(st, "%s", from.text);
    }
    zb_free(from.text);
    return st;
}

static enum zb_status file_apply(struct zb_conf *conf, const char *path)
{
    struct zb_ini ini;
    enum zb_status st = zb_ini_read(path, &ini);

    for (size_t i = 0; st == ZB_OK && i < ini.n; i++) {
        st = entry_apply(conf, &ini.entry[i]);
    }
    zb_ini_release(&ini);
    return st;
}

/* Cut blanks at both ends, in place. */
static char *strip(char *s)
{
    size_t len;

    s += strspn(s, " \t");
    len = strlen(s);
    while (len > 0 && strchr(" \t", s[len - 1]) != NULL) {
        s[--len] = '\0';
    }
    return s;
}

/* `text` is a copy that may be cut into its parts. */
static enum zb_status override_split_set(struct zb_conf *conf, char *text)
{
    struct origin from = {.text = "--set", .may_override = 1};
    char *equals = strchr(text, '=');
    char *dot = strchr(text, '.');
    char *value;

    if (equals == NULL || dot == NULL || dot > equals) {
        return zb_fail(ZB_ECONFIG, "expected SECTION.KEY=VALUE");
    }
    *equals = '\0';
    *dot = '\0';
    value = strip(equals + 1);
    if (!zb_conf_is_writable(value)) {
        return zb_fail(ZB_ECONFIG,
                       "a value has no line ends and no ';' after a blank");
    }
    return key_set(conf, strip(text), strip(dot + 1), value, &from);
}

static enum zb_status override_apply(struct zb_conf *conf, const char *text)
{
    char *copy = zb_strdup(text);
    enum zb_status st;

    if (copy == NULL) {
        return ZB_ENOMEM;
    }
    st = override_split_set(conf, copy);
    zb_free(copy);
    return st == ZB_ECONFIG ? zb_fail_in(st, "--set %.100s", text) : st;
}

/* Put `base` before a relative *path, which is owned. */
static enum zb_status path_resolve(const char *base, char **path)
{
    char *joined;

    if (*path == NULL || (*path)[0] == '/' || strcmp(base, ".") == 0) {
        return ZB_OK;
    }
    if (strcmp(*path, ".") == 0) {
        joined = zb_strdup(base);
    } else {
        joined = zb_format("%s/%s", strcmp(base, "/") == 0 ? "" : base, *path);
    }
    if (joined == NULL) {
        return ZB_ENOMEM;
    }
    zb_free(*path);
    *path = joined;
    return ZB_OK;
}

/* The paths of one row; `base` is the folder of the file. */
static enum zb_status row_resolve(struct zb_conf *conf,
                                  const struct zb_conf_opt *opt,
                                  const char *base)
{
    void *field = zb_conf_field(conf, opt);

    if (strcmp(opt->section, "output") == 0 && strcmp(opt->name, "dir") != 0) {
        base = conf->output.dir;
    }
    if (opt->kind == ZB_OPT_PATH) {
        const char *path = *(char *const *)field;
        int is_word = path != NULL && opt->word != NULL &&
                      strcmp(path, opt->word) == 0;

        return is_word ? ZB_OK : path_resolve(base, field);
    }
    if (opt->kind == ZB_OPT_PATHS) {
        struct zb_conf_strings *list = field;

        for (size_t i = 0; i < list->n; i++) {
            ZB_TRY(path_resolve(base, &list->item[i]));
        }
    }
    return ZB_OK;
}

/* output.dir's row comes before those that are relative to it. */
static enum zb_status paths_resolve(struct zb_conf *conf)
{
    char base[PATH_MAX] = ".";
    size_t n;
    const struct zb_conf_opt *table = zb_conf_table(&n);

    if (conf->output.dir == NULL) {
        ZB_TRY(zb_conf_value_set(zb_conf_opt_find("output", "dir"), ".",
                                 &conf->output.dir));
    }
    /* A pipe has no folder: the working directory it is. */
    if (conf->file != NULL && realpath(conf->file, base) != NULL) {
        char *slash = strrchr(base, '/');

        slash[slash == base] = '\0';
    }
    for (size_t i = 0; i < n; i++) {
        ZB_TRY(row_resolve(conf, &table[i], base));
    }
    return ZB_OK;
}

static enum zb_status load(struct zb_conf *conf, const char *path,
                           const char *const *overrides, size_t n)
{
    conf->places = zb_alloc(sizeof(*conf->places));
    if (conf->places == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(defaults_set(conf));
    if (path != NULL) {
        conf->file = zb_strdup(path);
        if (conf->file == NULL) {
            return ZB_ENOMEM;
        }
        ZB_TRY(file_apply(conf, path));
    }
    for (size_t i = 0; i < n; i++) {
        ZB_TRY(override_apply(conf, overrides[i]));
    }
    ZB_TRY(zb_conf_check(conf));
    return paths_resolve(conf);
}

enum zb_status zb_conf_load(const char *path, const char *const *overrides,
                            size_t n, struct zb_conf **conf_out)
{
    struct zb_conf *conf = zb_alloc(sizeof(*conf));
    enum zb_status st;

    if (conf == NULL) {
        return ZB_ENOMEM;
    }
    st = load(conf, path, overrides, n);
    if (st != ZB_OK) {
        zb_conf_free(conf);
        return st;
    }
    *conf_out = conf;
    return ZB_OK;
}

static void places_free(struct zb_conf_places *places)
{
    for (size_t i = 0; places != NULL && i < places->n; i++) {
        zb_free(places->place[i].key);
        zb_free(places->place[i].text);
    }
    if (places != NULL) {
        zb_free(places->place);
    }
    zb_free(places);
}

void zb_conf_free(struct zb_conf *conf)
{
    size_t n;
    const struct zb_conf_opt *table = zb_conf_table(&n);

    if (conf == NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        zb_conf_value_clear(&table[i], zb_conf_field(conf, &table[i]));
    }
    for (size_t i = 0; i < conf->model.n_kv; i++) {
        zb_free(conf->model.kv[i].key);
        zb_free(conf->model.kv[i].value);
    }
    zb_free(conf->model.kv);
    places_free(conf->places);
    zb_free(conf->file);
    zb_free(conf);
}
