/* SPDX-License-Identifier: MIT
 *
 * Attention of every backend against the formula in double with whole score
 * matrices, and its gradients against central differences.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kern/philox.h"
#include "ops_rig.h"

static const char *backend;

/* Which keys count, and how much: what each shape is run with. */
struct sight {
    int64_t window; /* only where causal */
    int has_slopes;
};

static struct sight sight;

static const struct sight sights[] = {
    {0, 0}, {0, 1}, {2, 0}, {5, 0}, {64, 1}, {70, 0},
};

struct shape {
    int64_t batch, seq, q_heads, kv_heads, dim;
    int causal, has_mask, is_packed;
    double dropout;
};

/* Queries and keys are rows of a sequence of `whole`. */
struct part {
    int64_t whole, q_first, k_first, kv_seq, first_head, n_padding;
};

/* One case: host values, device buffers, parameters. With is_packed q, k and v
 * lie in one row of [q heads | k heads | v heads]. */
struct setup {
    struct shape s;
    struct part part;
    int64_t q_n, k_n, out_n; /* elements of q, of k and v, of out */
    double *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
    int32_t mask[2048];
    int64_t sample[16];
    double slopes[16];
    int64_t *sample_dev;
    int32_t *mask_dev;
    zb_real *slopes_dev;
    zb_real *dout_dev, *dq_dev, *dk_dev, *dv_dev;
    struct zb_k_attention_fwd p;
    void *const *grads;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 0, 0, 0, 0},     {1, 3, 2, 1, 7, 1, 0, 0, 0},
    {2, 13, 3, 3, 13, 1, 0, 1, 0},   {2, 17, 4, 2, 8, 0, 1, 1, 0},
    {2, 56, 4, 2, 12, 1, 1, 0, 0.3}, {1, 70, 2, 1, 56, 1, 0, 1, 0},
    {2, 130, 2, 2, 16, 1, 1, 1, 0},  {1, 133, 3, 1, 20, 0, 1, 0, 0.2},
    {1, 64, 1, 1, 64, 1, 0, 1, 0},   {1, 200, 4, 4, 3, 0, 0, 1, 0.5},
};

/* Keys before, within and behind the queries; none seen; not in fours; some, or
 * all, padding. */
static const struct {
    struct shape s;
    struct part part;
} partial[] = {
    {{2, 40, 4, 2, 12, 1, 1, 0, 0.3}, {130, 65, 2, 63, 4, 0}},
    {{1, 90, 2, 1, 20, 1, 0, 0, 0.2}, {255, 30, 1, 150, 2, 0}},
    {{2, 70, 2, 2, 8, 1, 1, 0, 0.5}, {200, 21, 50, 101, 0, 0}},
    {{2, 70, 2, 2, 8, 1, 0, 0, 0}, {200, 21, 91, 50, 0, 0}},
    {{2, 33, 6, 3, 16, 0, 1, 0, 0.4}, {171, 99, 3, 86, 6, 0}},
    {{1, 7, 1, 1, 5, 1, 0, 0, 0}, {30, 12, 12, 7, 3, 0}},
    {{1, 64, 2, 2, 8, 1, 1, 0, 0.1}, {256, 64, 64, 64, 0, 0}},
    {{2, 40, 4, 2, 12, 0, 0, 0, 0.3}, {130, 60, 2, 128, 4, 3}},
    {{3, 33, 2, 1, 8, 0, 1, 0, 0.2}, {66, 33, 33, 33, 0, 20}},
    {{1, 20, 2, 2, 8, 0, 0, 0, 0}, {80, 20, 60, 20, 0, 20}},
    {{2, 70, 2, 2, 8, 1, 1, 0, 0.5}, {70, 0, 0, 70, 0, 7}},
};

/* Row 0: the first keys are padding (queries without a key when causal). Row 1:
 * the last are; later rows: all are. */
