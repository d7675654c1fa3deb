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
    zb_real tiles[]; /* the five of struct operands */
};

/* Queries and output gradients of a tile, by column and by row. */
struct operands {
    zb_real *qt, *dot, *dqt; /* [d][ATTN_QUERIES] */
    zb_real *q, *dout;       /* [ATTN_QUERIES][d_pad] */
    int64_t d_pad;
};

size_t zb_attn_backward_bytes(int64_t head_dim)
{
    int64_t per_query = 3 * head_dim + 2 * zb_vec_round(head_dim);

    return sizeof(struct bwd_scratch) +
           (size_t)per_query * ATTN_QUERIES * sizeof(zb_real);
}

static void operands_init(struct operands *o, struct bwd_scratch *w,
                          int64_t head_dim)
{
    int64_t columns = head_dim * ATTN_QUERIES;

    o->d_pad = zb_vec_round(head_dim);
    o->qt = w->tiles;
    o->dot = o->qt + columns;
    o->dqt = o->dot + columns;
    o->q = o->dqt + columns;
    o->dout = o->q + ATTN_QUERIES * o->d_pad;
}

/* dst[i][d] = factor[i] x[i][d], padded with zeros to whole vectors. */
static void load_rows(const struct attn_tile *t, const zb_real *x, int64_t row,
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
            y[d] = scale * x[i * row + d];
        }
        memset(y + n_d, 0, (size_t)(d_pad - n_d) * sizeof(*y));
    }
}

static void load_tile(const struct attn_tile *t,
                      const struct zb_k_attention_bwd *bwd,
                      const struct operands *o, struct bwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    int64_t out_row = p->q_heads * p->head_dim;
    int64_t at = zb_attn_out_at(t);
    const zb_real *q = (const zb_real *)p->q + zb_attn_q_at(t);
    const zb_real *all_dout = (const zb_real *)bwd->dout + at;
    const zb_real *lse = p->lse + zb_attn_lse_at(t);

    zb_attn_query_scales(t, w->scale);
    zb_attn_load_columns(t, q, p->q_row, o->qt);
    for (int64_t d = 0; d < p->head_dim; d++) {
        ZB_EACH(i, t->n_pad) {
            o->qt[d * ATTN_QUERIES + i] *= w->scale[i];
        }
    }
    zb_attn_load_columns(t, all_dout, out_row, o->dot);
    load_rows(t, q, p->q_row, w->scale, o->q, o->d_pad);
    load_rows(t, all_dout, out_row, NULL, o->dout, o->d_pad);
    for (int64_t i = 0; i < t->n_pad; i++) {
        const zb_real *out = (const zb_real *)p->out + at + i * out_row;
        const zb_real *dout = all_dout + i * out_row;
        zb_real sum = 0;

        if (i < t->n) {
            ZB_EACH_SUM(d, p->head_dim, sum) {
                sum += out[d] * dout[d];
            }
        }
        w->delta[i] = sum;
        w->lse[i] = i < t->n ? lse[i] : ZB_R(0);
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
                      const struct zb_k_attention_bwd *bwd,
                      const struct operands *o, struct bwd_scratch *w)
{
    const struct zb_k_attention_fwd *p = t->p;
    int64_t n = t->n_pad - k->skip;
    const zb_real *keys = zb_attn_keys(t, k->j0);
    const zb_real *values = zb_attn_values(t, k->j0);
    zb_real *dk = (zb_real *)bwd->dk + t->b * bwd->dk_batch + k->j0 * bwd->dk_row +
                  t->kv * bwd->dk_head;
    zb_real *dv = (zb_real *)bwd->dv + t->b * bwd->dv_batch + k->j0 * bwd->dv_row +
                  t->kv * bwd->dv_head;
    zb_real *weight = w->p[0] + k->skip, *ds = w->ds[0] + k->skip;

    zb_attn_scores(t, k, o->qt, w->p[0]);
    zb_tile_gemm(k->n, n, p->head_dim,
                 (struct zb_tile_a){values, p->v_row, 1}, o->dot + k->skip,
                 ATTN_QUERIES, ds, ATTN_QUERIES, 0);
    weigh(t, k, w);
    zb_tile_gemm(k->n, p->head_dim, n,
                 (struct zb_tile_a){weight, ATTN_QUERIES, 1},
                 o->dout + k->skip * o->d_pad, o->d_pad, dv, bwd->dv_row, 1);
    zb_tile_gemm(k->n, p->head_dim, n,
                 (struct zb_tile_a){ds, ATTN_QUERIES, 1},
                 o->q + k->skip * o->d_pad, o->d_pad, dk, bwd->dk_row, 1);
    zb_tile_gemm(p->head_dim, n, k->n, (struct zb_tile_a){keys, 1, p->k_row},
                 ds, ATTN_QUERIES, o->dqt + k->skip, ATTN_QUERIES, 1);
}

/* dq of the tile, from columns; what was there stays when adding. The tile's
 * rows of q are no longer needed. */
static void store_dq(const struct attn_tile *t,
                     const struct zb_k_attention_bwd *bwd,
                     const struct operands *o)
{
    int64_t n_d = t->p->head_dim;
    zb_real *dq = (zb_real *)bwd->dq + t->b * bwd->dq_batch + t->i0 * bwd->dq_row +
                  t->h * bwd->dq_head;

    if (!bwd->add_q) {
        zb_tile_transpose(n_d, t->n, o->dqt, ATTN_QUERIES, dq, bwd->dq_row, 0);
        return;
    }
    zb_tile_transpose(n_d, t->n, o->dqt, ATTN_QUERIES, o->q, o->d_pad, 0);
    for (int64_t i = 0; i < t->n; i++) {
        zb_real *row = dq + i * bwd->dq_row;
        const zb_real *more = o->q + i * o->d_pad;

        ZB_EACH(d, n_d) {
            row[d] += more[d];
        }
    }
}

void zb_attn_backward_tile(const struct attn_tile *t,
                           const struct zb_k_attention_bwd *bwd, void *scratch)
{
    struct bwd_scratch *w = scratch;
    const struct zb_k_attention_fwd *p = t->p;
    struct operands o;
    struct attn_block k;

    operands_init(&o, w, p->head_dim);
    load_tile(t, bwd, &o, w);
    for (int ok = zb_attn_first_block(t, &k); ok;
         ok = zb_attn_next_block(t, &k)) {
        add_block(t, &k, bwd, &o, w);
    }
    for (int64_t d = 0; d < p->head_dim; d++) {
        ZB_EACH(i, t->n_pad) {
            o.dqt[d * ATTN_QUERIES + i] *= w->scale[i];
        }
    }
    store_dq(t, bwd, &o);
}

static void clear_rows(zb_real *x, int64_t rows, int64_t row, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        memset(x + r * row, 0, (size_t)n * sizeof(*x));
    }
}

