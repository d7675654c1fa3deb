/* SPDX-License-Identifier: MIT
 *
 * Layouts that make sequences longer, to cut them evenly, against one device
 * that does not: microbatches of lengths of their own, attention with and
 * without causality, with dropout of its weights. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "run_util.h"
#include "zbt.h"

#define N_ROWS 8
#define N_MICRO 4
#define TOL 2e-5

static const int64_t lens[N_MICRO] = {11, 5, 9, 1};

static const int64_t batch_seq[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ)};

enum { VOCAB = 64, WIDTH = 16, N_HEADS = 4 };

/* Every token looks at all others. */
static int encoder_block(struct zb_graph *g, int layer, int x)
{
    const struct zb_split cols = {0, 1, {WIDTH}, {N_HEADS}, 0};
    const struct zb_split rows = {1, 1, {WIDTH}, {N_HEADS}, 0};
    const int64_t heads[] = {batch_seq[0], batch_seq[1], ZB_DIM_REST,
                             WIDTH / N_HEADS};
    const struct zb_attn_opts o = {
        .scale = 0.7, .dropout = 0.2, .key_mask = ZB_G_NONE};
    static const char *const names[] = {"q", "k", "v"};
    int part[3], y;

    for (int i = 0; i < 3; i++) {
        y = zb_g_linear(g, x, ru_param(g, names[i], layer, WIDTH, WIDTH, cols),
                        ZB_G_NONE, 0);
        part[i] = zb_g_reshape(g, y, 4, heads);
    }
    y = zb_g_attention(g, part[0], part[1], part[2], &o);
    y = zb_g_linear(g, y, ru_param(g, "out", layer, WIDTH, WIDTH, rows),
                    ZB_G_NONE, 0);
    return zb_g_add(g, x, y);
}

static struct zb_model *encoder(const struct zb_parallel *par)
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
    x = zb_g_position(g, x, ru_param(g, "places", 0, RU_SEQ, WIDTH, none), 0);
    for (int i = 0; i < 4; i++) {
        zb_g_layer(g, "block");
        x = encoder_block(g, i, x);
    }
    zb_g_layer(g, "head");
    x = zb_g_linear(g, x, ru_param(g, "head", 0, VOCAB, WIDTH, none), ZB_G_NONE,
                    0);
    zb_g_loss(g, zb_g_xent(g, x, labels), labels);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_model_from_graph(g, 1, 4, &m));
    return m;
}

static const ru_model_fn models[] = {encoder, ru_gpt2_on, ru_llama_on};

/* Two steps, and the loss of an evaluation with other parameters. */
static double train(const struct zb_model *m, int n_stages,
                    const struct ru_batch *b, struct ru_result *r)
{
    const struct zb_parallel *par = zb_graph_parallel(zb_model_graph(m));
    struct zb_session_opts o = ru_opts(n_stages, N_MICRO, N_ROWS);
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;

    o.optim.eps = 1e-4;
    printf("\n  tp %d, sp %d, mode %d: ", par->tp, par->sp, (int)par->mode);
    ru_train_two_steps(m, &o, b, r);
    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(zb_run_forward_only(s, &b->in, N_MICRO, ZB_RETURN_LOSS, &res));
    zb_session_free(s);
    return res.loss;
}

static void check_layout(ru_model_fn make, const struct zb_parallel *par,
                         const struct ru_batch *b, const struct ru_result *want,
                         double want_eval)
{
    struct zb_model *m = make(par);
    struct ru_result got;
    double eval = train(m, 2, b, &got);

    printf("loss off by %.2g, gradients by %.2g", got.loss - want->loss,
           ru_error(got.grads, want->grads, want->n));
    CU_ASSERT_DOUBLE_EQUAL(eval, want_eval, TOL * want_eval);
    CU_ASSERT_DOUBLE_EQUAL(got.loss, want->loss, TOL * want->loss);
    CU_ASSERT_DOUBLE_EQUAL(got.norm, want->norm, TOL * want->norm);
    CU_ASSERT_FATAL(got.n == want->n);
    CU_ASSERT(ru_error(got.grads, want->grads, want->n) <= TOL);
    CU_ASSERT(ru_error(got.params, want->params, want->n) <= 1e-4);
    ru_result_release(&got);
    zb_model_free(m);
}

static void check_model(ru_model_fn make)
{
    static const struct zb_parallel one = {1, 1, ZB_SEQ_WHOLE, 8};
    static const struct zb_parallel pars[] = {
        {1, 2, ZB_SEQ_ALL_TO_ALL, 8},   {1, 2, ZB_SEQ_RING, 8},
        {1, 3, ZB_SEQ_RING, 8},         {2, 2, ZB_SEQ_ALL_TO_ALL, 8},
        {2, 2, ZB_SEQ_RING, 8},         {2, 1, ZB_SEQ_SPLIT_GATHER, 8},
        {4, 1, ZB_SEQ_SPLIT_GATHER, 8},
    };
    struct zb_model *m = make(&one);
    struct ru_result want;
    struct ru_batch b;
    double eval;

    ru_batch_init(&b, N_ROWS, 11, 3);
    b.in.micro_len = lens;
    eval = train(m, 1, &b, &want);
    for (size_t i = 0; i < ZB_COUNT_OF(pars); i++) {
        check_layout(make, &pars[i], &b, &want, eval);
    }
    ru_batch_release(&b);
    ru_result_release(&want);
    zb_model_free(m);
}

static void padded_layouts_learn_what_one_device_does(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(models); i++) {
        check_model(models[i]);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(padded_layouts_learn_what_one_device_does),
    };

    return zbt_run("run_padding", cases, ZB_COUNT_OF(cases));
}