static void make_mask(struct setup *u)
{
    const struct shape *s = &u->s;

    int64_t n = u->part.whole;

    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t j = 0; j < n; j++) {
            u->mask[b * n + j] = b == 0   ? j >= n / 3
                                      : b == 1 ? j < n / 2 && j % 5 != 0
                                               : 0;
        }
    }
}

static void set_strides(struct setup *u)
{
    const struct shape *s = &u->s;
    struct zb_k_attention_fwd *p = &u->p;
    int64_t q_row = s->q_heads * s->dim, k_row = s->kv_heads * s->dim;

    p->q_head = p->k_head = p->v_head = s->dim;
    p->q_row = q_row;
    p->k_row = p->v_row = k_row;
    if (s->is_packed) {
        p->q_row = p->k_row = p->v_row = q_row + 2 * k_row;
    }
    p->q_batch = s->seq * p->q_row;
    p->k_batch = u->part.kv_seq * p->k_row;
    p->v_batch = u->part.kv_seq * p->v_row;
    p->out_batch = s->seq * q_row;
    p->lse_row = s->seq;
}

/* Element (b, t, h, d) of a tensor of queries, and of one of keys. */
static int64_t at(const struct setup *u, int64_t row, int64_t b, int64_t t,
                  int64_t h, int64_t d)
{
    return (b * u->s.seq + t) * row + h * u->s.dim + d;
}

static int64_t key_at(const struct setup *u, int64_t row, int64_t b, int64_t t,
                      int64_t h, int64_t d)
{
    return (b * u->part.kv_seq + t) * row + h * u->s.dim + d;
}

static void make(struct setup *u, const struct shape *s,
                 const struct part *part)
{
    struct zbt_rng rng = {(unsigned long long)(s->seq * 31 + s->dim)};
    int64_t rows = s->batch * s->seq;
    struct zb_k_attention_fwd *p = &u->p;

    memset(u, 0, sizeof(*u));
    u->s = *s;
    u->part =
        part != NULL ? *part : (struct part){s->seq, 0, 0, s->seq, 0, 0};
    *p = (struct zb_k_attention_fwd){.batch = s->batch,
                                     .seq = s->seq,
                                     .kv_seq = u->part.kv_seq,
                                     .whole = u->part.whole,
                                     .q_first = u->part.q_first,
                                     .k_first = u->part.k_first,
                                     .n_padding = u->part.n_padding,
                                     .first_head = u->part.first_head,
                                     .q_heads = s->q_heads,
                                     .kv_heads = s->kv_heads,
                                     .head_dim = s->dim,
                                     .causal = s->causal,
                                     .window = s->causal ? sight.window : 0,
                                     .scale = 1.7 / sqrt((double)s->dim),
                                     .dropout = s->dropout};
    set_strides(u);
    u->q_n = rows * p->q_row;
    u->k_n = s->batch * u->part.kv_seq * p->k_row;
    u->out_n = rows * s->q_heads * s->dim;
    u->q = ops_random(&rng, u->q_n, -1, 1);
    u->k = ops_random(&rng, u->k_n, -1, 1);
    u->v = ops_random(&rng, u->k_n, -1, 1);
    u->dout = ops_random(&rng, u->out_n, -1, 1);
    if (s->is_packed) {
        u->k = u->q + s->q_heads * s->dim;
        u->v = u->k + s->kv_heads * s->dim;
    }
    make_mask(u);
    for (int64_t b = 0; b < s->batch; b++) {
        u->sample[b] = 1000 + 7 * b;
    }
    for (int h = 0; h < 16; h++) {
        u->slopes[h] = sight.has_slopes ? 0.5 / (h + 1) : 0;
    }
    p->philox.seed = 42;
    p->philox.step = 3;
    p->philox.site = 9;
}

