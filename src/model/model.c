/* SPDX-License-Identifier: MIT
 *
 * Models, and the parts that families are built from.
 */
#include "config.h"
#include "model/model_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

struct zb_model {
    struct zb_graph *g;
    char *type;
    char *config_json;
    int n_before, n_blocks;
    int64_t vocab_size;
};

/* ---- parts --------------------------------------------------------------- */

/* A name from a format; names that are too long are cut, which the graph
 * would report as a parameter of two shapes. */
#define FORMAT_NAME(name, fmt)                                                 \
    char name[256];                                                            \
    va_list ap;                                                                \
    va_start(ap, fmt);                                                         \
    vsnprintf(name, sizeof(name), fmt, ap);                                    \
    va_end(ap)

void zb_build_layer(struct zb_builder *b, const char *fmt, ...)
{
    FORMAT_NAME(name, fmt);

    zb_g_layer(b->g, name);
}

int zb_build_matrix(struct zb_builder *b, double std, int64_t rows,
                    int64_t cols, const char *fmt, ...)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_NORMAL, .std = std};
    const int64_t dim[] = {rows, cols};
    FORMAT_NAME(name, fmt);

    return zb_g_param(b->g, name, 2, dim, &opts);
}

int zb_build_vocab(struct zb_builder *b, int64_t vocab, int64_t hidden,
                   const char *fmt, ...)
{
    const struct zb_param_opts opts = {
        .init = ZB_INIT_NORMAL,
        .std = b->std,
        .split = {.n_parts = 1, .size = {vocab}, .is_vocab = 1},
    };
    const int64_t dim[] = {vocab, hidden};
    FORMAT_NAME(name, fmt);

    return zb_g_param(b->g, name, 2, dim, &opts);
}

/* The split of dimension `dim`, `n` long. */
static struct zb_split split_of(const struct zb_linear *l, int dim, int64_t n)
{
    struct zb_split s = {.dim = dim,
                         .n_parts = l->n_parts > 1 ? l->n_parts : 1};

    for (int i = 0; i < s.n_parts; i++) {
        s.size[i] = n / s.n_parts;
        s.unit[i] = l->n_heads > 0 ? l->n_heads : s.size[i];
    }
    return s;
}

static int linear_weight(struct zb_builder *b, const struct zb_linear *l,
                         const char *prefix)
{
    struct zb_param_opts opts = {.init = ZB_INIT_NORMAL, .std = l->std};
    int64_t dim[] = {l->in_by_out ? l->n_in : l->n_out,
                     l->in_by_out ? l->n_out : l->n_in};
    int out = l->in_by_out ? 1 : 0;
    char name[264];

    if (l->side != ZB_SIDE_ALL) {
        int at = l->side == ZB_SIDE_OUT ? out : 1 - out;

        opts.split = split_of(l, at, dim[at]);
    }
    snprintf(name, sizeof(name), "%s.weight", prefix);
    return zb_g_param(b->g, name, 2, dim, &opts);
}

static int linear_bias(struct zb_builder *b, const struct zb_linear *l,
                       const char *prefix)
{
    struct zb_param_opts opts = {.init = ZB_INIT_ZEROS, .no_decay = 1};
    char name[264];

    if (l->side == ZB_SIDE_OUT) {
        opts.split = split_of(l, 0, l->n_out);
    }
    snprintf(name, sizeof(name), "%s.bias", prefix);
    return zb_g_param(b->g, name, 1, &l->n_out, &opts);
}

int zb_build_linear(struct zb_builder *b, int x, const struct zb_linear *l,
                    const char *prefix, ...)
{
    int w, bias;
    FORMAT_NAME(name, prefix);

    w = linear_weight(b, l, name);
    bias = l->has_bias ? linear_bias(b, l, name) : ZB_G_NONE;
    return zb_g_linear(b->g, x, w, bias, l->in_by_out);
}

enum zb_status zb_build_check_split(const struct zb_builder *b, const char *key,
                                    int64_t n, int may_repeat)
{
    int tp = b->opts->par != NULL ? b->opts->par->tp : 1;

    if (n % tp == 0 || (may_repeat && n < tp && tp % n == 0)) {
        return ZB_OK;
    }
    return zb_config_fail(b->config, key, "%lld does not divide by tp_size %d",
                          (long long)n, tp);
}

int zb_build_ones(struct zb_builder *b, int64_t n, const char *fmt, ...)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_ONES, .no_decay = 1};
    FORMAT_NAME(name, fmt);

    return zb_g_param(b->g, name, 1, &n, &opts);
}

