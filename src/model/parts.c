/* SPDX-License-Identifier: MIT
 *
 * The parts that families are built from.
 */
#include "config.h"
#include "model/model_int.h"

#include <stdarg.h>
#include <stdio.h>

/* A name from a format; names that are too long are cut, which the graph
 * would report as a parameter of two shapes. */
#define FORMAT_NAME(name, fmt)                                                 \
    char name[256];                                                            \
    va_list ap;                                                                \
    va_start(ap, fmt);                                                         \
    vsnprintf(name, sizeof(name), fmt, ap);                                    \
    va_end(ap)

static int param(struct zb_builder *b, const char *name, int n_dims,
                 const int64_t *dim, struct zb_param_opts opts)
{
    opts.is_frozen = zb_adapt_freezes(b->adapt, name) && !opts.is_adapter;
    return zb_g_param(b->g, name, n_dims, dim, &opts);
}

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

    return param(b, name, 2, dim, opts);
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

    return param(b, name, 2, dim, opts);
}

int zb_build_vocab_bias(struct zb_builder *b, int64_t vocab, const char *fmt,
                        ...)
{
    const struct zb_param_opts opts = {
        .init = ZB_INIT_ZEROS,
        .no_decay = 1,
        .split = {.n_parts = 1, .size = {vocab}, .is_vocab = 1},
    };
    FORMAT_NAME(name, fmt);

    return param(b, name, 1, &vocab, opts);
}

/* The split of dimension `dim`, `n` long. */
static struct zb_split split_of(const struct zb_linear *l, int dim, int64_t n)
{
    struct zb_split s = {.dim = dim,
                         .n_parts = l->n_parts > 1 ? l->n_parts : 1};
    int64_t n_heads = 0;

    for (int i = 0; i < s.n_parts; i++) {
        n_heads += l->part_heads[i];
    }
    for (int i = 0; i < s.n_parts; i++) {
        s.size[i] = n / s.n_parts;
        s.unit[i] = l->n_heads > 0 ? l->n_heads : s.size[i];
        if (n_heads > 0) {
            s.size[i] = n / n_heads * l->part_heads[i];
            s.unit[i] = l->part_heads[i];
        }
    }
    return s;
}

static int linear_weight(struct zb_builder *b, const struct zb_linear *l,
                         const char *prefix)
{
    struct zb_param_opts opts = {
        .init = l->std > 0 ? ZB_INIT_NORMAL : ZB_INIT_ZEROS,
        .std = l->std,
        .is_adapter = l->is_adapter,
        .is_new_head = l->is_new_head,
    };
    int64_t dim[] = {l->in_by_out ? l->n_in : l->n_out,
                     l->in_by_out ? l->n_out : l->n_in};
    int out = l->in_by_out ? 1 : 0;
    char name[264];

    if (l->side != ZB_SIDE_ALL) {
        int at = l->side == ZB_SIDE_OUT ? out : 1 - out;

        opts.split = split_of(l, at, dim[at]);
    }
    snprintf(name, sizeof(name), "%s.weight", prefix);
    return param(b, name, 2, dim, opts);
}

static int linear_bias(struct zb_builder *b, const struct zb_linear *l,
                       const char *prefix)
{
    struct zb_param_opts opts = {.init = ZB_INIT_ZEROS,
                                 .no_decay = 1,
                                 .is_new_head = l->is_new_head};
    char name[264];

    if (l->side == ZB_SIDE_OUT) {
        opts.split = split_of(l, 0, l->n_out);
    }
    snprintf(name, sizeof(name), "%s.bias", prefix);
    return param(b, name, 1, &l->n_out, opts);
}

int zb_build_linear(struct zb_builder *b, int x, const struct zb_linear *l,
                    const char *prefix, ...)
{
    int w, bias, y;
    FORMAT_NAME(name, prefix);

    w = linear_weight(b, l, name);
    bias = l->has_bias ? linear_bias(b, l, name) : ZB_G_NONE;
    y = zb_g_linear(b->g, x, w, bias, l->in_by_out);
    return l->is_adapter ? y : zb_adapt_linear(b, x, y, l, name);
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

enum zb_status zb_build_check_positions(const struct zb_builder *b,
                                        const char *key)
{
    int64_t n = zb_config_int(b->config, key);

    return b->opts->max_seq <= n
               ? ZB_OK
               : zb_config_fail(b->config, key,
                                "sequences of %lld are longer than the %lld "
                                "positions",
                                (long long)b->opts->max_seq, (long long)n);
}

int zb_build_ones(struct zb_builder *b, int64_t n, const char *fmt, ...)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_ONES, .no_decay = 1};
    FORMAT_NAME(name, fmt);

    return param(b, name, 1, &n, opts);
}

