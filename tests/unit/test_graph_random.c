/* SPDX-License-Identifier: MIT
 *
 * Random graphs: tensors of early layers used again in late ones, slices that
 * tile, overlap or leave gaps, tensors used several times, frozen and unused
 * parameters. Every cut gives the same bits (float build), and the gradient is
 * the derivative of the loss (double build).
 */
#include "config.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define H 8
#define ROWS 3
#define SEQ 5
#define VOCAB 11
#define MAX_POOL 64

struct maker {
    struct zb_graph *g;
    struct zbt_rng rng;
    int pool[MAX_POOL]; /* tensors [B,T,H] */
    int n_pool;
    int n_params;
    int mask;
    int packed; /* [B,T,2H], of some layer; or -1 */
};

static int pick(struct maker *m, int n)
{
    return (int)zbt_rand_in(&m->rng, 0, n - 1);
}

/* A tensor: mostly a late one, sometimes any. */
static int any(struct maker *m)
{
    int back = pick(m, 4) == 0 ? m->n_pool : (m->n_pool < 3 ? m->n_pool : 3);

    return m->pool[m->n_pool - 1 - pick(m, back)];
}

static void put(struct maker *m, int x)
{
    if (m->n_pool < MAX_POOL) {
        m->pool[m->n_pool++] = x;
    }
}

/* A parameter, frozen one time in six, tied to an earlier one in twelve. */
static int weight(struct maker *m, int n_dims, int64_t a, int64_t b,
                  enum zb_init init)
{
    const int64_t dim[] = {a, b};
    struct zb_param_opts opts = {.init = init, .is_frozen = pick(m, 6) == 0};
    char name[64];
    int id = m->n_params++;

    if (pick(m, 12) == 0 && n_dims == 2) {
        id = 1000 + (int)(a * 100 + b); /* one name per shape */
    }
    snprintf(name, sizeof(name), "p%d", id);
    return zb_g_param(m->g, name, n_dims, dim, &opts);
}

static int linear(struct maker *m, int x, int64_t n_in, int64_t n_out)
{
    int by_in = pick(m, 2);
    int w = by_in ? weight(m, 2, n_in, n_out, ZB_INIT_NORMAL)
                  : weight(m, 2, n_out, n_in, ZB_INIT_NORMAL);
    int b = pick(m, 2) ? weight(m, 1, n_out, 0, ZB_INIT_ZEROS) : ZB_G_NONE;

    return zb_g_linear(m->g, x, w, b, by_in);
}

static int norm(struct maker *m, int x)
{
    int gamma = weight(m, 1, H, 0, ZB_INIT_ONES);

    if (pick(m, 2)) {
        return zb_g_rmsnorm(m->g, x, gamma, 1e-3);
    }
    return zb_g_layernorm(m->g, x, gamma,
                          pick(m, 2) ? weight(m, 1, H, 0, ZB_INIT_ZEROS)
                                     : ZB_G_NONE,
                          1e-3);
}

static int heads(struct maker *m, int x, int64_t n)
{
    const int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), n, 4};

    return zb_g_reshape(m->g, x, 4, dim);
}

static int rotate(struct maker *m, int x)
{
    const int64_t dim[] = {SEQ, 2};
    zb_real c[SEQ * 2], s[SEQ * 2];
    int cos_table, sin_table;

    for (int i = 0; i < SEQ * 2; i++) {
        c[i] = (zb_real)cos(0.3 * i);
        s[i] = (zb_real)sin(0.3 * i);
    }
    cos_table = zb_g_const(m->g, "cos", 2, dim, c);
    sin_table = zb_g_const(m->g, "sin", 2, dim, s);
    return zb_g_rope(m->g, x, cos_table, sin_table, pick(m, 2));
}

/* Packed q, k, v; the slices tile, or share a part. */
static int attention(struct maker *m, int x)
{
    struct zb_attn_opts opts = {.causal = pick(m, 2),
                                .scale = 0.5,
                                .dropout = pick(m, 2) ? 0.2 : 0,
                                .key_mask = pick(m, 2) ? m->mask : ZB_G_NONE};
    int shared = pick(m, 2);
    int qkv = linear(m, x, H, shared ? H + 4 : H + 8);
    int q = heads(m, zb_g_slice(m->g, qkv, 0, H), 2);
    int k = heads(m, zb_g_slice(m->g, qkv, H, 4), 1);
    int v = shared ? k : heads(m, zb_g_slice(m->g, qkv, H + 4, 4), 1);

    if (pick(m, 2)) {
        q = rotate(m, q);
        k = rotate(m, k);
    }
    return linear(m, zb_g_attention(m->g, q, k, v, &opts), H, H);
}

