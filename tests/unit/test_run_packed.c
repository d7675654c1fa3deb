/* SPDX-License-Identifier: MIT
 *
 * Queries, keys and values packed in one matrix, with fewer heads of keys than
 * ranks: some rows of a shard are copies, of which each rank has a part of the
 * gradient, and others are not. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zbt.h"

#define N_ROWS 8

enum { VOCAB = 64, WIDTH = 16, N_HEADS = 4, HEAD = 4, N_BLOCKS = 4 };

static const int64_t batch_seq[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ)};

static int block(struct zb_graph *g, int layer, int x, int64_t n_kv)
{
    const int64_t q = N_HEADS * HEAD, kv = n_kv * HEAD, all = q + 2 * kv;
    const struct zb_split packed = {
        0, 3, {q, kv, kv}, {N_HEADS, n_kv, n_kv}, 0};
    const struct zb_split rows = {1, 1, {q}, {N_HEADS}, 0};
    const int64_t heads[] = {batch_seq[0], batch_seq[1], ZB_DIM_REST, HEAD};
    const int64_t size[] = {q, kv, kv}, first[] = {0, q, q + kv};
    const struct zb_attn_opts o = {
        .causal = 1, .scale = 0.5, .dropout = 0.1, .key_mask = ZB_G_NONE};
    int part[3];
    int y = zb_g_linear(g, x, ru_param(g, "qkv", layer, all, WIDTH, packed),
                        ru_param(g, "bias", layer, all, 0, packed), 0);

    for (int i = 0; i < 3; i++) {
        part[i] =
            zb_g_reshape(g, zb_g_slice(g, y, first[i], size[i]), 4, heads);
    }
    y = zb_g_attention(g, part[0], part[1], part[2], &o);
    y = zb_g_linear(g, y, ru_param(g, "out", layer, WIDTH, q, rows), ZB_G_NONE,
                    0);
    return zb_g_add(g, x, y);
}

static struct zb_model *make(int64_t n_kv, const struct zb_parallel *par)
{
    const struct zb_split none = {0};
    struct zb_graph *g;
    struct zb_model *m;
    int ids, labels, x;

    ZBT_OK(zb_graph_new_parallel(par, &g));
    ids = zb_g_data(g, "input_ids", ZB_DTYPE_I32, 2, batch_seq);
    labels = zb_g_data(g, "labels", ZB_DTYPE_I32, 2, batch_seq);
    zb_g_layer(g, "embed");
    x = zb_g_embedding(g, ids, ru_param(g, "table", 0, VOCAB, WIDTH, none), -1);
    for (int i = 0; i < N_BLOCKS; i++) {
        zb_g_layer(g, "block");
        x = block(g, i, x, n_kv);
    }
    zb_g_layer(g, "head");
    x = zb_g_linear(g, x, ru_param(g, "head", 0, VOCAB, WIDTH, none), ZB_G_NONE,
                    0);
    zb_g_loss(g, zb_g_xent(g, x, labels), labels);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_model_from_graph(g, 1, N_BLOCKS, &m));
    return m;
}

static struct zb_session_opts opts_of(const struct ru_grid *g)
{
    struct zb_session_opts o = ru_grid_opts(g, N_ROWS);

    o.optim.eps = 1e-4;
    o.optim.max_norm = 0.5; /* so that the norm decides what is learned */
    return o;
}

static void check_grid(int64_t n_kv, const struct ru_grid *g, int zero_stage,
                       const struct ru_batch *b, const struct ru_result *want)
{
    const struct zb_parallel par = {g->tp, g->sp, g->mode, 8};
    struct zb_model *m = make(n_kv, &par);
    struct zb_session_opts o = opts_of(g);
    struct ru_result got;

    o.zero_stage = zero_stage;
    ru_train_two_steps(m, &o, b, &got);
    printf("\n  %d heads, pp %d, tp %d, sp %d, dp %d: norm off by %.2g, "
           "gradients by %.2g, weights by %.2g",
           (int)n_kv, g->pp, g->tp, g->sp, g->dp, got.norm - want->norm,
           ru_error(got.grads, want->grads, want->n),
           ru_error(got.params, want->params, want->n));
    CU_ASSERT_DOUBLE_EQUAL(got.loss, want->loss, 1e-5 * want->loss);
    CU_ASSERT_DOUBLE_EQUAL(got.norm, want->norm, 1e-5 * want->norm);
    CU_ASSERT(ru_error(got.grads, want->grads, want->n) < 1e-5);
    CU_ASSERT(ru_error(got.params, want->params, want->n) < 1e-5);
    ru_result_release(&got);
    zb_model_free(m);
}

