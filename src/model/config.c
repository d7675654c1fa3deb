/* SPDX-License-Identifier: MIT
 *
 * Configs: keys from a file or written by hand, checked against the table of
 * their family.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/conf.h"
#include "zb/mem.h"

/* Keys that say nothing about what is computed. */
static const char *const ignored_keys[] = {
    "architectures",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "keys_to_ignore_at_inference",
    "label2id",
    "language",
    "max_length",
    "model_max_length",
    "model_type",
    "n_ctx",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_cache",
};

/* ---- where a key stands -------------------------------------------------- */

/* Line of `"name" :` in the text of a file, 0 when it is not found. */
static int line_in_text(const char *text, const char *name)
{
    size_t len = strlen(name);
    int line = 1;

    for (const char *p = text; *p != '\0'; p++) {
        line += *p == '\n';
        if (*p == '"' && strncmp(p + 1, name, len) == 0 &&
            p[len + 1] == '"') {
            const char *q = p + len + 2;

            q += strspn(q, " \t\r\n");
            if (*q == ':') {
                return line;
            }
        }
    }
    return 0;
}

/* The key that was written by hand, or NULL. */
static const struct zb_model_key *key_of(const struct zb_config *c,
                                         const char *name)
{
    for (size_t i = 0; i < c->n_keys; i++) {
        if (strcmp(c->keys[i].name, name) == 0) {
            return &c->keys[i];
        }
    }
    return NULL;
}

/* The name that was used for a key: its own or its alias. */
static const char *given_name(const struct zb_config *c,
                              const struct zb_key_row *row)
{
    if (row->alias != NULL && json_object_get(c->given, row->name) == NULL &&
        json_object_get(c->given, row->alias) != NULL) {
        return row->alias;
    }
    return row->name;
}

static const struct zb_key_row *find_row(const struct zb_config *c,
                                         const char *name)
{
    for (size_t i = 0; c->family != NULL && i < c->family->n_keys; i++) {
        const struct zb_key_row *row = &c->family->keys[i];

        if (strcmp(row->name, name) == 0 ||
            (row->alias != NULL && strcmp(row->alias, name) == 0)) {
            return row;
        }
    }
    return NULL;
}

enum zb_status zb_config_fail(const struct zb_config *c, const char *name,
                              const char *fmt, ...)
{
    const struct zb_key_row *row = find_row(c, name);
    const char *shown = row != NULL ? given_name(c, row) : name;
    const struct zb_model_key *key = key_of(c, shown);
    const char *where = key != NULL ? c->keys_where : c->where;
    int line = key != NULL       ? key->line
               : c->text != NULL ? line_in_text(c->text, shown)
                                 : 0;
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (line == ZB_MODEL_LINE_SET) {
        return zb_fail(ZB_ECONFIG, "--set: key '%s': %s", shown, text);
    }
    if (line > 0) {
        return zb_fail(ZB_ECONFIG, "%s:%d: key '%s': %s", where, line, shown,
                       text);
    }
    return zb_fail(ZB_ECONFIG, "%s: key '%s': %s", where, shown, text);
}

/* ---- values -------------------------------------------------------------- */

static const json_t *value_of(const struct zb_config *c, const char *name)
{
    const json_t *v = json_object_get(c->value, name);

    ZB_BUG_IF(v == NULL, "%s has no key '%s'", c->family->name, name);
    return v;
}

int64_t zb_config_int(const struct zb_config *c, const char *name)
{
    return (int64_t)json_integer_value(value_of(c, name));
}

double zb_config_real(const struct zb_config *c, const char *name)
{
    return json_number_value(value_of(c, name));
}

int zb_config_bool(const struct zb_config *c, const char *name)
{
    return json_is_true(value_of(c, name));
}

const char *zb_config_text(const struct zb_config *c, const char *name)
{
    return json_string_value(value_of(c, name));
}

const json_t *zb_config_object(const struct zb_config *c, const char *name)
{
    const json_t *v = value_of(c, name);

    return json_is_null(v) ? NULL : v;
}

int zb_config_is_null(const struct zb_config *c, const char *name)
{
    return json_is_null(value_of(c, name));
}

int64_t zb_config_int_or(const struct zb_config *c, const char *name,
                         int64_t def)
{
    return zb_config_is_null(c, name) ? def : zb_config_int(c, name);
}

