/* SPDX-License-Identifier: MIT
 *
 * Attention, backward. The weights p are made again from lse. One thread has
 * one key head of one sample, so that dk and dv are summed in one order: by
 * query head, tile of queries, and within a tile by query.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_attn.h"
#include "kern/fmath.h"

/* One thread's working memory. */
struct bwd_scratch {
    zb_real p[ATTN_KEYS][ATTN_QUERIES];  /* weights, then those kept */
    zb_real ds[ATTN_KEYS][ATTN_QUERIES]; /* gradient of weights, of scores */
    zb_real factor[ATTN_DRAWN][ATTN_QUERIES];
    zb_real lse[ATTN_QUERIES];
    zb_real delta[ATTN_QUERIES]; /* sum over keys of p times its gradient */
    zb_real scale[ATTN_QUERIES];
    zb_real tiles[]; /* those of struct operands */
};

/* Queries and output gradients of a tile, by column and by row. */
struct operands {
    zb_real *qt, *dot, *dqt; /* [d][ATTN_QUERIES] */
    zb_real *q, *dout;       /* [ATTN_QUERIES][d_pad] */
    zb_real *room[2];        /* for rows of 16 bits */
    int64_t d_pad;
};

/* Where a key head's dk and dv are summed: their rows from key 0 on. */
struct sums {
    zb_real *dk, *dv;
    int64_t dk_row, dv_row;
};

static size_t scratch_bytes(const struct zb_k_attention_fwd *p)
{
    int64_t per_query = 3 * p->head_dim + 2 * zb_vec_round(p->head_dim);
    int64_t reals = per_query * ATTN_QUERIES + 2 * zb_attn_room_reals(p);

    return sizeof(struct bwd_scratch) + (size_t)reals * sizeof(zb_real);
}

static void operands_init(struct operands *o, struct bwd_scratch *w,
                          const struct zb_k_attention_fwd *p)
{
    int64_t columns = p->head_dim * ATTN_QUERIES;

    o->d_pad = zb_vec_round(p->head_dim);
    o->qt = w->tiles;
    o->dot = o->qt + columns;
    o->dqt = o->dot + columns;
    o->q = o->dqt + columns;
    o->dout = o->q + ATTN_QUERIES * o->d_pad;
    o->room[0] = o->dout + ATTN_QUERIES * o->d_pad;
    o->room[1] = o->room[0] + zb_attn_room_reals(p);
}

/* dst[i][d] = factor[i] x[i][d], padded with zeros to whole vectors. */
static void load_rows(const struct attn_tile *t, struct attn_rows x,
                      const zb_real *factor, zb_real *dst, int64_t d_pad)
{
    int64_t n_d = t->p->head_dim;

    for (int64_t i = 0; i < t->n_pad; i++) {
        zb_real *y = dst + i * d_pad;
        zb_real scale = factor != NULL ? factor[i] : ZB_R(1);

        if (i >= t->n) {
            memset(y, 0, (size_t)d_pad * sizeof(*y));
            continue;
        }
        ZB_EACH(d, n_d) {
            y[d] = scale * x.ptr[i * x.row + d];
        }
        memset(y + n_d, 0, (size_t)(d_pad - n_d) * sizeof(*y));
    }
}

static void load_queries(const struct attn_tile *t, const struct operands *o,
                         struct bwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    struct attn_rows q =
        zb_attn_rows(p, p->q, zb_attn_q_at(t), p->q_row, t->n, o->room[0]);

    zb_attn_query_scales(t, w->scale);
    zb_attn_load_columns(t, q, o->qt);
    for (int64_t d = 0; d < p->head_dim; d++) {
        ZB_EACH(i, t->n_pad) {
            o->qt[d * ATTN_QUERIES + i] *= w->scale[i];
        }
    }
    load_rows(t, q, w->scale, o->q, o->d_pad);
}

static void load_tile(const struct attn_tile *t,
                      const struct zb_k_attention_bwd *bwd,
                      const struct operands *o, struct bwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    int64_t out_row = p->q_heads * p->head_dim;
    int64_t at = zb_attn_out_at(t);
    const zb_real *lse = p->lse + zb_attn_lse_at(t);
    struct attn_rows all_out, all_dout;

    load_queries(t, o, w);
    all_dout = zb_attn_rows(p, bwd->dout, at, out_row, t->n, o->room[0]);
    all_out = zb_attn_rows(p, p->out, at, out_row, t->n, o->room[1]);
    zb_attn_load_columns(t, all_dout, o->dot);
    load_rows(t, all_dout, NULL, o->dout, o->d_pad);
    for (int64_t i = 0; i < t->n_pad; i++) {
        const zb_real *out = all_out.ptr + i * all_out.row;
        const zb_real *dout = all_dout.ptr + i * all_dout.row;
        zb_real sum = 0;

        if (i < t->n) {
            ZB_EACH_SUM(d, p->head_dim, sum) {
                sum += out[d] * dout[d];
            }
        }
        w->delta[i] = sum;
        /* A query without a key weighs nothing. */
        w->lse[i] = i >= t->n            ? ZB_R(0)
                    : lse[i] < ATTN_NONE ? -ATTN_NEVER
                                         : lse[i];
    }
    memset(o->dqt, 0, (size_t)p->head_dim * ATTN_QUERIES * sizeof(zb_real));
}