static void packed_heads_learn_what_one_device_does(void)
{
    static const struct ru_grid one = {1, 1, 1, 1, ZB_SEQ_WHOLE};
    static const struct ru_grid grids[] = {
        {2, 2, 1, 1, ZB_SEQ_WHOLE},        {2, 4, 1, 1, ZB_SEQ_WHOLE},
        {1, 4, 1, 2, ZB_SEQ_WHOLE},        {2, 2, 1, 2, ZB_SEQ_SPLIT_GATHER},
        {1, 4, 1, 1, ZB_SEQ_SPLIT_GATHER}, {1, 4, 2, 1, ZB_SEQ_RING},
        {2, 2, 2, 1, ZB_SEQ_ALL_TO_ALL},
    };

    for (int64_t n_kv = 1; n_kv <= 2; n_kv++) {
        static const struct zb_parallel alone = {1, 1, ZB_SEQ_WHOLE, 8};
        struct zb_model *m = make(n_kv, &alone);
        struct zb_session_opts o = opts_of(&one);
        struct ru_result want;
        struct ru_batch b;

        ru_batch_init(&b, N_ROWS, RU_SEQ, 2);
        ru_train_two_steps(m, &o, &b, &want);
        CU_ASSERT(want.norm > 0.5);
        for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
            check_grid(n_kv, &grids[i], (int)(i % 2), &b, &want);
        }
        ru_batch_release(&b);
        ru_result_release(&want);
        zb_model_free(m);
    }
}

static enum zb_status do_settle(struct zb_worker *w, void *arg)
{
    (void)w, (void)arg;
    return ZB_OK;
}

/* Runs of a parameter that have copies are what the first rank with them has.
 */
static int n_other_copies(const struct zb_session *s, const struct zb_worker *w,
                          int p)
{
    struct zb_copies part[ZB_SPLIT_MAX];
    int n = zb_graph_param_copies(s->plan->g, p, part), n_wrong = 0;

    for (int i = 0; i < n; i++) {
        int tp = w->tp - w->tp % part[i].n_copies;
        const struct zb_worker *first =
            &s->worker[zb_device_of(s->plan, w->stage, tp)];
        const zb_real *a = w->value[p], *b = first->value[p];

        n_wrong += memcmp(a + part[i].first, b + part[i].first,
                          (size_t)part[i].n * sizeof(*a)) != 0;
    }
    return n_wrong;
}

static void copies_stay_equal(void)
{
    static const struct zb_parallel par = {4, 1, ZB_SEQ_WHOLE, 8};
    static const struct ru_grid g = {2, 4, 1, 2, ZB_SEQ_WHOLE};
    struct zb_model *m = make(2, &par);
    struct zb_session_opts o = opts_of(&g);
    struct zb_session *s = NULL;
    struct ru_batch b;

    o.backend = "cpu"; /* whose memory can be looked at */
    o.p2p = ZB_P2P_AUTO;
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int step = 0; step < 3; step++) {
        struct zb_step_result res = {.loss = 0};
        int n_wrong = 0;

        ZBT_OK(zb_train_step(s, &b.in, 1e-2, &res));
        ZBT_OK(zb_session_each(s, do_settle, NULL));
        for (int i = 0; i < s->plan->n_devices; i++) {
            const struct zb_worker *w = &s->worker[i];

            for (int k = 0; k < w->n_mine; k++) {
                n_wrong += n_other_copies(s, w, w->mine[k]);
            }
        }
        CU_ASSERT_EQUAL(n_wrong, 0);
    }
    ru_batch_release(&b);
    zb_session_free(s);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(packed_heads_learn_what_one_device_does),
        ZBT_CASE(copies_stay_equal),
    };

    return zbt_run("run_packed", cases, ZB_COUNT_OF(cases));
}