/* Halves of a packed projection; also overlapping, or with a gap. */
static int gated(struct maker *m, int x)
{
    int packed = linear(m, x, H, 2 * H + 2);
    int first = pick(m, 4), second = H + 2 - pick(m, 4);
    int a = zb_g_slice(m->g, packed, first, H);
    int b = zb_g_slice(m->g, packed, second, H);

    return zb_g_gated(m->g, a, b, ZB_ACT_SILU);
}

/* Columns of a packed projection that tile it, each through another op. */
static int tiles(struct maker *m, int x)
{
    int packed = linear(m, x, H, 2 * H);
    int a = zb_g_slice(m->g, packed, 0, H);
    int b = zb_g_slice(m->g, packed, H, H);

    a = pick(m, 2) ? norm(m, a) : zb_g_act(m->g, a, ZB_ACT_GELU_TANH);
    b = pick(m, 2) ? b : zb_g_scale(m->g, b, -0.7);
    if (pick(m, 3) == 0) { /* the whole is read, too */
        a = zb_g_add(m->g, a, linear(m, packed, 2 * H, H));
    }
    return pick(m, 2) ? zb_g_add(m->g, a, b) : zb_g_add(m->g, a, any(m));
}

/* Half of a packed tensor that other layers take slices of. */
static int distant_slice(struct maker *m)
{
    int first = pick(m, 2) * H;

    if (m->packed < 0 || pick(m, 4) == 0) {
        m->packed = linear(m, any(m), H, 2 * H);
    }
    return zb_g_add(m->g, any(m), zb_g_slice(m->g, m->packed, first, H));
}

static void random_op(struct maker *m)
{
    int x = any(m);

    switch (pick(m, 11)) {
    case 0:
        put(m, linear(m, x, H, H));
        break;
    case 1:
        put(m, norm(m, x));
        break;
    case 2:
        put(m, zb_g_add(m->g, x, attention(m, norm(m, x))));
        break;
    case 3:
        put(m, gated(m, x));
        break;
    case 4:
        put(m, zb_g_add(m->g, x, any(m)));
        break;
    case 5:
        put(m, tiles(m, x));
        break;
    case 6:
        put(m, zb_g_dropout(m->g, x, 0.3));
        break;
    case 7:
        put(m, zb_g_act(m->g, x, ZB_ACT_GELU_ERF));
        break;
    case 8:
        put(m, zb_g_scale(m->g, x, 0.6));
        break;
    case 9:
        put(m, distant_slice(m));
        break;
    default: /* a feed-forward block, as models have */
        x = zb_g_add(m->g, x,
                     linear(m, zb_g_act(m->g, linear(m, norm(m, x), H, 12),
                                        ZB_ACT_SILU),
                            12, H));
        put(m, x);
        break;
    }
}

static void finish(struct maker *m, int labels)
{
    int x = m->pool[m->n_pool - 1], early = m->pool[pick(m, m->n_pool)];
    int logits, loss;

    zb_g_layer(m->g, "end");
    x = norm(m, zb_g_add(m->g, zb_g_scale(m->g, x, 0.5), early));
    if (pick(m, 4) == 0) {
        if (pick(m, 2)) { /* the gradient of x comes over a boundary */
            zb_g_layer(m->g, "last");
        }
        zb_g_output(m->g, "out", x);
        zb_g_loss(m->g, pick(m, 2) ? zb_g_scale(m->g, x, 0.1) : x, ZB_G_NONE);
        return;
    }
    logits = linear(m, x, H, VOCAB);
    zb_g_output(m->g, "out", pick(m, 2) ? logits : early);
    loss = zb_g_xent(m->g, logits, labels);
    if (pick(m, 3) == 0) {
        loss = zb_g_add(m->g, zb_g_scale(m->g, loss, 0.5),
                        zb_g_xent(m->g, linear(m, x, H, VOCAB), labels));
    }
    zb_g_loss(m->g, loss, labels);
}

