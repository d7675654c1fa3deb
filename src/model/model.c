/* SPDX-License-Identifier: MIT
 *
 * Models: a config, and the graph its family builds.
 */
#include "config.h"
#include "model/model_int.h"

#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

struct zb_model {
    struct zb_graph *g;
    char *type;
    char *config_json;
    char *adapter_json; /* NULL: no adapters */
    int n_before, n_blocks;
    int64_t vocab_size;
    int is_causal;
    size_t n_ends;
    int32_t *end; /* tokens that end a text */
};

/* ---- models -------------------------------------------------------------- */

void zb_model_free(struct zb_model *m)
{
    if (m == NULL) {
        return;
    }
    zb_graph_free(m->g);
    zb_free(m->type);
    zb_free(m->config_json);
    zb_free(m->adapter_json);
    zb_free(m->end);
    zb_free(m);
}

/* The text of a JSON value, which it releases; NULL without memory. */
static char *text_of(json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_SORT_KEYS |
                                       JSON_REAL_PRECISION(17));
    char *copy = text != NULL ? zb_strdup(text) : NULL;

    json_decref(value);
    free(text);
    if (copy == NULL) {
        zb_fail(ZB_ENOMEM, "out of host memory (config)");
    }
    return copy;
}

/* Every key with its value, and the keys that were ignored as they were given,
 * so that a checkpoint's config.json says the same to others. */
static char *config_text(const struct zb_config *c)
{
    json_t *all = json_object(), *v;
    const char *name;

    json_object_set_new(all, "architectures",
                        json_pack("[s]", c->architecture));
    json_object_foreach(c->given, name, v) {
        if (json_object_get(all, name) == NULL && !json_is_null(v)) {
            json_object_set(all, name, v);
        }
    }
    json_object_foreach(c->value, name, v) {
        json_object_set(all, name, v);
    }
    for (size_t i = 0; i < c->family->n_keys; i++) {
        const struct zb_key_row *row = &c->family->keys[i];

        if (row->alias != NULL) {
            json_object_del(all, row->alias);
        }
        if (json_is_null(json_object_get(all, row->name)) &&
            (row->type >= ZB_KEY_OBJECT || strcmp(row->def, "null") == 0)) {
            json_object_del(all, row->name);
        }
    }
    return text_of(all);
}

static enum zb_status check_opts(const struct zb_config *c,
                                 const struct zb_model_opts *o)
{
    if (o->no_head && o->criterion == NULL) {
        return zb_fail(ZB_EINVAL, "%s: a model without head needs a criterion",
                       c->where);
    }
    if (o->max_seq < 0 || o->max_seq > INT32_MAX) {
        return zb_fail(ZB_EINVAL, "%s: a sequence length of %lld", c->where,
                       (long long)o->max_seq);
    }
    return ZB_OK;
}

static const char *std_key(const struct zb_family *family)
{
    return family->std_key != NULL ? family->std_key : "initializer_range";
}

static enum zb_status build_graph(const struct zb_config *c,
                                  const struct zb_model_opts *o,
                                  struct zb_adapt *adapt, struct zb_graph *g)
{
    struct zb_builder b = {
        .g = g,
        .config = c,
        .opts = o,
        .adapt = adapt,
        .std = o->init_std > 0 ? o->init_std
                               : zb_config_real(c, std_key(c->family)),
    };
    enum zb_status st;

    ZB_TRY(check_opts(c, o));
    ZB_TRY(c->family->build(&b));
    st = zb_graph_finish(g);
    return st == ZB_OK ? zb_adapt_check(adapt, c->where)
                       : zb_fail_in(st, "%s", c->where);
}

static enum zb_status wrap(struct zb_graph *g, const char *type,
                           struct zb_model **m_out)
{
    struct zb_model *m = zb_alloc(sizeof(*m));

    if (m == NULL) {
        return ZB_ENOMEM;
    }
    m->type = zb_strdup(type);
    if (m->type == NULL) {
        zb_free(m);
        return ZB_ENOMEM;
    }
    m->g = g;
    *m_out = m;
    return ZB_OK;
}

/* One of them, which must be a token. */
static enum zb_status add_end(const struct zb_config *c, const json_t *v,
                              struct zb_model *m)
{
    json_int_t id = json_integer_value(v);

    if (!json_is_integer(v) || id < INT32_MIN || id > INT32_MAX) {
        return zb_config_fail(c, "eos_token_id",
                              "must be a token, a list of tokens, or null");
    }
    m->end[m->n_ends++] = (int32_t)id;
    return ZB_OK;
}

static enum zb_status take_ends(const struct zb_config *c, struct zb_model *m)
{
    const json_t *v = json_object_get(c->given, "eos_token_id"), *item;
    size_t i;

