/* SPDX-License-Identifier: MIT
 *
 * Graphs that store bf16 and fp16: against the golden models, every cut against
 * every other, and training.
 */
#include "config.h"
#include "golden_rig.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_cut(const struct golden *d, int n_chunks, int n_micro,
                    enum zb_recompute recompute, double loss_scale,
                    struct rig_result *r)
{
    int first[17];
    struct rig_batch batch = {d->rows, d->seq, d->data};
    struct rig_opts o = {
        .n_chunks = n_chunks,
        .first = first,
        .n_micro = n_micro,
        .recompute = recompute,
        .loss_scale = loss_scale,
    };

    zb_cut_uniform(zb_model_n_before(d->model), zb_model_n_blocks(d->model), 1,
                   n_chunks, first);
    rig_run(d->g, d->params, &batch, &o, r);
}

static double grad_norm(const struct rig_result *r)
{
    double sum = 0;

    for (int u = 0; u < r->n_uses; u++) {
        for (int64_t i = 0; i < r->n_grad[u]; i++) {
            sum += pow((double)r->grad[u][i], 2);
        }
    }
    return sqrt(sum);
}

static void check_golden(const char *name, enum zb_dtype storage)
{
    struct golden d;
    struct rig_result r;
    double *loss, norm;

    golden_open_as(&d, name, storage);
    run_cut(&d, 2, 2, ZB_RECOMPUTE_NONE, 0, &r);
    loss = golden_doubles(&d, "loss");
    norm = golden_total_norm(&d);
    printf("\n  %s %s: loss off by %.2g, norm by %.2g (relative) ", name,
           zb_dtype_str(storage), r.loss / loss[0] - 1,
           grad_norm(&r) / norm - 1);
    CU_ASSERT(fabs(r.loss - loss[0]) <= 2e-2 * fabs(loss[0]));
    CU_ASSERT(fabs(grad_norm(&r) - norm) <= 5e-2 * norm);
    free(loss);
    rig_result_free(&r);
    golden_close(&d);
}

static void golden_losses_within_two_percent(void)
{
    static const char *const names[] = {"llama_base", "llama_variant",
                                        "llama_padded", "gpt2_base",
                                        "gpt2_padded"};

    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        check_golden(names[i], ZB_DTYPE_BF16);
        check_golden(names[i], ZB_DTYPE_F16);
    }
}

/* Messages carry what a chunk stores, so a cut changes nothing. */
static void cuts_and_recompute_keep_bits(void)
{
    static const char *const names[] = {"llama_base", "gpt2_base"};

    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        struct golden d;
        struct rig_result one, r;

        golden_open_as(&d, names[i], ZB_DTYPE_BF16);
        run_cut(&d, 1, 2, ZB_RECOMPUTE_NONE, 0, &one);
        run_cut(&d, 4, 2, ZB_RECOMPUTE_NONE, 0, &r);
        CU_ASSERT_TRUE(rig_same_bits(&one, &r));
        rig_result_free(&r);
        run_cut(&d, 2, 2, ZB_RECOMPUTE_FULL, 0, &r);
        CU_ASSERT_TRUE(rig_same_bits(&one, &r));
        rig_result_free(&r);
        rig_result_free(&one);
        golden_close(&d);
    }
}

static void activations_take_half_the_memory(void)
{
    struct golden d;
    struct rig_result real, half;

    golden_open_as(&d, "llama_base", ZB_DTYPE_REAL);
    run_cut(&d, 2, 1, ZB_RECOMPUTE_NONE, 0, &real);
    golden_close(&d);
    golden_open_as(&d, "llama_base", ZB_DTYPE_BF16);
    run_cut(&d, 2, 1, ZB_RECOMPUTE_NONE, 0, &half);
    CU_ASSERT_EQUAL(2 * half.bytes[ZB_SPACE_OUT], real.bytes[ZB_SPACE_OUT]);
    CU_ASSERT_EQUAL(2 * half.bytes[ZB_SPACE_FW], real.bytes[ZB_SPACE_FW]);
    /* statistics stay as they are */
    CU_ASSERT(2 * half.bytes[ZB_SPACE_FB] >= real.bytes[ZB_SPACE_FB]);
    CU_ASSERT(1.8 * (double)half.bytes[ZB_SPACE_FB] <=
              (double)real.bytes[ZB_SPACE_FB] + 64 * 1024);
    golden_close(&d);
    rig_result_free(&real);
    rig_result_free(&half);
}