static void upload(struct setup *u)
{
    const struct shape *s = &u->s;
    struct zb_k_attention_fwd *p = &u->p;

    p->q = ops_reals(u->q_n, u->q);
    if (s->is_packed) {
        p->k = (const zb_real *)p->q + s->q_heads * s->dim;
        p->v = (const zb_real *)p->k + s->kv_heads * s->dim;
    } else {
        p->k = ops_reals(u->k_n, u->k);
        p->v = ops_reals(u->k_n, u->v);
    }
    p->out = ops_blank(u->out_n);
    p->lse = ops_blank(s->batch * s->q_heads * s->seq);
    u->sample_dev =
        ops_bytes((size_t)s->batch * sizeof(int64_t), u->sample);
    p->philox.sample = u->sample_dev;
    u->mask_dev = ops_bytes((size_t)(s->batch * u->part.whole) * 4, u->mask);
    p->key_mask = s->has_mask ? u->mask_dev : NULL;
    u->slopes_dev = ops_reals(16, u->slopes);
    p->slopes = sight.has_slopes ? u->slopes_dev : NULL;
    u->dout_dev = ops_reals(u->out_n, u->dout);
}

/* Rows of the whole sequence. */
static int is_allowed(const struct setup *u, int64_t i, int64_t j)
{
    return (!u->s.causal || j <= i) &&
           j < u->part.whole - u->part.n_padding;
}

static int is_in_window(const struct setup *u, int64_t i, int64_t j)
{
    return u->p.window == 0 || j > i - u->p.window;
}

static int is_dead_query(const struct setup *u, int64_t b, int64_t i)
{
    const struct shape *s = &u->s;

    for (int64_t j = 0; j < u->part.whole; j++) {
        if (is_allowed(u, i, j) &&
            (!s->has_mask || u->mask[b * u->part.whole + j] != 0)) {
            return 0;
        }
    }
    return 1;
}

/* Softmax weights of query (b, h, i): w[kv_seq]; returns their lse. A query
 * whose keys are all masked weighs all that causality allows alike; one without
 * a key in this part, or in its window, has no weights. */
static double weights(const struct setup *u, int64_t b, int64_t h, int64_t i,
                      double *w, int *is_dead)
{
    const struct shape *s = &u->s;
    int64_t kv = h * s->kv_heads / s->q_heads;
    double top = -INFINITY, sum = 0;

    *is_dead = is_dead_query(u, b, u->part.q_first + i);
    for (int64_t j = 0; j < u->part.kv_seq; j++) {
        double dot = 0;

        for (int64_t d = 0; d < s->dim; d++) {
            dot += u->q[at(u, u->p.q_row, b, i, h, d)] *
                   u->k[key_at(u, u->p.k_row, b, j, kv, d)];
        }
        w[j] = *is_dead ? 0
                        : dot * u->p.scale + u->slopes[u->part.first_head + h] *
                                                 (double)(u->part.k_first + j -
                                                          u->part.q_first - i);
        if (!is_allowed(u, u->part.q_first + i, u->part.k_first + j) ||
            !is_in_window(u, u->part.q_first + i, u->part.k_first + j) ||
            (!*is_dead && s->has_mask &&
             u->mask[b * u->part.whole + u->part.k_first + j] == 0)) {
            w[j] = -INFINITY;
        }
        top = fmax(top, w[j]);
    }
    for (int64_t j = 0; j < u->part.kv_seq; j++) {
        sum += top > -INFINITY ? exp(w[j] - top) : 0;
    }
    for (int64_t j = 0; j < u->part.kv_seq; j++) {
        w[j] = sum > 0 ? exp(w[j] - top) / sum : 0;
    }
    return top + log(sum);
}