/* p = exp(s - lse), ds = p (dp - delta); with dropout also p = p factor. */
static void weigh(const struct attn_tile *t, const struct attn_block *k,
                  struct bwd_scratch *w)
{
    const zb_real *lse = w->lse + k->skip, *delta = w->delta + k->skip;
    int64_t n = t->n_pad - k->skip;
    int has_dropout = t->p->dropout > 0;
    int64_t first = has_dropout ? zb_attn_dropout(t, k, w->factor[0]) : 0;

    for (int64_t j = 0; j < k->n; j++) {
        zb_real *p = w->p[j] + k->skip, *ds = w->ds[j] + k->skip;
        const zb_real *factor = w->factor[first + j] + k->skip;

        if (has_dropout) {
            ZB_EACH(i, n) {
                zb_real weight = zb_exp(p[i] - lse[i]);

                p[i] = weight * factor[i];
                ds[i] = weight * (ds[i] * factor[i] - delta[i]);
            }
        } else {
            ZB_EACH(i, n) {
                p[i] = zb_exp(p[i] - lse[i]);
                ds[i] = p[i] * (ds[i] - delta[i]);
            }
        }
    }
}

static void add_block(const struct attn_tile *t, const struct attn_block *k,
                      const struct sums *to, const struct operands *o,
                      struct bwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    int64_t n = t->n_pad - k->skip;
    struct attn_rows keys = zb_attn_keys(t, k, o->room[0]);
    struct attn_rows values = zb_attn_values(t, k, o->room[1]);
    zb_real *dk = to->dk + k->j0 * to->dk_row;
    zb_real *dv = to->dv + k->j0 * to->dv_row;
    zb_real *weight = w->p[0] + k->skip, *ds = w->ds[0] + k->skip;

    zb_attn_scores(t, k, keys, o->qt, w->p[0]);
    zb_tile_gemm(k->n, n, p->head_dim,
                 (struct zb_tile_a){values.ptr, values.row, 1},
                 o->dot + k->skip, ATTN_QUERIES, ds, ATTN_QUERIES, 0);
    weigh(t, k, w);
    zb_tile_gemm(k->n, p->head_dim, n,
                 (struct zb_tile_a){weight, ATTN_QUERIES, 1},
                 o->dout + k->skip * o->d_pad, o->d_pad, dv, to->dv_row, 1);
    zb_tile_gemm(k->n, p->head_dim, n, (struct zb_tile_a){ds, ATTN_QUERIES, 1},
                 o->q + k->skip * o->d_pad, o->d_pad, dk, to->dk_row, 1);
    zb_tile_gemm(p->head_dim, n, k->n,
                 (struct zb_tile_a){keys.ptr, 1, keys.row}, ds, ATTN_QUERIES,
                 o->dqt + k->skip, ATTN_QUERIES, 1);
}

/* dq of the tile, from columns; what was there stays when adding. The tile's
 * rows of q are no longer needed. */
static void store_dq(const struct attn_tile *t,
                     const struct zb_k_attention_bwd *bwd,
                     const struct operands *o)
{
    const struct zb_k_attention_fwd *p = t->p;
    int64_t n_d = p->head_dim;
    int64_t at =
        t->b * bwd->dq_batch + t->i0 * bwd->dq_row + t->h * bwd->dq_head;
    struct attn_rows before;

    if (p->dtype == ZB_DTYPE_REAL && !bwd->add_q) {
        zb_tile_transpose(n_d, t->n, o->dqt, ATTN_QUERIES,
                          (zb_real *)bwd->dq + at, bwd->dq_row, 0);
        return;
    }
    zb_tile_transpose(n_d, t->n, o->dqt, ATTN_QUERIES, o->q, o->d_pad, 0);
    if (bwd->add_q) {
        before = zb_attn_rows(p, bwd->dq, at, bwd->dq_row, t->n, o->room[0]);
        for (int64_t i = 0; i < t->n; i++) {
            const zb_real *row = before.ptr + i * before.row;
            zb_real *sum = o->q + i * o->d_pad;

            ZB_EACH(d, n_d)
            {
                sum[d] += row[d];
            }
        }
    }
    zb_attn_store_rows(p, o->q, o->d_pad, t->n, bwd->dq, at, bwd->dq_row);
}