/* Gradients that fp16 can not hold without loss scaling come back right with
 * it: scaled by 2^-20, the loss gradient is below fp16's smallest number. */
static void fp16_needs_and_takes_loss_scale(void)
{
    struct golden d;
    struct rig_result plain, scaled;
    double tiny = ldexp(1, -30);

    golden_open_as(&d, "gpt2_base", ZB_DTYPE_F16);
    run_cut(&d, 1, 1, ZB_RECOMPUTE_NONE, tiny, &plain);
    run_cut(&d, 1, 1, ZB_RECOMPUTE_NONE, tiny * 65536 * 1024, &scaled);
    CU_ASSERT_EQUAL(grad_norm(&plain), 0);
    CU_ASSERT(grad_norm(&scaled) > 0);
    CU_ASSERT(isfinite(grad_norm(&scaled)));
    rig_result_free(&plain);
    rig_result_free(&scaled);
    golden_close(&d);
}

/* Gradient descent on masters in float; the graph rounds what it is given. */
static void train(const char *name, enum zb_dtype storage, int n_steps,
                  double *loss)
{
    struct golden d;
    struct rig_result r;

    golden_open_as(&d, name, storage);
    for (int s = 0; s < n_steps; s++) {
        run_cut(&d, 2, 1, ZB_RECOMPUTE_NONE, 0, &r);
        loss[s] = r.loss;
        for (int p = 0; p < zb_graph_n_params(d.g); p++) {
            struct zb_param_info info = zb_graph_param(d.g, p);
            double *g = rig_param_grad(d.g, &r, p);

            for (int64_t i = 0; i < zb_shape_elems(&info.shape); i++) {
                d.params[p][i] -= (zb_real)(0.004 * g[i]);
            }
            free(g);
        }
        rig_result_free(&r);
    }
    golden_close(&d);
}

#define N_STEPS 30

static void training_in_bf16_follows_fp32(void)
{
    static const char *const names[] = {"llama_base", "gpt2_base"};

    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        double real[N_STEPS], bf16[N_STEPS];
        double worst = 0;

        train(names[i], ZB_DTYPE_REAL, N_STEPS, real);
        train(names[i], ZB_DTYPE_BF16, N_STEPS, bf16);
        for (int s = 0; s < N_STEPS; s++) {
            worst = fmax(worst, fabs(bf16[s] / real[s] - 1));
        }
        printf("\n  %s: %.4f to %.4f, fp32 to %.4f; at most %.2g apart ",
               names[i], bf16[0], bf16[N_STEPS - 1], real[N_STEPS - 1], worst);
        CU_ASSERT(bf16[N_STEPS - 1] < bf16[0]);
        CU_ASSERT(worst <= 5e-3);
    }
}

static void storage_is_chosen_first_or_refused(void)
{
    static const int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH), 4};
    struct zb_graph *g;

    ZBT_OK(zb_graph_new(&g));
    zb_g_data(g, "x", ZB_DTYPE_REAL, 2, dim);
    zb_g_storage(g, ZB_DTYPE_BF16);
    CU_ASSERT_EQUAL(zb_graph_finish(g), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "after the first"));
    zb_graph_free(g);
    ZBT_OK(zb_graph_new(&g));
    zb_g_storage(g, ZB_DTYPE_I32);
    CU_ASSERT_EQUAL(zb_graph_finish(g), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "as i32"));
    zb_graph_free(g);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(golden_losses_within_two_percent),
        ZBT_CASE(cuts_and_recompute_keep_bits),
        ZBT_CASE(activations_take_half_the_memory),
        ZBT_CASE(fp16_needs_and_takes_loss_scale),
        ZBT_CASE(training_in_bf16_follows_fp32),
        ZBT_CASE(storage_is_chosen_first_or_refused),
    };

    return zbt_run("graph16", cases, ZB_COUNT_OF(cases));
}