int zb_build_zeros(struct zb_builder *b, int64_t n, const char *fmt, ...)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_ZEROS, .no_decay = 1};
    FORMAT_NAME(name, fmt);

    return zb_g_param(b->g, name, 1, &n, &opts);
}

static const int64_t batch_seq[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ)};

int zb_build_key_mask(struct zb_builder *b)
{
    enum zb_seq_mode mode = zb_graph_parallel(b->g)->mode;
    int is_part = mode == ZB_SEQ_ALL_TO_ALL || mode == ZB_SEQ_RING;
    const int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH),
                           ZB_DIM(is_part ? ZB_SYM_FULL : ZB_SYM_SEQ)};

    return b->opts->has_key_mask ? zb_g_data(b->g, "attention_mask",
                                             ZB_DTYPE_I32, 2, dim)
                                 : ZB_G_NONE;
}

int zb_build_input(struct zb_builder *b, const char *table, int64_t vocab,
                   int64_t hidden, int padding_idx)
{
    int64_t dim[] = {batch_seq[0], batch_seq[1], hidden};
    int ids;

    if (b->opts->has_embeds) {
        return zb_g_data(b->g, "inputs_embeds", ZB_DTYPE_REAL, 3, dim);
    }
    ids = zb_g_data(b->g, "input_ids", ZB_DTYPE_I32, 2, batch_seq);
    return zb_g_embedding(
        b->g, ids, zb_build_vocab(b, vocab, hidden, "%s", table), padding_idx);
}

void zb_build_end(struct zb_builder *b, int x)
{
    int labels;

    if (b->opts->criterion != NULL) {
        x = zb_g_whole(b->g, x);
    }
    zb_g_output(b->g, b->opts->no_head ? "last_hidden_state" : "logits", x);
    if (b->opts->criterion != NULL) {
        b->opts->criterion(b->g, x, b->opts->criterion_arg);
        return;
    }
    labels = zb_g_data(b->g, "labels", ZB_DTYPE_I32, 2, batch_seq);
    zb_g_loss(b->g, zb_g_xent(b->g, x, labels), labels);
}

/* ---- models -------------------------------------------------------------- */

void zb_model_free(struct zb_model *m)
{
    if (m == NULL) {
        return;
    }
    zb_graph_free(m->g);
    zb_free(m->type);
    zb_free(m->config_json);
    zb_free(m);
}

/* Every key with its value, and the keys that were ignored as they were given,
 * so that a checkpoint's config.json says the same to others. */
static char *config_text(const struct zb_config *c)
{
    json_t *all = json_object(), *v;
    const char *name;
    char *text, *copy;

    json_object_set_new(all, "architectures",
                        json_pack("[s]", c->family->architecture));
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
        if (row->type == ZB_KEY_OBJECT &&
            json_is_null(json_object_get(all, row->name))) {
            json_object_del(all, row->name);
        }
    }
    text = json_dumps(all, JSON_INDENT(2) | JSON_SORT_KEYS |
                               JSON_REAL_PRECISION(17));
    json_decref(all);
    if (text == NULL) {
        zb_fail(ZB_ENOMEM, "out of host memory (config)");
        return NULL;
    }
    copy = zb_strdup(text);
    free(text);
    return copy;
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

static enum zb_status build_graph(const struct zb_config *c,
                                  const struct zb_model_opts *o,
                                  struct zb_graph *g)
{
    struct zb_builder b = {
        .g = g,
        .config = c,
        .opts = o,
        .std = o->init_std > 0 ? o->init_std
                               : zb_config_real(c, "initializer_range"),
    };
    enum zb_status st;

    ZB_TRY(check_opts(c, o));
    ZB_TRY(c->family->build(&b));
    st = zb_graph_finish(g);
    return st == ZB_OK ? ZB_OK : zb_fail_in(st, "%s", c->where);
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

static enum zb_status make(const struct zb_config *c,
                           const struct zb_model_opts *o,
                           struct zb_model **m_out)
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
    st = build_graph(c, o, g);
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
    m->config_json = config_text(c);
    if (m->config_json == NULL) {
        zb_model_free(m);
        return ZB_ENOMEM;
    }
    *m_out = m;
    return ZB_OK;
}

enum zb_status zb_model_from_json(const char *text, const char *where,
                                  const struct zb_model_opts *opts,
                                  struct zb_model **m_out)
{
    struct zb_config c;
    enum zb_status st;

    ZB_TRY(zb_config_read_json(text, where, &c));
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

const char *zb_model_config_json(const struct zb_model *m)
{
    return m->config_json;
}
