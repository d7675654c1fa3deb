/* SPDX-License-Identifier: MIT
 *
 * Whole models against tests/golden/: loss, logits and every gradient, for
 * several cuts and numbers of microbatches.
 */
#include "config.h"
#include "golden_rig.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ZB_REAL_IS_DOUBLE
#define TOL 1e-9
#else
#define TOL 1e-5
#endif

static double worst_gradient(const struct golden *d,
                             const struct rig_result *r)
{
    double floor = 1e-3 * golden_total_norm(d), worst = 0;

    for (int p = 0; p < zb_graph_n_params(d->g); p++) {
        struct zb_param_info info = zb_graph_param(d->g, p);
        char name[256];
        double *want, *got, e;

        if (!info.has_gradient) {
            continue;
        }
        got = rig_param_grad(d->g, r, p);
        snprintf(name, sizeof(name), "grad.%s", info.name);
        want = golden_doubles(d, name);
        e = golden_error(got, want, zb_shape_elems(&info.shape), floor);
        if (!(e <= TOL)) {
            printf("\n%s: error %.3g", name, e);
        }
        worst = e <= worst ? worst : e;
        free(got);
        free(want);
    }
    return worst;
}

/* Padding has logits, too, but those of tokens that see no key mean nothing:
 * behind a window of padding. */
static int has_blind_tokens(const char *name)
{
    return strcmp(name, "mistral_padded") == 0 ||
           strcmp(name, "opt_padded") == 0;
}

static void clear_padding(const struct golden *d, double *logits, int64_t n)
{
    int64_t cols = n / (d->rows * d->seq);

    for (int64_t i = 0; d->mask != NULL && i < n; i++) {
        logits[i] = d->mask[i / cols] != 0 ? logits[i] : 0;
    }
}

static void compare(const struct golden *d, const char *name,
                    const struct rig_result *r)
{
    double *loss = golden_doubles(d, "loss");
    double *logits = golden_doubles(d, "logits");
    double e = worst_gradient(d, r);

    printf("\n  loss %.9f (off by %.2g), gradients within %.2g ", r->loss,
           r->loss - loss[0], e);
    CU_ASSERT(e <= TOL);
    CU_ASSERT(fabs(r->loss - loss[0]) <= TOL * fabs(loss[0]));
    /* logits are stored in float */
    if (has_blind_tokens(name)) {
        clear_padding(d, logits, r->n_output);
        clear_padding(d, r->output, r->n_output);
    }
    CU_ASSERT(golden_error(r->output, logits, r->n_output, 0) <= 1e-5);
    free(loss);
    free(logits);
}

/* One cut and number of microbatches. */
static void check_case(const char *name, int n_chunks, int n_micro, int w_last,
                       enum zb_recompute recompute)
{
    struct golden d;
    struct rig_result r;
    int first[17];

    golden_open(&d, name);
    {
        struct rig_batch batch = {d.rows, d.seq, d.data};
        struct rig_opts o = {
            .n_chunks = n_chunks,
            .first = first,
            .n_micro = n_micro,
            .w_order = w_last ? RIG_W_LAST : RIG_W_AFTER_B,
            .recompute = recompute,
        };

        zb_cut_uniform(zb_model_n_before(d.model), zb_model_n_blocks(d.model),
                       1, n_chunks, first);
        rig_run(d.g, d.params, &batch, &o, &r);
        compare(&d, name, &r);
    }
    rig_result_free(&r);
    golden_close(&d);
}

static void check_model(const char *name)
{
    check_case(name, 1, 1, 0, ZB_RECOMPUTE_NONE);
    check_case(name, 2, 2, 1, ZB_RECOMPUTE_SELECTIVE);
    check_case(name, 4, 4, 0, ZB_RECOMPUTE_NONE);
    check_case(name, 1, 2, 0, ZB_RECOMPUTE_FULL);
    check_case(name, 8, 2, 1, ZB_RECOMPUTE_FULL); /* empty chunks */
}

#define MODEL_TEST(model, has_after)                                           \
    static void model##_equals_reference(void)                                 \
    {                                                                          \
        check_model(#model);                                                   \
    }

GOLDEN_MODELS(MODEL_TEST)

/* Microbatches of different sizes, in one program compiled for the largest. */
static void ragged_microbatches_equal_reference(void)
{
    static const int rows[] = {1, 3};
    struct golden d;
    struct rig_result r;
    int first[] = {0, 2, 3, 6};

    golden_open(&d, "gpt2_padded");
    {
        struct rig_batch batch = {d.rows, d.seq, d.data};
        struct rig_opts o = {
            .n_chunks = 3,
            .first = first,
            .n_micro = 2,
            .rows = rows,
            .n_threads = 2,
        };

        rig_run(d.g, d.params, &batch, &o, &r);
        compare(&d, "gpt2_padded", &r);
    }
    rig_result_free(&r);
    golden_close(&d);
}

#define MODEL_CASE(model, has_after) ZBT_CASE(model##_equals_reference),

int main(void)
{
    static const struct zbt_case cases[] = {
        GOLDEN_MODELS(MODEL_CASE) ZBT_CASE(ragged_microbatches_equal_reference),
    };

    return zbt_run("model_golden", cases, ZB_COUNT_OF(cases));
}