/* 0 or 1 / (1 - dropout) for a weight. */
static double factor(const struct setup *u, int64_t b, int64_t h, int64_t i,
                     int64_t j)
{
    const struct shape *s = &u->s;
    struct zb_philox_key key = zb_philox_site_key(
        u->p.philox.seed, u->p.philox.step, u->p.philox.site);
    int64_t key_row = u->part.k_first + j;
    uint64_t head = (uint64_t)(u->part.first_head + h);
    uint64_t row = (uint64_t)(u->part.q_first + i);
    uint64_t block = (head << 48) + (row << 24) + (uint64_t)key_row / 4;
    struct zb_philox_out x = zb_philox(key, block, (uint64_t)u->sample[b]);
    uint32_t r[4] = {x.x0, x.x1, x.x2, x.x3};

    if (s->dropout == 0) {
        return 1;
    }
    return r[key_row % 4] < s->dropout * 4294967296.0 ? 0
                                                      : 1 / (1 - s->dropout);
}

static void reference_query(struct setup *u, int64_t b, int64_t h, int64_t i)
{
    const struct shape *s = &u->s;
    const struct zb_k_attention_fwd *p = &u->p;
    int64_t kv = h * s->kv_heads / s->q_heads, row = s->q_heads * s->dim;
    double w[256], dw[256], delta = 0;
    int is_dead;

    u->lse[(b * s->q_heads + h) * s->seq + i] =
        weights(u, b, h, i, w, &is_dead);
    for (int64_t j = 0; j < u->part.kv_seq; j++) {
        double f = factor(u, b, h, i, j);

        dw[j] = 0;
        for (int64_t d = 0; d < s->dim; d++) {
            double dout = u->dout[at(u, row, b, i, h, d)];
            int64_t v_at = key_at(u, p->v_row, b, j, kv, d);

            u->out[at(u, row, b, i, h, d)] += w[j] * f * u->v[v_at];
            u->dv[v_at] += w[j] * f * dout;
            dw[j] += f * dout * u->v[v_at];
        }
        delta += w[j] * dw[j];
    }
    for (int64_t j = 0; j < u->part.kv_seq && !is_dead; j++) {
        double ds = w[j] * (dw[j] - delta) * p->scale;

        for (int64_t d = 0; d < s->dim; d++) {
            int64_t q_at = at(u, p->q_row, b, i, h, d);
            int64_t k_at = key_at(u, p->k_row, b, j, kv, d);

            u->dq[q_at] += ds * u->k[k_at];
            u->dk[k_at] += ds * u->q[q_at];
        }
    }
}

static void reference(struct setup *u)
{
    const struct shape *s = &u->s;

    u->out = ops_zeros(u->out_n);
    u->lse = ops_zeros(s->batch * s->q_heads * s->seq);
    u->dq = ops_zeros(u->q_n);
    u->dk = s->is_packed ? u->dq + s->q_heads * s->dim : ops_zeros(u->k_n);
    u->dv = s->is_packed ? u->dk + s->kv_heads * s->dim : ops_zeros(u->k_n);
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t h = 0; h < s->q_heads; h++) {
            for (int64_t i = 0; i < s->seq; i++) {
                reference_query(u, b, h, i);
            }
        }
    }
}

static void run_forward(void *ctx)
{
    struct setup *u = ctx;
    struct zb_k_attention_fwd *p = &u->p;

    ops_run(ZB_K_attention_fwd, p, OPS_OUT(p->out, p->lse),
            OPS_IN(p->q, u->s.is_packed ? NULL : p->k,
                   u->s.is_packed ? NULL : p->v, u->sample_dev, u->mask_dev,
                   u->slopes_dev));
}

static struct zb_k_attention_bwd backward_params(struct setup *u)
{
    const struct shape *s = &u->s;
    struct zb_k_attention_bwd bwd = {.fwd = u->p, .dout = u->dout_dev};
    struct zb_k_attention_fwd *p = &u->p;

