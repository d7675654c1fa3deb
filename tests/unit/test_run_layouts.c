/* SPDX-License-Identifier: MIT
 *
 * Layouts against one device: the same model, batches and optimizer on every
 * grid of devices give the same losses and weights up to the order of sums, and
 * the same bits whenever a layout is run again. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run_util.h"
#include "zb/machine.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_STEPS 20
#define N_ROWS 16
#define LR 1e-3

/* What a run leaves. */
struct record {
    double loss[N_STEPS], norm[N_STEPS];
    size_t n;
    zb_real *params;
};

static struct zb_session_opts opts_of(const struct ru_grid *g, double max_norm)
{
    struct zb_session_opts o = ru_grid_opts(g, N_ROWS);

    o.optim.eps = 1e-4;
    o.optim.max_norm = max_norm;
    o.cut = ZB_CUT_UNIFORM; /* another cut has other shards: of equal sums, but
                               norms in another order */
    return o;
}

/* N_STEPS steps, each on a batch of its own. */
static void train(const struct zb_model *m, const struct zb_session_opts *o,
                  struct record *r)
{
    struct zb_session *s = NULL;

    r->n = ru_n_elems(m);
    r->params = zb_alloc_array(r->n, sizeof(*r->params));
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->params);
    ZBT_OK(zb_session_new(m, o, &s));
    for (int i = 0; i < N_STEPS && s != NULL; i++) {
        struct zb_step_result res = {.loss = 0};
        struct ru_batch b;

        ru_batch_init(&b, N_ROWS, RU_SEQ, (unsigned long long)i + 1);
        ZBT_OK(zb_train_step(s, &b.in, LR, &res));
        r->loss[i] = res.loss;
        r->norm[i] = res.grad_norm;
        ru_batch_release(&b);
    }
    if (s != NULL) {
        ru_get_params(s, r->params);
    }
    zb_session_free(s);
}

static int same_bits(const struct record *a, const struct record *b)
{
    return memcmp(a->loss, b->loss, sizeof(a->loss)) == 0 &&
           memcmp(a->norm, b->norm, sizeof(a->norm)) == 0 &&
           memcmp(a->params, b->params, a->n * sizeof(*a->params)) == 0;
}

static void describe(const struct ru_grid *g, const char *what)
{
    printf("\npp %d, tp %d, sp %d, dp %d, mode %d: %s\n", g->pp, g->tp, g->sp,
           g->dp, (int)g->mode, what);
}

/* Within the bounds that summation order explains. */
static void check_close(const struct ru_grid *g, const struct record *one,
                        const struct record *r)
{
    double error = ru_error(r->params, one->params, r->n);

    for (int i = 0; i < N_STEPS; i++) {
        if (!(fabs(r->loss[i] - one->loss[i]) <= 1e-5 * one->loss[i]) ||
            !(fabs(r->norm[i] - one->norm[i]) <= 1e-4 * one->norm[i])) {
            describe(g, "a loss or norm differs");
            printf("step %d: loss %.9g, not %.9g; norm %.9g, not %.9g\n",
                   i + 1, r->loss[i], one->loss[i], r->norm[i], one->norm[i]);
            CU_FAIL("a loss or norm differs");
            return;
        }
    }
    if (!(error <= 1e-4)) {
        describe(g, "weights differ");
        printf("error %g\n", error);
        CU_FAIL("weights differ");
    }
}

static void check_same(const struct ru_grid *g, const struct record *a,
                       const struct record *b, const char *what)
{
    if (!same_bits(a, b)) {
        describe(g, what);
        for (int i = 0; i < N_STEPS; i++) {
            if (a->loss[i] != b->loss[i] || a->norm[i] != b->norm[i]) {
                printf("step %d: loss %a and %a, norm %a and %a\n", i + 1,
                       a->loss[i], b->loss[i], a->norm[i], b->norm[i]);
                break;
            }
        }
        CU_FAIL("bits differ");
    }
}

static void check_again(const struct zb_model *m,
                        const struct zb_session_opts *o,
                        const struct ru_grid *g, const struct record *first,
                        const char *what)
{
    struct record again;

    train(m, o, &again);
    check_same(g, first, &again, what);
    zb_free(again.params);
}

/* Every way of doing the same on one grid gives the same bits; all of them are
 * what one device does. */
static void check_grid(ru_model_fn make, const struct ru_grid *g,
                       const struct record *one, double max_norm)
{
    const struct zb_parallel par = {
        .tp = g->tp,
        .sp = g->sp,
        .mode = g->mode,
        .vocab_multiple = 24, /* 64 words: some ranks have padding only */
    };
    struct zb_model *m = make(&par);
    struct zb_session_opts o = opts_of(g, max_norm);
    struct record first;

    train(m, &o, &first);
    check_close(g, one, &first);
    o.post_validation = 0;
    o.overlap_reduce = 0;
    o.overlap_gather = 0;
    check_again(m, &o, g, &first, "without overlap and post-validation");
    if (g->dp * g->sp > 1) {
        o.zero_stage = 0;
        check_again(m, &o, g, &first, "zero_stage 0");
    }
    zb_free(first.params);
    zb_model_free(m);
}