static void backward_tile(const struct attn_tile *t,
                          const struct zb_k_attention_bwd *bwd,
                          const struct sums *to, struct bwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    struct operands o;
    struct attn_block k;

    operands_init(&o, w, p);
    load_tile(t, bwd, &o, w);
    for (int ok = zb_attn_first_block(t, &k); ok;
         ok = zb_attn_next_block(t, &k)) {
        add_block(t, &k, to, &o, w);
    }
    for (int64_t d = 0; d < p->head_dim; d++) {
        ZB_EACH(i, t->n_pad) {
            o.dqt[d * ATTN_QUERIES + i] *= w->scale[i];
        }
    }
    store_dq(t, bwd, &o);
}

/* Rows of dk or dv before the first tile: 0, or what is there already. */
static void start_sum(const struct zb_k_attention_bwd *bwd, const void *x,
                      int64_t at, int64_t row, zb_real *sum, int64_t sum_row)
{
    const struct zb_k_attention_fwd *p = &bwd->fwd;

    for (int64_t j = 0; j < p->kv_seq; j++) {
        if (!bwd->add_kv) {
            memset(sum + j * sum_row, 0, (size_t)p->head_dim * sizeof(*sum));
        } else if (p->dtype != ZB_DTYPE_REAL) {
            (void)zb_attn_rows(p, x, at + j * row, row, 1, sum + j * sum_row);
        }
    }
}

/* All tiles of queries that read one key head. */
static void backward_head(const struct zb_k_attention_bwd *bwd, int64_t b,
                          int64_t kv, struct bwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = &bwd->fwd;
    int64_t group = p->q_heads / p->kv_heads, n = p->kv_seq * p->head_dim;
    int64_t dk_at = b * bwd->dk_batch + kv * bwd->dk_head;
    int64_t dv_at = b * bwd->dv_batch + kv * bwd->dv_head;
    int is_real = p->dtype == ZB_DTYPE_REAL;
    zb_real *own = is_real ? NULL : bwd->sums + (b * p->kv_heads + kv) * 2 * n;
    struct sums to = {
        .dk = is_real ? (zb_real *)bwd->dk + dk_at : own,
        .dv = is_real ? (zb_real *)bwd->dv + dv_at : own + n,
        .dk_row = is_real ? bwd->dk_row : p->head_dim,
        .dv_row = is_real ? bwd->dv_row : p->head_dim,
    };
    struct attn_tile t;

    start_sum(bwd, bwd->dk, dk_at, bwd->dk_row, to.dk, to.dk_row);
    start_sum(bwd, bwd->dv, dv_at, bwd->dv_row, to.dv, to.dv_row);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        for (int64_t i = 0; i < p->seq; i += ATTN_QUERIES) {
            zb_attn_tile_init(&t, p, b, h, i);
            backward_tile(&t, bwd, &to, w);
        }
    }
    if (!is_real) {
        zb_attn_store_rows(p, to.dk, to.dk_row, p->kv_seq, bwd->dk, dk_at,
                           bwd->dk_row);
        zb_attn_store_rows(p, to.dv, to.dv_row, p->kv_seq, bwd->dv, dv_at,
                           bwd->dv_row);
    }
}

static void backward_part(const struct zb_device *dev, const void *arg,
                          int64_t begin, int64_t end, int thread)
{
    const struct zb_k_attention_bwd *bwd = arg;
    int64_t kv_heads = bwd->fwd.kv_heads;

    for (int64_t u = begin; u < end; u++) {
        backward_head(bwd, u / kv_heads, u % kv_heads,
                      dev->scratch[thread].ptr);
    }
}

enum zb_status zb_cpu_attention_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_attention_bwd *bwd = params;
    const struct zb_k_attention_fwd *p = &bwd->fwd;

    ZB_TRY(zb_cpu_check_type(p->dtype));
    if (p->dtype != ZB_DTYPE_REAL && bwd->sums == NULL) {
        return zb_fail(ZB_EINVAL, "attention_bwd of %s without memory for sums",
                       zb_dtype_str(p->dtype));
    }
    ZB_TRY(zb_cpu_scratch_reserve(dev, scratch_bytes(p)));
    zb_cpu_for(dev, p->batch * p->kv_heads, 1,
               0.1 * (double)(p->seq * p->kv_seq * p->head_dim), backward_part,
               bwd);
    return ZB_OK;
}