enum zb_status zb_config_padding(const struct zb_config *c, int64_t vocab,
                                 int64_t *row_out)
{
    int64_t row = zb_config_int_or(c, "pad_token_id", -1);

    if (zb_config_is_null(c, "pad_token_id")) {
        *row_out = -1;
        return ZB_OK;
    }
    row += row < 0 ? vocab : 0;
    if (row < 0 || row >= vocab) {
        return zb_config_fail(c, "pad_token_id",
                              "is not in the vocabulary of %lld",
                              (long long)vocab);
    }
    *row_out = row;
    return ZB_OK;
}

enum zb_status zb_config_act(const struct zb_config *c, const char *name,
                             enum zb_act *act_out)
{
    static const struct {
        const char *name;
        enum zb_act act;
    } acts[] = {
        {"relu", ZB_ACT_RELU},
        {"silu", ZB_ACT_SILU},
        {"swish", ZB_ACT_SILU},
        {"gelu", ZB_ACT_GELU_ERF},
        {"gelu_new", ZB_ACT_GELU_TANH},
        {"gelu_pytorch_tanh", ZB_ACT_GELU_TANH},
        {"tanh", ZB_ACT_TANH},
    };
    const char *text = zb_config_text(c, name);

    for (size_t i = 0; i < ZB_COUNT_OF(acts); i++) {
        if (strcmp(acts[i].name, text) == 0) {
            *act_out = acts[i].act;
            return ZB_OK;
        }
    }
    return zb_config_fail(c, name,
                          "activation '%s' is not supported (relu, silu, "
                          "gelu, gelu_new, gelu_pytorch_tanh, tanh)",
                          text);
}

/* ---- checks -------------------------------------------------------------- */

static enum zb_status wrong_type(const struct zb_config *c,
                                 const struct zb_key_row *row,
                                 const json_t *v)
{
    static const char *const wanted[] = {
        [ZB_KEY_INT] = "a whole number",
        [ZB_KEY_REAL] = "a number",
        [ZB_KEY_BOOL] = "true or false",
        [ZB_KEY_TEXT] = "a word",
        [ZB_KEY_OBJECT] = "an object in braces",
        [ZB_KEY_LIST] = "a list in brackets",
    };
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    enum zb_status st =
        zb_config_fail(c, row->name, "must be %s%s, not %.80s",
                       wanted[row->type],
                       row->flags & ZB_KEY_NULLABLE ? " or null" : "",
                       text != NULL ? text : "this");

    free(text);
    return st;
}

static enum zb_status check_number(const struct zb_config *c,
                                   const struct zb_key_row *row, double x)
{
    if (x >= row->lo && x <= row->hi) {
        return ZB_OK;
    }
    return zb_config_fail(c, row->name, "%.10g is not between %.10g and %.10g",
                          x, row->lo, row->hi);
}

/* The value of a key as its type wants it (a whole real becomes an integer). */
static enum zb_status convert(const struct zb_config *c,
                              const struct zb_key_row *row, json_t *v,
                              json_t **out)
{
    int is_right = 0;

    *out = json_incref(v);
    if (json_is_null(v) && (row->flags & ZB_KEY_NULLABLE)) {
        return ZB_OK;
    }
    if (row->type == ZB_KEY_INT && json_is_real(v) &&
        fabs(json_real_value(v)) < 1e15 &&
        json_real_value(v) == floor(json_real_value(v))) {
        json_decref(*out);
        *out = json_integer((json_int_t)json_real_value(v));
        v = *out;
    }
    switch (row->type) {
    case ZB_KEY_INT:
        is_right = json_is_integer(v);
        break;
    case ZB_KEY_REAL:
        is_right = json_is_number(v);
        break;
    case ZB_KEY_BOOL:
        is_right = json_is_boolean(v);
        break;
    case ZB_KEY_TEXT:
        is_right = json_is_string(v);
        break;
    case ZB_KEY_OBJECT:
        is_right = json_is_object(v);
        break;
    case ZB_KEY_LIST:
        is_right = json_is_array(v);
        break;
    }
    if (!is_right) {
        return wrong_type(c, row, v);
    }
    return json_is_number(v) ? check_number(c, row, json_number_value(v))
                             : ZB_OK;
}