    u->dq_dev = ops_blank(u->q_n);
    if (s->is_packed) {
        u->dk_dev = u->dq_dev + s->q_heads * s->dim;
        u->dv_dev = u->dk_dev + s->kv_heads * s->dim;
    } else {
        u->dk_dev = ops_blank(u->k_n);
        u->dv_dev = ops_blank(u->k_n);
    }
    bwd.dq = u->dq_dev;
    bwd.dk = u->dk_dev;
    bwd.dv = u->dv_dev;
    bwd.dq_row = p->q_row;
    bwd.dk_row = p->k_row;
    bwd.dv_row = p->v_row;
    bwd.dq_batch = p->q_batch;
    bwd.dk_batch = p->k_batch;
    bwd.dv_batch = p->v_batch;
    bwd.dq_head = bwd.dk_head = bwd.dv_head = s->dim;
    return bwd;
}

static void run_backward(struct setup *u)
{
    const struct shape *s = &u->s;
    const struct zb_k_attention_fwd *p = &u->p;
    struct zb_k_attention_bwd bwd = backward_params(u);

    ops_run(ZB_K_attention_bwd, &bwd,
            OPS_OUT(u->dq_dev, s->is_packed ? NULL : u->dk_dev,
                    s->is_packed ? NULL : u->dv_dev),
            OPS_IN(p->q, s->is_packed ? NULL : p->k, s->is_packed ? NULL : p->v,
                   p->out, p->lse, u->dout_dev, u->sample_dev, u->mask_dev,
                   u->slopes_dev));
}

/* Queries without a key in this part or window: any finite output will do, and
 * an lse next to which every other counts. */
static void settle_keyless(struct setup *u)
{
    const struct shape *s = &u->s;
    int64_t n_lse = s->batch * s->q_heads * s->seq, row = s->q_heads * s->dim;
    double *lse = ops_zeros(n_lse), *out = ops_zeros(u->out_n);

    ops_get(u->p.lse, n_lse, lse);
    ops_get(u->p.out, u->out_n, out);
    for (int64_t r = 0; r < n_lse; r++) {
        int64_t i = r % s->seq, bh = r / s->seq;
        int64_t first = at(u, row, bh / s->q_heads, i, bh % s->q_heads, 0);

        if (u->lse[r] > -INFINITY) {
            continue;
        }
        CU_ASSERT(lse[r] < -1e29 && isfinite(lse[r]));
        u->lse[r] = lse[r];
        for (int64_t d = first; d < first + s->dim; d++) {
            CU_ASSERT(isfinite(out[d]));
            u->out[d] = out[d];
        }
    }
}

static void check_shape(const struct shape *s, const struct part *part)
{
    struct setup u;
    double tol = OPS_TOL(3e-6, 1e-13);

    make(&u, s, part);
    upload(&u);
    reference(&u);
    run_forward(&u);
    settle_keyless(&u);
    ops_expect("out", u.p.out, u.out_n, u.out, tol);
    ops_expect("lse", u.p.lse, s->batch * s->q_heads * s->seq, u.lse, tol);
    if (part != NULL) {
        return; /* gradients take an lse over all keys */
    }
    run_backward(&u);
    if (s->is_packed) {
        ops_expect("dqkv", u.dq_dev, u.q_n, u.dq, tol);
        return;
    }
    ops_expect("dq", u.dq_dev, u.q_n, u.dq, tol);
    ops_expect("dk", u.dk_dev, u.k_n, u.dk, tol);
    ops_expect("dv", u.dv_dev, u.k_n, u.dv, tol);
}

static void forward_and_backward_agree_with_formula(void)
{
    for (size_t k = 0; k < ZB_COUNT_OF(sights); k++) {
        sight = sights[k];
        for (size_t i = 0; i < ZB_COUNT_OF(shapes); i++) {
            ops_open(backend, 1);
            check_shape(&shapes[i], NULL);
            ops_close();
        }
        for (size_t i = 0; i < ZB_COUNT_OF(partial); i++) {
            ops_open(backend, 1);
            check_shape(&partial[i].s, &partial[i].part);
            ops_close();
        }
    }
    sight = sights[0];
}

/* ---- by parts ------------------------------------------------------------ */

enum { N_PARTS = 3 };