/* padding_idx leaves a row out of the gradient, which no derivative does. */
static struct zb_graph *make_graph(unsigned long long seed, int padding_idx)
{
    const int64_t bt[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ)};
    struct maker m = {.rng = {seed}, .packed = -1};
    int ids, labels, wpe, n_layers;

    ZBT_OK(zb_graph_new(&m.g));
    ids = zb_g_data(m.g, "ids", ZB_DTYPE_I32, 2, bt);
    labels = zb_g_data(m.g, "labels", ZB_DTYPE_I32, 2, bt);
    m.mask = zb_g_data(m.g, "mask", ZB_DTYPE_I32, 2, bt);
    zb_g_layer(m.g, "begin");
    put(&m, zb_g_embedding(m.g, ids, weight(&m, 2, VOCAB, H, ZB_INIT_NORMAL),
                           padding_idx));
    wpe = weight(&m, 2, SEQ + 1, H, ZB_INIT_NORMAL);
    put(&m, zb_g_position(m.g, any(&m), wpe, 1));
    n_layers = 3 + pick(&m, 6);
    for (int l = 0; l < n_layers; l++) {
        zb_g_layer(m.g, "middle");
        for (int i = pick(&m, 4); i >= 0; i--) {
            random_op(&m);
        }
    }
    finish(&m, labels);
    ZBT_OK(zb_graph_finish(m.g));
    return m.g;
}

/* ---- data ---------------------------------------------------------------- */

struct fields {
    int32_t ids[ROWS * SEQ], labels[ROWS * SEQ], mask[ROWS * SEQ];
    const void *data[3];
    struct rig_batch batch;
};

static void make_fields(struct fields *f, unsigned long long seed)
{
    struct zbt_rng rng = {seed ^ 99};

    for (int i = 0; i < ROWS * SEQ; i++) {
        f->ids[i] = (int32_t)zbt_rand_in(&rng, 0, VOCAB - 1);
        f->labels[i] = (int32_t)zbt_rand_in(&rng, 0, VOCAB - 1);
        f->mask[i] = i % SEQ == 0 || zbt_rand_in(&rng, 0, 3) > 0;
    }
    f->labels[2] = -100;
    f->data[0] = f->ids;
    f->data[1] = f->labels;
    f->data[2] = f->mask;
    f->batch = (struct rig_batch){ROWS, SEQ, f->data};
}

/* A cut into n chunks, anywhere, empty ones included; the last layer last. */
static void random_cut(struct zbt_rng *rng, int n_layers, int n, int *first)
{
    first[0] = 0;
    first[n] = n_layers;
    for (int c = 1; c < n; c++) {
        first[c] = (int)zbt_rand_in(rng, 0, n_layers - 1);
        for (int k = c; k > 1 && first[k - 1] > first[k]; k--) {
            int t = first[k];

            first[k] = first[k - 1];
            first[k - 1] = t;
        }
    }
}

static int n_seeds(void)
{
    return zbt_is_long() ? 1000 : 60;
}

/* ---- tests --------------------------------------------------------------- */

static void check_cuts(unsigned long long seed, const char *backend)
{
    static const int n_chunks[] = {2, 3, 4, 8, 13};
    static const int rows[] = {2, 1};
    struct zb_graph *g = make_graph(seed, 3);
    zb_real **params = rig_params(g, seed);
    struct zbt_rng rng = {seed + 5};
    struct fields f;
    struct rig_result one, cut;
    int whole[] = {0, zb_graph_n_layers(g)}, first[16];
    struct rig_opts o = {.n_chunks = 1,
                         .first = whole,
                         .n_micro = 2,
                         .rows = rows,
                         .seed = 7,
                         .step = 3};

    make_fields(&f, seed);
    rig_run(g, params, &f.batch, &o, &one);
    o.backend = backend;
    for (size_t i = 0; i < ZB_COUNT_OF(n_chunks); i++) {
        random_cut(&rng, zb_graph_n_layers(g), n_chunks[i], first);
        o.n_chunks = n_chunks[i];
        o.first = first;
        o.w_order = (enum rig_w_order)((seed + i) % RIG_N_W_ORDERS);
        o.delay_seed = seed;
        o.recompute = (enum zb_recompute)((seed + i) % 3);
        rig_run(g, params, &f.batch, &o, &cut);
        if (!rig_same_bits(&one, &cut)) {
            printf("\nseed %llu, %d chunks, recompute %s\n", seed, n_chunks[i],
                   zb_recompute_str(o.recompute));
            CU_FAIL("a cut or recomputing changes bits");
        }
        rig_result_free(&cut);
    }
    rig_result_free(&one);
    rig_params_free(g, params);
    zb_graph_free(g);
}

static void any_cut_same_bits(void)
{
    for (int seed = 1; seed <= n_seeds(); seed++) {
        check_cuts((unsigned long long)seed, NULL);
    }
}

/* What one chunk holds between F and B. */
static double held(const struct zb_graph *g, enum zb_recompute recompute)
{
    struct zb_bind max = {{ROWS, SEQ}};
    struct zb_chunk *c;
    struct zb_chunk_info info;

    ZBT_OK(zb_chunk_new(g, 1, zb_graph_n_layers(g), &max, recompute, &c));
    info = zb_chunk_info(c);
    zb_chunk_free(c);
    return (double)(info.bytes[ZB_SPACE_FB] + info.bytes[ZB_SPACE_FW]) +
           (info.in_until > ZB_PASS_F ? (double)info.bytes[ZB_SPACE_IN] : 0);
}

