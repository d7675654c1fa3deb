/* SPDX-License-Identifier: MIT
 *
 * Running parts of F again in B, on every kind of layout: the bits of a run
 * that keeps everything, in the memory that was planned, which is less. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "run_util.h"
#include "zbt.h"

#define N_ROWS 8

static const struct ru_grid grids[] = {
    {2, 1, 1, 2, ZB_SEQ_WHOLE},        {2, 2, 1, 1, ZB_SEQ_WHOLE},
    {1, 4, 1, 2, ZB_SEQ_WHOLE},        {2, 2, 1, 1, ZB_SEQ_SPLIT_GATHER},
    {1, 4, 1, 2, ZB_SEQ_SPLIT_GATHER}, {2, 1, 2, 1, ZB_SEQ_ALL_TO_ALL},
    {2, 2, 2, 1, ZB_SEQ_ALL_TO_ALL},   {2, 1, 2, 1, ZB_SEQ_RING},
    {2, 2, 2, 1, ZB_SEQ_RING},         {1, 1, 3, 2, ZB_SEQ_RING},
};

static size_t activations(const struct zb_session *s, int stage)
{
    const char *name;
    size_t bytes;

    for (int i = 0; (name = zb_session_memory_part(s, stage, i, &bytes)) !=
                    NULL;
         i++) {
        if (strcmp(name, "activations") == 0) {
            return bytes;
        }
    }
    CU_FAIL("no such part of memory");
    return 0;
}

/* What passes leave for each other on all stages; planned is allocated. */
static size_t kept(const struct zb_model *m, struct zb_session_opts o,
                   const char *planner)
{
    struct zb_session *s = NULL;
    size_t sum = 0;

    o.planner = planner;
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int i = 0; s != NULL && i < o.n_stages; i++) {
        CU_ASSERT_EQUAL(zb_session_planned_bytes(s, i),
                        zb_session_allocated_bytes(s, i));
        sum += activations(s, i);
    }
    zb_session_free(s);
    return sum;
}

static void check_grid(ru_model_fn make, const struct ru_grid *g)
{
    const struct zb_parallel par = {g->tp, g->sp, g->mode, 24};
    struct zb_session_opts o = ru_grid_opts(g, N_ROWS);
    struct zb_model *m = make(&par);
    struct ru_result all, again;
    struct ru_batch b;
    size_t most;

    o.cut = ZB_CUT_UNIFORM; /* another cut has norms in another order */
    ru_batch_init(&b, N_ROWS, RU_SEQ - 1, 5); /* some pad it, some do not */
    ru_train_two_steps(m, &o, &b, &all);
    most = kept(m, o, "1f1b"); /* always as many microbatches in flight */
    for (int mode = ZB_RECOMPUTE_SELECTIVE; mode <= ZB_RECOMPUTE_FULL; mode++) {
        size_t bytes;

        o.recompute = (enum zb_recompute)mode;
        ru_train_two_steps(m, &o, &b, &again);
        CU_ASSERT(kept(m, o, o.planner) > 0);
        bytes = kept(m, o, "1f1b");
        if (!ru_result_equal(&all, &again) || bytes >= most) {
            printf("\npp %d, tp %d, sp %d, dp %d, mode %d, recompute %s: "
                   "loss %a, not %a; %zu bytes of %zu\n",
                   g->pp, g->tp, g->sp, g->dp, (int)g->mode,
                   zb_recompute_str(o.recompute), again.loss, all.loss, bytes,
                   most);
            CU_FAIL("other bits, or not less memory");
        }
        ru_result_release(&again);
        most = bytes;
    }
    ru_batch_release(&b);
    ru_result_release(&all);
    zb_model_free(m);
}

static void llama_keeps_less_and_learns_the_same_bits(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        check_grid(ru_llama_on, &grids[i]);
    }
}

static void gpt2_keeps_less_and_learns_the_same_bits(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        check_grid(ru_gpt2_on, &grids[i]);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(llama_keeps_less_and_learns_the_same_bits),
        ZBT_CASE(gpt2_keeps_less_and_learns_the_same_bits),
    };

    return zbt_run("run_recompute", cases, ZB_COUNT_OF(cases));
}