int zb_build_head_ones(struct zb_builder *b, int64_t n_heads, int64_t head_dim,
                       const char *fmt, ...)
{
    const struct zb_param_opts opts = {
        .init = ZB_INIT_ONES,
        .no_decay = 1,
        .split = {.n_parts = 1, .size = {n_heads}, .unit = {n_heads}},
    };
    const int64_t dim[] = {n_heads, head_dim};
    FORMAT_NAME(name, fmt);

    return param(b, name, 2, dim, opts);
}

int zb_build_zeros(struct zb_builder *b, int64_t n, const char *fmt, ...)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_ZEROS, .no_decay = 1};
    FORMAT_NAME(name, fmt);

    return param(b, name, 1, &n, opts);
}

int zb_build_layernorm(struct zb_builder *b, int x, int64_t n, double eps,
                       const char *prefix, ...)
{
    int gamma, beta;
    FORMAT_NAME(name, prefix);

    gamma = zb_build_ones(b, n, "%s.weight", name);
    beta = zb_build_zeros(b, n, "%s.bias", name);
    return zb_g_layernorm(b->g, x, gamma, beta, eps);
}

int zb_build_heads(struct zb_builder *b, int x, int64_t head_dim)
{
    const int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ),
                           ZB_DIM_REST, head_dim};

    return zb_g_reshape(b->g, x, 4, dim);
}

static const int64_t batch_seq[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ)};

int zb_build_key_mask(struct zb_builder *b)
{
    const struct zb_parallel *par = zb_graph_parallel(b->g);
    int is_part = par->mode == ZB_SEQ_ALL_TO_ALL || par->mode == ZB_SEQ_RING;
    int is_padded =
        b->config->family->sees_all && zb_parallel_seq_multiple(par) > 1;
    const int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH),
                           ZB_DIM(is_part ? ZB_SYM_FULL : ZB_SYM_SEQ)};

    return b->opts->has_key_mask || is_padded
               ? zb_g_data(b->g, "attention_mask", ZB_DTYPE_I32, 2, dim)
               : ZB_G_NONE;
}

int zb_build_ids(struct zb_builder *b, const char *name)
{
    return zb_g_data(b->g, name, ZB_DTYPE_I32, 2, batch_seq);
}

int zb_build_position_ids(struct zb_builder *b)
{
    return b->opts->has_key_mask ? zb_build_ids(b, "position_ids") : ZB_G_NONE;
}

int zb_build_input(struct zb_builder *b, const char *table, int64_t vocab,
                   int64_t hidden, int padding_idx)
{
    int64_t dim[] = {batch_seq[0], batch_seq[1], hidden};
    int ids;

    if (b->opts->has_embeds) {
        return zb_g_data(b->g, "inputs_embeds", ZB_DTYPE_REAL, 3, dim);
    }
    ids = zb_build_ids(b, "input_ids");
    return zb_g_embedding(
        b->g, ids, zb_build_vocab(b, vocab, hidden, "%s", table), padding_idx);
}

const char *zb_build_head_table(const struct zb_builder *b, const char *tied)
{
    return zb_config_bool(b->config, "tie_word_embeddings") ? tied
                                                            : "lm_head.weight";
}

int zb_build_head(struct zb_builder *b, int x, int64_t vocab, int64_t hidden,
                  const char *table, const char *bias)
{
    int w;

    if (b->opts->no_head) {
        return x;
    }
    w = zb_build_vocab(b, vocab, hidden, "%s", table);
    return zb_g_linear(
        b->g, x, w,
        bias != NULL ? zb_build_vocab_bias(b, vocab, "%s", bias) : ZB_G_NONE,
        0);
}

static void end(struct zb_builder *b, int x, int n_label_dims)
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
    labels = zb_g_data(b->g, "labels", ZB_DTYPE_I32, n_label_dims, batch_seq);
    zb_g_loss(b->g, zb_g_xent(b->g, x, labels), labels);
}

void zb_build_end(struct zb_builder *b, int x)
{
    end(b, x, 2);
}

void zb_build_end_rows(struct zb_builder *b, int x)
{
    end(b, x, 1);
}

void zb_position_ids(const int32_t *mask, int64_t rows, int64_t seq,
                     int32_t *ids_out)
{
    for (int64_t r = 0; r < rows; r++) {
        int32_t n = 0;

        for (int64_t t = r * seq; t < (r + 1) * seq; t++) {
            ids_out[t] = mask[t] != 0 ? n : -1;
            n += mask[t] != 0;
        }
    }
}