static void recomputing_never_holds_more(void)
{
    double sum[3] = {0, 0, 0};

    for (int seed = 1; seed <= n_seeds(); seed++) {
        struct zb_graph *g = make_graph((unsigned long long)seed, 3);
        double bytes[3];

        for (int i = 0; i < 3; i++) {
            bytes[i] = held(g, (enum zb_recompute)i);
            CU_ASSERT(bytes[i] <= bytes[0]);
            sum[i] += bytes[i];
        }
        zb_graph_free(g);
    }
    CU_ASSERT(sum[1] < 0.95 * sum[0] && sum[2] < 0.7 * sum[0]);
}

static void any_cut_on_check_backend_same_bits(void)
{
    for (int seed = 1; seed <= 6; seed++) {
        check_cuts((unsigned long long)seed, "check");
    }
}

#ifdef ZB_REAL_IS_DOUBLE
static double loss_at(const struct zb_graph *g, zb_real **params,
                      const struct fields *f, const struct rig_opts *o)
{
    struct rig_opts forward = *o;
    struct rig_result r;
    double loss;

    forward.no_backward = 1;
    rig_run(g, params, &f->batch, &forward, &r);
    loss = r.loss;
    rig_result_free(&r);
    return loss;
}

static void move(const struct zb_graph *g, zb_real **params, double step,
                 unsigned long long seed)
{
    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        int64_t n = zb_shape_elems(&info.shape);
        zb_real *d = calloc((size_t)n, sizeof(*d));

        rig_random(seed + 31 * (unsigned long long)p, d, n, 1);
        for (int64_t i = 0; info.has_gradient && i < n; i++) {
            params[p][i] += step * d[i];
        }
        free(d);
    }
}

/* The gradient times the direction that move() goes in. */
static double slope(const struct zb_graph *g, const struct rig_result *r,
                    unsigned long long seed)
{
    double sum = 0;

    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        int64_t n = zb_shape_elems(&info.shape);
        zb_real *d = calloc((size_t)n, sizeof(*d));
        double *grad = rig_param_grad(g, r, p);

        rig_random(seed + 31 * (unsigned long long)p, d, n, 1);
        for (int64_t i = 0; i < n; i++) {
            sum += grad[i] * d[i];
        }
        free(grad);
        free(d);
    }
    return sum;
}

static double gradient_norm(const struct rig_result *r)
{
    double sum = 0;

    for (int u = 0; u < r->n_uses; u++) {
        for (int64_t i = 0; i < r->n_grad[u]; i++) {
            sum += r->grad[u][i] * r->grad[u][i];
        }
    }
    return sqrt(sum);
}

static void check_slope(unsigned long long seed)
{
    const double h = 1e-5;
    struct zb_graph *g = make_graph(seed, -1);
    zb_real **params = rig_params(g, seed);
    struct zbt_rng rng = {seed};
    struct fields f;
    struct rig_result r;
    int first[4];
    struct rig_opts o = {.n_chunks = 3, .first = first, .seed = 7, .step = 3};
    double got, at[5], want;

    make_fields(&f, seed);
    random_cut(&rng, zb_graph_n_layers(g), 3, first);
    rig_run(g, params, &f.batch, &o, &r);
    got = slope(g, &r, seed);
    move(g, params, -2 * h, seed);
    for (int i = 0; i < 5; i++) {
        at[i] = loss_at(g, params, &f, &o);
        move(g, params, h, seed);
    }
    /* Fourth order in h. */
    want = (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * h);
    if (!(fabs(got - want) <= 1e-6 * (fabs(got) + gradient_norm(&r)))) {
        printf("\nseed %llu: gradient %.10g, differences %.10g\n", seed, got,
               want);
        CU_FAIL("the gradient is not the derivative");
    }
    rig_result_free(&r);
    rig_params_free(g, params);
    zb_graph_free(g);
}

static void gradient_equals_central_differences(void)
{
    for (int seed = 1; seed <= 3 * n_seeds(); seed++) {
        check_slope((unsigned long long)seed);
    }
}
#endif

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(any_cut_same_bits),
        ZBT_CASE(recomputing_never_holds_more),
        ZBT_CASE(any_cut_on_check_backend_same_bits),
#ifdef ZB_REAL_IS_DOUBLE
        ZBT_CASE(gradient_equals_central_differences),
#endif
    };

    return zbt_run("graph_random", cases, ZB_COUNT_OF(cases));
}