static enum zb_status set_value(struct zb_config *c,
                                const struct zb_key_row *row)
{
    json_t *def = json_loads(row->def, JSON_DECODE_ANY, NULL);
    json_t *v = json_object_get(c->given, given_name(c, row));
    json_t *converted = NULL;
    enum zb_status st = ZB_OK;

    if (def == NULL) {
        return zb_fail(ZB_ENOMEM, "out of host memory (config)");
    }
    if (v != NULL) {
        st = convert(c, row, v, &converted);
        if (st == ZB_OK && (row->flags & ZB_KEY_ONLY) &&
            !json_equal(converted, def)) {
            st = zb_config_fail(c, row->name,
                                "only the value %s is supported", row->def);
        }
    } else {
        converted = json_incref(def);
    }
    json_decref(def);
    if (st == ZB_OK) {
        st = json_object_set(c->value, row->name, converted) == 0
                 ? ZB_OK
                 : zb_fail(ZB_ENOMEM, "out of host memory (config)");
    }
    json_decref(converted);
    return st;
}

static int is_ignored(const char *name)
{
    for (size_t i = 0; i < ZB_COUNT_OF(ignored_keys); i++) {
        if (strcmp(ignored_keys[i], name) == 0) {
            return 1;
        }
    }
    return name[0] == '_';
}

static enum zb_status unknown_key(const struct zb_config *c, const char *name)
{
    const char *names[128], *near;
    size_t n = 0;

    for (size_t i = 0; i < c->family->n_keys && n + 1 < 128; i++) {
        names[n++] = c->family->keys[i].name;
        if (c->family->keys[i].alias != NULL) {
            names[n++] = c->family->keys[i].alias;
        }
    }
    near = zb_conf_nearest(name, names, n);
    return zb_config_fail(c, name, "not known for %s%s%s%s", c->family->name,
                          near != NULL ? " (did you mean '" : "",
                          near != NULL ? near : "", near != NULL ? "'?)" : "");
}

/* A key of a file that asks for nothing may be anything. */
static int asks_for_nothing(const struct zb_config *c, const char *name,
                            const json_t *v)
{
    return c->text != NULL && key_of(c, name) == NULL &&
           (json_is_null(v) || json_is_false(v));
}

static enum zb_status check_given(const struct zb_config *c)
{
    const char *name;
    json_t *v;

    json_object_foreach(c->given, name, v) {
        const struct zb_key_row *row = find_row(c, name);

        if (row == NULL && !is_ignored(name) && !asks_for_nothing(c, name, v)) {
            return unknown_key(c, name);
        }
        if (row != NULL && row->alias != NULL &&
            strcmp(row->alias, name) == 0 &&
            json_object_get(c->given, row->name) != NULL) {
            return zb_config_fail(c, row->name, "given twice, also as '%s'",
                                  row->alias);
        }
    }
    return ZB_OK;
}

static enum zb_status find_family(struct zb_config *c)
{
    const json_t *type = json_object_get(c->given, "model_type");
    const char *name = json_string_value(type), *list[32], *near;
    char all[256] = "";
    size_t n = 0;

    if (name != NULL) {
        c->family = zb_family_find(name);
    }
    if (c->family != NULL) {
        return ZB_OK;
    }
    while (n < ZB_COUNT_OF(list) && zb_model_family(n) != NULL) {
        list[n] = zb_model_family(n);
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s",
                 n > 0 ? ", " : "", list[n]);
        n++;
    }
    if (name == NULL) {
        return zb_fail(ZB_ECONFIG, "%s: key 'model_type' is missing", c->where);
    }
    near = zb_conf_nearest(name, list, n);
    return zb_config_fail(
        c, "model_type", "'%s' is not supported%s%s%s; there are %s", name,
        near != NULL ? " (did you mean '" : "", near != NULL ? near : "",
        near != NULL ? "'?)" : "", all);
}

/* Of a family with several classes the one that `architectures` begins with;
 * others have no choice. */
static enum zb_status find_class(struct zb_config *c)
{
    const struct zb_family *family = c->family;
    const json_t *given = json_object_get(c->given, "architectures");
    const char *name;