struct parts {
    struct setup *u;
    int64_t first[N_PARTS + 1];
    zb_real *more, *more_lse;
};

/* The forward parameters of queries of part a and keys of part b. */
static struct zb_k_attention_fwd part_params(const struct parts *c, int a,
                                             int b)
{
    struct zb_k_attention_fwd p = c->u->p;

    p.seq = c->first[a + 1] - c->first[a];
    p.kv_seq = c->first[b + 1] - c->first[b];
    p.q_first = c->first[a];
    p.k_first = c->first[b];
    p.q = (const zb_real *)p.q + p.q_first * p.q_row;
    p.k = (const zb_real *)p.k + p.k_first * p.k_row;
    p.v = (const zb_real *)p.v + p.k_first * p.v_row;
    p.out = (zb_real *)p.out + p.q_first * p.q_heads * p.head_dim;
    p.lse += p.q_first;
    return p;
}

static void run_part(const struct parts *c, int a, int b, int is_first)
{
    struct zb_k_attention_fwd p = part_params(c, a, b);
    const struct setup *u = c->u;
    struct zb_k_attention_merge m = {
        .batch = p.batch, .seq = p.seq, .heads = p.q_heads,
        .head_dim = p.head_dim, .more = c->more, .more_lse = c->more_lse,
        .out = p.out, .lse = p.lse, .out_batch = p.out_batch,
        .lse_row = p.lse_row};

    if (!is_first) {
        p.out = c->more;
        p.lse = c->more_lse;
        p.out_batch = p.seq * p.q_heads * p.head_dim;
        p.lse_row = p.seq;
    }
    ops_run(ZB_K_attention_fwd, &p,
            is_first ? OPS_OUT(u->p.out, u->p.lse)
                     : OPS_OUT(c->more, c->more_lse),
            OPS_IN(u->p.q, u->s.is_packed ? NULL : u->p.k,
                   u->s.is_packed ? NULL : u->p.v, u->sample_dev, u->mask_dev,
                   u->slopes_dev));
    if (!is_first) {
        ops_run(ZB_K_attention_merge, &m, OPS_OUT(u->p.out, u->p.lse),
                OPS_IN(c->more, c->more_lse));
    }
}

static void run_part_backward(const struct parts *c, int a, int b,
                              const struct zb_k_attention_bwd *whole)
{
    struct zb_k_attention_bwd w = *whole;
    const struct setup *u = c->u;

    w.fwd = part_params(c, a, b);
    w.dout = (const zb_real *)w.dout +
             w.fwd.q_first * w.fwd.q_heads * w.fwd.head_dim;
    w.dq = (zb_real *)w.dq + w.fwd.q_first * w.dq_row;
    w.dk = (zb_real *)w.dk + w.fwd.k_first * w.dk_row;
    w.dv = (zb_real *)w.dv + w.fwd.k_first * w.dv_row;
    w.add_q = b != N_PARTS - 1;
    w.add_kv = a != 0;
    ops_run(ZB_K_attention_bwd, &w,
            OPS_OUT(u->dq_dev, u->s.is_packed ? NULL : u->dk_dev,
                    u->s.is_packed ? NULL : u->dv_dev),
            OPS_IN(u->p.q, u->s.is_packed ? NULL : u->p.k,
                   u->s.is_packed ? NULL : u->p.v, u->p.out, u->p.lse,
                   u->dout_dev, u->sample_dev, u->mask_dev, u->slopes_dev));
}

