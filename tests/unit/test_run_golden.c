/* SPDX-License-Identifier: MIT
 *
 * Whole training steps against tests/golden/: loss, every gradient, and weights
 * after two updates, through sessions of one and two stages, and with two
 * tensor-parallel ranks. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden_rig.h"
#include "run_util.h"
#include "zbt.h"

#define TOL 1e-5

/* A session with the golden weights and optimizer. */
static struct zb_session *new_session(const struct golden *d, int n_stages,
                                      const char *planner, int n_micro)
{
    struct zb_session_opts o = ru_opts(n_stages, n_micro, d->rows);
    struct zb_session *s = NULL;

    o.planner = planner;
    o.max_seq = d->seq;
    o.optim = (struct zb_optim){.kind = ZB_OPTIM_ADAMW,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-4,
                                .weight_decay = 0.1};
    ZBT_OK(zb_session_new(d->model, &o, &s));
    for (int p = 0; p < zb_graph_n_params(d->g); p++) {
        ZBT_OK(zb_session_set_param(s, p, d->params[p]));
    }
    return s;
}

typedef enum zb_status (*get_fn)(struct zb_session *s, int param, zb_real *out);

/* Error of one parameter's value or gradient against a tensor of the file. */
static double error_of(const struct golden *d, struct zb_session *s, int param,
                       get_fn get, const char *prefix, double floor)
{
    struct zb_param_info info = zb_graph_param(d->g, param);
    int64_t n = zb_shape_elems(&info.whole);
    zb_real *have = calloc((size_t)n, sizeof(*have));
    double *a = calloc((size_t)n, sizeof(*a)), *want, e;
    char name[256];

    snprintf(name, sizeof(name), "%s.%s", prefix, info.name);
    want = golden_doubles(d, name);
    ZBT_OK(get(s, param, have));
    for (int64_t i = 0; i < n; i++) {
        a[i] = (double)have[i];
    }
    e = golden_error(a, want, n, floor);
    if (!(e <= TOL)) {
        printf("\n%s: error %.3g", name, e);
    }
    free(a);
    free(have);
    free(want);
    return e;
}

static double worst_of(const struct golden *d, struct zb_session *s, get_fn get,
                       const char *prefix, double floor)
{
    double worst = 0;

    for (int p = 0; p < zb_graph_n_params(d->g); p++) {
        double e;

        if (zb_graph_param(d->g, p).has_gradient) {
            e = error_of(d, s, p, get, prefix, floor);
            worst = e <= worst ? worst : e;
        }
    }
    return worst;
}

struct seen {
    double loss, grad, after;
};

static void keep_worst(double *worst, double e)
{
    *worst = e <= *worst ? *worst : e;
}

static void check_layout(const struct golden *d, int n_stages,
                         const char *planner, int n_micro, struct seen *seen)
{
    struct zb_session *s = new_session(d, n_stages, planner, n_micro);
    struct zb_step_input in = {.n_rows = d->rows,
                               .seq_len = d->seq,
                               .field = d->data,
                               .sample = (int64_t[8]){0}};
    struct zb_step_result res = {.loss = NAN};
    double *loss = golden_doubles(d, "loss");
    double norm = golden_total_norm(d);

    ZBT_OK(zb_forward_backward_step(s, &in, ZB_RETURN_LOSS, &res));
    keep_worst(&seen->loss, fabs(res.loss - loss[0]) / fabs(loss[0]));
    keep_worst(&seen->grad,
               worst_of(d, s, zb_session_get_grad, "grad", 1e-3 * norm));
    ZBT_OK(zb_optimizer_step(s, 1e-3, &res));
    CU_ASSERT_DOUBLE_EQUAL(res.grad_norm, norm, TOL * norm);
    ZBT_OK(zb_train_step(s, &in, 1e-3, &res));
    if (seen->after >= 0) {
        keep_worst(&seen->after,
                   worst_of(d, s, zb_session_get_param, "after2", 0));
    }
    zb_session_free(s);
    free(loss);
}

static void check_model(const char *name, int has_after)
{
    static const char *const planner[] = {"zbv", "1f1b"};
    /* 48 and 128 words: with padding, and without */
    static const struct zb_parallel pair = {
        .tp = 2, .sp = 1, .vocab_multiple = 32};
    struct seen seen = {0, 0, has_after ? 0 : -1};
    struct golden d;

    golden_open_on(&d, name, NULL);
    for (int n_micro = 2; n_micro <= 4; n_micro++) { /* 3: ragged */
        for (int p = 1; p <= 2; p++) {
            for (size_t k = 0; k < ZB_COUNT_OF(planner); k++) {
                check_layout(&d, p, planner[k], n_micro, &seen);
            }
        }
    }
    golden_close(&d);
    golden_open_on(&d, name, &pair);
    check_layout(&d, 2, "zbv", 2, &seen);
    check_layout(&d, 1, "1f1b", 4, &seen);
    golden_close(&d);
    printf("\n  off by: loss %.2g, gradients %.2g, weights %.2g ", seen.loss,
           seen.grad, seen.after);
    CU_ASSERT(seen.loss <= TOL);
    CU_ASSERT(seen.grad <= TOL);
    CU_ASSERT(seen.after <= TOL);
    CU_ASSERT_EQUAL(seen.after > 0, has_after);
}

#define MODEL_TEST(model, has_after)                                           \
    static void model##_trains_as_reference(void)                              \
    {                                                                          \
        check_model(#model, has_after);                                        \
    }

GOLDEN_MODELS(MODEL_TEST)

#define MODEL_CASE(model, has_after) ZBT_CASE(model##_trains_as_reference),

int main(void)
{
    static const struct zbt_case cases[] = {GOLDEN_MODELS(MODEL_CASE)};

    return zbt_run("run_golden", cases, ZB_COUNT_OF(cases));
}