    c->architecture = family->architecture;
    if (family->more_classes[0] == NULL || given == NULL ||
        json_is_null(given)) {
        return ZB_OK;
    }
    name = json_string_value(
        json_is_array(given) ? json_array_get(given, 0) : given);
    if (name != NULL && strcmp(name, family->architecture) == 0) {
        return ZB_OK;
    }
    for (int i = 0; name != NULL && i < ZB_FAMILY_MAX_CLASSES; i++) {
        if (family->more_classes[i] != NULL &&
            strcmp(name, family->more_classes[i]) == 0) {
            c->architecture = family->more_classes[i];
            return ZB_OK;
        }
    }
    return zb_config_fail(c, "architectures",
                          "%s%.80s%s is not supported; there are %s, %s%s%s",
                          name != NULL ? "'" : "", name != NULL ? name : "this",
                          name != NULL ? "'" : "", family->architecture,
                          family->more_classes[0],
                          family->more_classes[1] != NULL ? ", " : "",
                          family->more_classes[1] != NULL
                              ? family->more_classes[1]
                              : "");
}

/* A value written by hand: JSON, or a bare word. */
static json_t *parse_value(const char *text)
{
    json_t *v =
        json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);

    return v != NULL ? v : json_string(text);
}

static enum zb_status take_key(struct zb_config *c,
                               const struct zb_model_key *key)
{
    json_t *v = parse_value(key->value);

    if (v == NULL) {
        return zb_config_fail(c, key->name, "is not valid UTF-8");
    }
    if (json_object_set_new(c->given, key->name, v) != 0) {
        return zb_fail(ZB_ECONFIG, "%s: a key is not valid UTF-8",
                       c->keys_where);
    }
    return ZB_OK;
}

/* Keys written beside a file count instead of its own, whatever name the file
 * uses. */
static enum zb_status override(struct zb_config *c)
{
    for (size_t i = 0; c->text != NULL && i < c->n_keys; i++) {
        const struct zb_key_row *row = find_row(c, c->keys[i].name);

        if (row != NULL) {
            json_object_del(c->given, row->name);
        }
        if (row != NULL && row->alias != NULL) {
            json_object_del(c->given, row->alias);
        }
        ZB_TRY(take_key(c, &c->keys[i]));
    }
    return ZB_OK;
}

static enum zb_status check(struct zb_config *c)
{
    ZB_TRY(find_family(c));
    ZB_TRY(override(c));
    ZB_TRY(find_class(c));
    ZB_TRY(check_given(c));
    c->value = json_object();
    if (c->value == NULL) {
        return zb_fail(ZB_ENOMEM, "out of host memory (config)");
    }
    for (size_t i = 0; i < c->family->n_keys; i++) {
        ZB_TRY(set_value(c, &c->family->keys[i]));
    }
    return ZB_OK;
}

/* ---- reading ------------------------------------------------------------- */

void zb_config_release(struct zb_config *c)
{
    json_decref(c->given);
    json_decref(c->value);
    c->given = NULL;
    c->value = NULL;
}

enum zb_status zb_config_read_json(const char *text, const char *where,
                                   const struct zb_model_opts *o,
                                   struct zb_config *c)
{
    json_error_t error;
    enum zb_status st;

    *c = (struct zb_config){.where = where,
                            .text = text,
                            .keys = o->keys,
                            .n_keys = o->n_keys,
                            .keys_where = o->keys_where};
    c->given = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (c->given == NULL) {
        return zb_fail(ZB_ECONFIG, "%s:%d: %s", where, error.line, error.text);
    }
    if (!json_is_object(c->given)) {
        st = zb_fail(ZB_ECONFIG, "%s: not a JSON object", where);
    } else {
        st = check(c);
    }
    if (st != ZB_OK) {
        zb_config_release(c);
    }
    return st;
}

static enum zb_status collect(struct zb_config *c)
{
    c->given = json_object();
    for (size_t i = 0; i < c->n_keys; i++) {
        if (json_object_get(c->given, c->keys[i].name) != NULL) {
            return zb_config_fail(c, c->keys[i].name, "given twice");
        }
        ZB_TRY(take_key(c, &c->keys[i]));
    }
    return ZB_OK;
}

enum zb_status zb_config_read_keys(const struct zb_model_key *keys, size_t n,
                                   const char *where, struct zb_config *c)
{
    enum zb_status st;

    *c = (struct zb_config){
        .where = where, .keys = keys, .n_keys = n, .keys_where = where};
    st = collect(c);
    if (st == ZB_OK) {
        st = check(c);
    }
    if (st != ZB_OK) {
        zb_config_release(c);
    }
    return st;
}