/* Keys from the last part to the first: some queries see none at first. */
static void check_parts(const struct shape *s)
{
    struct setup u;
    struct parts c = {.u = &u};
    struct zb_k_attention_bwd bwd;
    double tol = OPS_TOL(4e-6, 1e-13);

    c.first[1] = s->seq / 3;
    c.first[2] = s->seq / 2 + 1;
    c.first[3] = s->seq;
    make(&u, s, NULL);
    upload(&u);
    reference(&u);
    c.more = ops_blank(u.out_n);
    c.more_lse = ops_blank(s->batch * s->q_heads * s->seq);
    for (int a = 0; a < N_PARTS; a++) {
        for (int b = N_PARTS - 1; b >= 0; b--) {
            run_part(&c, a, b, b == N_PARTS - 1);
        }
    }
    settle_keyless(&u);
    ops_expect("out", u.p.out, u.out_n, u.out, tol);
    ops_expect("lse", u.p.lse, s->batch * s->q_heads * s->seq, u.lse, tol);
    bwd = backward_params(&u);
    for (int a = 0; a < N_PARTS; a++) {
        for (int b = N_PARTS - 1; b >= 0; b--) {
            run_part_backward(&c, a, b, &bwd);
        }
    }
    ops_expect("dq", u.dq_dev, u.q_n, u.dq, tol);
    if (!s->is_packed) {
        ops_expect("dk", u.dk_dev, u.k_n, u.dk, tol);
        ops_expect("dv", u.dv_dev, u.k_n, u.dv, tol);
    }
}

static void parts_merge_to_the_whole(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(shapes) * ZB_COUNT_OF(sights); i++) {
        const struct shape *s = &shapes[i % ZB_COUNT_OF(shapes)];

        sight = sights[i / ZB_COUNT_OF(shapes)];
        if (s->seq > 3) {
            ops_open(backend, 1);
            check_parts(s);
            ops_close();
        }
    }
    sight = sights[0];
}

static void gradients_agree_with_central_differences(void)
{
    for (size_t i = 1; OPS_IS_DOUBLE && i < ZB_COUNT_OF(shapes); i++) {
        struct setup u;
        struct ops_grad g = {.what = "dqkv", .forward = run_forward};
        double *dx;

        if (!shapes[i].is_packed || shapes[i].seq > 70) {
            continue;
        }
        ops_open(backend, 1);
        make(&u, &shapes[i], NULL);
        upload(&u);
        run_forward(&u);
        run_backward(&u);
        dx = ops_zeros(u.q_n);
        ops_get(u.dq_dev, u.q_n, dx);
        g.ctx = &u;
        g.x = (zb_real *)(uintptr_t)u.p.q;
        g.n = u.q_n;
        g.values = u.q;
        g.dx = dx;
        g.y = u.p.out;
        g.n_y = u.out_n;
        g.weight = u.dout;
        ops_expect_grad(&g);
        ops_close();
    }
}

static uint64_t hash_with(const struct shape *s, int n_threads)
{
    struct setup u;
    double *all;
    uint64_t hash;

    ops_open(backend, n_threads);
    make(&u, s, NULL);
    upload(&u);
    run_forward(&u);
    run_backward(&u);
    all = ops_zeros(u.q_n);
    ops_get(u.p.out, u.out_n, all);
    ops_get(u.dq_dev, u.q_n, all);
    hash = ops_hash();
    ops_close();
    return hash;
}

static void number_of_threads_does_not_change_a_bit(void)
{
    static const struct shape big[] = {
        {2, 200, 4, 4, 32, 1, 1, 1, 0.1},
        {3, 130, 6, 3, 20, 0, 0, 1, 0},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(big); i++) {
        uint64_t one = hash_with(&big[i], 1);

        CU_ASSERT_EQUAL(one, hash_with(&big[i], 2));
        CU_ASSERT_EQUAL(one, hash_with(&big[i], 3));
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(forward_and_backward_agree_with_formula),
        ZBT_CASE(parts_merge_to_the_whole),
        ZBT_CASE(gradients_agree_with_central_differences),
        ZBT_CASE(number_of_threads_does_not_change_a_bit),
    };
    int bad = 0;

    for (size_t i = 0; (backend = ops_backend(i)) != NULL; i++) {
        printf("backend %s\n", backend);
        bad |= zbt_run("attention", cases, ZB_COUNT_OF(cases));
    }
    return bad;
}