    if (v == NULL || json_is_null(v)) {
        return ZB_OK;
    }
    m->end = zb_alloc_array(json_array_size(v) + 1, sizeof(*m->end));
    if (m->end == NULL) {
        return ZB_ENOMEM;
    }
    if (!json_is_array(v)) {
        return add_end(c, v, m);
    }
    json_array_foreach(v, i, item) {
        ZB_TRY(add_end(c, item, m));
    }
    return ZB_OK;
}

static enum zb_status make_with(const struct zb_config *c,
                                const struct zb_model_opts *o,
                                struct zb_adapt *adapt, struct zb_model **m_out)
{
    struct zb_graph *g;
    struct zb_model *m;
    enum zb_status st;

    if (o->par != NULL) {
        ZB_TRY(zb_graph_new_parallel(o->par, &g));
    } else {
        ZB_TRY(zb_graph_new(&g));
    }
    zb_g_storage(g, o->storage);
    st = build_graph(c, o, adapt, g);
    if (st == ZB_OK) {
        st = wrap(g, c->family->name, &m);
    }
    if (st != ZB_OK) {
        zb_graph_free(g);
        return st;
    }
    m->n_before = 1;
    m->n_blocks = (int)zb_config_int(c, c->family->layers_key);
    m->vocab_size = zb_config_int(c, c->family->vocab_key);
    m->is_causal = !c->family->sees_all;
    m->config_json = config_text(c);
    st = m->config_json != NULL ? take_ends(c, m) : ZB_ENOMEM;
    if (st == ZB_OK && adapt->rank > 0) {
        m->adapter_json = text_of(zb_adapt_json(adapt, c, o));
        st = m->adapter_json != NULL ? ZB_OK : ZB_ENOMEM;
    }
    if (st != ZB_OK) {
        zb_model_free(m);
        return st;
    }
    *m_out = m;
    return ZB_OK;
}

static enum zb_status make(const struct zb_config *c,
                           const struct zb_model_opts *o,
                           struct zb_model **m_out)
{
    struct zb_adapt adapt;
    enum zb_status st = zb_adapt_init(&adapt, c->family, o);

    if (st == ZB_OK) {
        st = make_with(c, o, &adapt, m_out);
    }
    zb_adapt_release(&adapt);
    return st;
}

enum zb_status zb_model_from_json(const char *text, const char *where,
                                  const struct zb_model_opts *opts,
                                  struct zb_model **m_out)
{
    struct zb_config c;
    enum zb_status st;

    ZB_TRY(zb_config_read_json(text, where, opts, &c));
    st = make(&c, opts, m_out);
    zb_config_release(&c);
    return st;
}

enum zb_status zb_model_from_keys(const struct zb_model_key *keys, size_t n,
                                  const char *where,
                                  const struct zb_model_opts *opts,
                                  struct zb_model **m_out)
{
    struct zb_config c;
    enum zb_status st;

    ZB_TRY(zb_config_read_keys(keys, n, where, &c));
    st = make(&c, opts, m_out);
    zb_config_release(&c);
    return st;
}

enum zb_status zb_model_from_graph(struct zb_graph *g, int n_before,
                                   int n_blocks, struct zb_model **m_out)
{
    struct zb_model *m;

    if (n_before < 0 || n_blocks < 0 ||
        n_blocks > zb_graph_n_layers(g) - n_before) {
        return zb_fail(ZB_EINVAL,
                       "layers [%d, %d) are to be the repeated ones of %d",
                       n_before, n_before + n_blocks, zb_graph_n_layers(g));
    }
    ZB_TRY(wrap(g, "custom", &m));
    m->config_json = zb_strdup("{}");
    if (m->config_json == NULL) {
        m->g = NULL;
        zb_model_free(m);
        return ZB_ENOMEM;
    }
    m->n_before = n_before;
    m->n_blocks = n_blocks;
    m->is_causal = 1;
    *m_out = m;
    return ZB_OK;
}

const struct zb_graph *zb_model_graph(const struct zb_model *m)
{
    return m->g;
}

const char *zb_model_type(const struct zb_model *m)
{
    return m->type;
}

int zb_model_n_before(const struct zb_model *m)
{
    return m->n_before;
}

int zb_model_n_blocks(const struct zb_model *m)
{
    return m->n_blocks;
}

int64_t zb_model_vocab_size(const struct zb_model *m)
{
    return m->vocab_size;
}

int zb_model_is_causal(const struct zb_model *m)
{
    return m->is_causal;
}

int zb_model_is_end(const struct zb_model *m, int32_t id)
{
    for (size_t i = 0; i < m->n_ends; i++) {
        if (m->end[i] == id) {
            return 1;
        }
    }
    return 0;
}

const char *zb_model_config_json(const struct zb_model *m)
{
    return m->config_json;
}

const char *zb_model_adapter_json(const struct zb_model *m)
{
    return m->adapter_json;
}