static const struct ru_grid grids[] = {
    {1, 1, 1, 2, ZB_SEQ_WHOLE},
    {2, 1, 1, 2, ZB_SEQ_WHOLE},
    {1, 1, 1, 8, ZB_SEQ_WHOLE},
    {4, 1, 1, 2, ZB_SEQ_WHOLE},
    {1, 2, 1, 1, ZB_SEQ_WHOLE},
    {2, 2, 1, 1, ZB_SEQ_WHOLE},
    {2, 2, 1, 2, ZB_SEQ_WHOLE},
    {4, 2, 1, 2, ZB_SEQ_WHOLE},
    {1, 4, 1, 1, ZB_SEQ_WHOLE},
    {1, 2, 1, 1, ZB_SEQ_SPLIT_GATHER},
    {2, 2, 1, 1, ZB_SEQ_SPLIT_GATHER},
    {2, 2, 1, 2, ZB_SEQ_SPLIT_GATHER},
    {4, 2, 1, 2, ZB_SEQ_SPLIT_GATHER},
    {1, 4, 1, 1, ZB_SEQ_SPLIT_GATHER},
    {1, 1, 2, 1, ZB_SEQ_ALL_TO_ALL},
    {2, 1, 2, 1, ZB_SEQ_ALL_TO_ALL},
    {2, 2, 2, 1, ZB_SEQ_ALL_TO_ALL},
    {1, 2, 2, 2, ZB_SEQ_ALL_TO_ALL},
    {2, 2, 2, 2, ZB_SEQ_ALL_TO_ALL},
    {1, 1, 4, 1, ZB_SEQ_ALL_TO_ALL},
    {1, 1, 2, 1, ZB_SEQ_RING},
    {2, 1, 2, 1, ZB_SEQ_RING},
    {2, 2, 2, 1, ZB_SEQ_RING},
    {1, 2, 2, 2, ZB_SEQ_RING},
    {2, 2, 2, 2, ZB_SEQ_RING},
    /* llama has fewer key heads than these have tp ranks: copies to sum */
    {1, 4, 1, 2, ZB_SEQ_WHOLE},
    {1, 1, 3, 1, ZB_SEQ_RING},
    {1, 4, 1, 2, ZB_SEQ_SPLIT_GATHER},
    {1, 4, 2, 1, ZB_SEQ_RING},
};

/* Post-validation has something to undo, and something to leave, only where
 * clipping comes and goes. */
static void check_clipping(const struct record *r, double max_norm)
{
    int n_clipped = 0, n_turns = 0;

    for (int i = 0; i < N_STEPS; i++) {
        n_clipped += r->norm[i] > max_norm;
        n_turns += i > 0 && (r->norm[i] > max_norm) !=
                                (r->norm[i - 1] > max_norm);
    }
    CU_ASSERT(n_clipped > 2 && n_clipped < N_STEPS - 2);
    CU_ASSERT(n_turns > 2);
    printf("%d of %d steps clipped, %d turns ", n_clipped, N_STEPS, n_turns);
}

static void all_grids(ru_model_fn make)
{
    static const struct ru_grid alone = {1, 1, 1, 1, ZB_SEQ_WHOLE};
    static const struct zb_parallel par = {
        .tp = 1, .sp = 1, .vocab_multiple = 8};
    struct zb_model *m = make(&par);
    struct zb_session_opts o = opts_of(&alone, 0);
    double norm[N_STEPS];
    struct record one;

    train(m, &o, &one);
    zb_free(one.params);
    memcpy(norm, one.norm, sizeof(norm));
    o.optim.max_norm = zb_median(norm, N_STEPS);
    train(m, &o, &one);
    CU_ASSERT(one.loss[0] > 3 && one.loss[0] < 6);
    check_clipping(&one, o.optim.max_norm);
    /* A third of them by default, others for each family. */
    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        if (!zbt_is_long() && i % 3 != (make == ru_llama_on)) {
            continue;
        }
        check_grid(make, &grids[i], &one, o.optim.max_norm);
    }
    zb_free(one.params);
    zb_model_free(m);
}

static void llama_learns_the_same_on_every_grid(void)
{
    all_grids(ru_llama_on);
}

static void gpt2_learns_the_same_on_every_grid(void)
{
    all_grids(ru_gpt2_on);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(llama_learns_the_same_on_every_grid),
        ZBT_CASE(gpt2_learns_the_same_on_every_grid),
    };

    return zbt_run("run_layouts", cases, ZB_COUNT_OF(cases));
}