static void backward_part(const struct zb_device *dev, const void *arg,
                          int64_t begin, int64_t end, int thread)
{
    const struct zb_k_attention_bwd *bwd = arg;
    const struct zb_k_attention_fwd *p = &bwd->fwd;
    int64_t group = p->q_heads / p->kv_heads;
    struct attn_tile t;

    for (int64_t u = begin; u < end; u++) {
        int64_t b = u / p->kv_heads, kv = u % p->kv_heads;

        if (!bwd->add_kv) {
            clear_rows((zb_real *)bwd->dk + b * bwd->dk_batch + kv * bwd->dk_head,
                       p->kv_seq, bwd->dk_row, p->head_dim);
            clear_rows((zb_real *)bwd->dv + b * bwd->dv_batch + kv * bwd->dv_head,
                       p->kv_seq, bwd->dv_row, p->head_dim);
        }
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            for (int64_t i = 0; i < p->seq; i += ATTN_QUERIES) {
                zb_attn_tile_init(&t, p, b, h, i);
                zb_attn_backward_tile(&t, bwd, dev->scratch[thread].ptr);
            }
        }
    }
}

enum zb_status zb_cpu_attention_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_attention_bwd *bwd = params;
    const struct zb_k_attention_fwd *p = &bwd->fwd;

    ZB_TRY(zb_cpu_check_type(p->dtype));
    if (p->dtype != ZB_DTYPE_REAL) {
        return zb_attn_backward16(dev, bwd);
    }
    ZB_TRY(zb_cpu_scratch_reserve(dev, zb_attn_backward_bytes(p->head_dim)));
    zb_cpu_for(dev, p->batch * p->kv_heads, 1,
               0.1 * (double)(p->seq * p->kv_seq * p->head_dim), backward_part,
               bwd);
    return ZB_OK;
}
