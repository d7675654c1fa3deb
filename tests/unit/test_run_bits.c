/* SPDX-License-Identifier: MIT
 *
 * The same bits on every layout: for each number of microbatches, loss, norm,
 * every gradient and the parameters after two updates are equal for every
 * number of stages, schedule, metadata setting, way to pass messages on and way
 * to recompute. */
#include "config.h"

#include <stdio.h>

#include "run_util.h"
#include "zbt.h"

#define N_ROWS 11 /* ragged in 2, 3, 5 and 8 microbatches */

static const struct {
    const char *name;
    int n_chunk; /* 0: the planner's own */
} planner[] = {
    {"zbv", 0},         {"get_v_schedule", 0}, {"1f1b", 0},
    {"gpipe", 0},       {"interleaved", 0},    {"interleaved", 3},
    {"zb-h1", 0},       {"zb-h2", 0},          {"v-half", 0},
    {"v-min", 0},       {"pytorch-zbv", 0},    {"dualpipev", 0},
};
static const int stages[] = {1, 2, 4};
static const int micro[] = {1, 2, 3, 5, 8};

static void compare(const struct zb_model *m, const struct ru_batch *b,
                    const struct ru_result *want,
                    const struct zb_session_opts *o)
{
    struct ru_result r;

    ru_train_two_steps(m, o, b, &r);
    if (!ru_result_equal(want, &r)) {
        printf("\n%s, %d stages, %d microbatches, cache %d, recompute %s: "
               "loss %a, not %a; norm %a, not %a\n",
               o->planner, o->n_stages, o->n_micro, o->has_metadata_cache,
               zb_recompute_str(o->recompute), r.loss, want->loss, r.norm, want->norm);
        CU_FAIL("a layout changed the result");
    }
    ru_result_release(&r);
}

static const enum zb_p2p p2p[] = {ZB_P2P_AUTO, ZB_P2P_COPY, ZB_P2P_HOST};

static void all_layouts(struct zb_model *m)
{
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (size_t k = 0; k < ZB_COUNT_OF(micro); k++) {
        struct zb_session_opts o = ru_opts(1, micro[k], N_ROWS);
        struct ru_result want;

        ru_train_two_steps(m, &o, &b, &want);
        CU_ASSERT(want.loss > 3 && want.loss < 6); /* about ln 64 = 4.16 */
        CU_ASSERT(want.norm > 0.01);
        for (size_t i = 0; i < ZB_COUNT_OF(planner) * ZB_COUNT_OF(stages);
             i++) {
            o = ru_opts(stages[i % ZB_COUNT_OF(stages)], micro[k], N_ROWS);
            o.planner = planner[i / ZB_COUNT_OF(stages)].name;
            o.n_chunk = planner[i / ZB_COUNT_OF(stages)].n_chunk;
            o.has_metadata_cache = (i + k) % 2;
            o.overlap_p2p = i % 5 != 0;
            if (o.p2p != ZB_P2P_NCCL) {
                o.p2p = p2p[i / 2 % 3];
            }
            o.cut = i % 2 ? ZB_CUT_AUTO : ZB_CUT_UNIFORM;
            o.recompute = (enum zb_recompute)((i + k) % 3);
            compare(m, &b, &want, &o);
            if (zbt_is_long()) {
                o.has_metadata_cache = !o.has_metadata_cache;
                compare(m, &b, &want, &o);
                o.cut = i % 2 ? ZB_CUT_UNIFORM : ZB_CUT_AUTO;
                compare(m, &b, &want, &o);
            }
        }
        ru_result_release(&want);
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

static void llama_is_equal_on_every_layout(void)
{
    all_layouts(ru_llama());
}

static void tied_gpt2_is_equal_on_every_layout(void)
{
    all_layouts(ru_gpt2(0));
}

static void gpt2_with_dropout_is_equal_on_every_layout(void)
{
    all_layouts(ru_gpt2(0.1));
}

/* Dropout must do something, or the case above would prove nothing. */
static void dropout_changes_the_loss(void)
{
    struct zb_session_opts o = ru_opts(1, 2, N_ROWS);
    struct zb_model *m[2] = {ru_gpt2(0), ru_gpt2(0.1)};
    struct ru_result r[2];
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (int i = 0; i < 2; i++) {
        ru_train_two_steps(m[i], &o, &b, &r[i]);
    }
    CU_ASSERT_NOT_EQUAL(r[0].loss, r[1].loss);
    for (int i = 0; i < 2; i++) {
        ru_result_release(&r[i]);
        zb_model_free(m[i]);
    }
    ru_batch_release(&b);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(llama_is_equal_on_every_layout),
        ZBT_CASE(tied_gpt2_is_equal_on_every_layout),
        ZBT_CASE(gpt2_with_dropout_is_equal_on_every_layout),
        ZBT_CASE(dropout_changes_the_loss),
    };
    return zbt_run("run_bits", cases, ZB_COUNT_OF(cases));
}
