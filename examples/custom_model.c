/* SPDX-License-Identifier: MIT
 *
 * Train a model of one's own with a criterion of one's own: a residual MLP that
 * learns y = sin(3 x0) * x1 from points, on two pipeline stages (four chunks of
 * a zero-bubble V), with libzb.
 *
 *     examples/custom_model [steps]
 *
 * What to look at: build() describes the model, criterion included; the rest is
 * the loop. Nothing here is special to the devices or the schedule: change
 * n_stages or planner and the numbers stay the same, bit for bit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "zb/graph.h"
#include "zb/model.h"
#include "zb/run.h"

#define N_ROWS 64
#define N_IN 2
#define WIDTH 64
#define N_BLOCKS 6

static int linear(struct zb_graph *g, int x, const char *name, int64_t n_in,
                  int64_t n_out)
{
    const struct zb_param_opts w = {.init = ZB_INIT_NORMAL,
                                    .std = 1 / sqrt((double)n_in)};
    const struct zb_param_opts b = {.init = ZB_INIT_ZEROS, .no_decay = 1};
    const int64_t w_dim[2] = {n_out, n_in}, b_dim[1] = {n_out};
    char w_name[64], b_name[64];

    snprintf(w_name, sizeof(w_name), "%s.weight", name);
    snprintf(b_name, sizeof(b_name), "%s.bias", name);
    return zb_g_linear(g, x, zb_g_param(g, w_name, 2, w_dim, &w),
                       zb_g_param(g, b_name, 1, b_dim, &b), 0);
}

/* in [B,1,2] -> hidden [B,1,64] -> 6 blocks -> out [B,1,1]; criterion: the mean
 * of (out - target)^2. */
static enum zb_status build(struct zb_graph *g)
{
    const int64_t in_dim[3] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), N_IN};
    const int64_t out_dim[3] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), 1};
    int x = zb_g_data(g, "point", ZB_DTYPE_REAL, 3, in_dim);
    int target = zb_g_data(g, "target", ZB_DTYPE_REAL, 3, out_dim);

    zb_g_layer(g, "in");
    x = linear(g, x, "in", N_IN, WIDTH);
    for (int i = 0; i < N_BLOCKS; i++) {
        char name[32];
        int h;

        snprintf(name, sizeof(name), "block.%d", i);
        zb_g_layer(g, name);
        h = linear(g, zb_g_act(g, x, ZB_ACT_GELU_TANH), name, WIDTH, WIDTH);
        x = zb_g_add(g, x, zb_g_scale(g, h, 0.5));
    }
    zb_g_layer(g, "out");
    x = linear(g, x, "out", WIDTH, 1);
    zb_g_output(g, "prediction", x);
    zb_g_loss(g, zb_g_mse(g, x, target), ZB_G_NONE);
    return zb_graph_finish(g);
}

static zb_real random_in(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (zb_real)(*state >> 8) / (zb_real)(1 << 23) - 1;
}

static void make_batch(unsigned *state, zb_real *point, zb_real *target,
                       int64_t *sample)
{
    for (int i = 0; i < N_ROWS; i++) {
        point[2 * i] = random_in(state);
        point[2 * i + 1] = random_in(state);
        target[i] = (zb_real)sin(3 * point[2 * i]) * point[2 * i + 1];
        sample[i] = i;
    }
}

static enum zb_status train(struct zb_session *s, int n_steps)
{
    zb_real point[N_ROWS * N_IN], target[N_ROWS], prediction[N_ROWS];
    int64_t sample[N_ROWS];
    const void *field[] = {point, target};
    zb_real *const output[] = {prediction};
    struct zb_step_input in = {
        .n_rows = N_ROWS, .seq_len = 1, .field = field, .sample = sample};
    struct zb_step_result res = {.output = output};
    unsigned state = 1;

    for (int step = 1; step <= n_steps; step++) {
        make_batch(&state, point, target, sample);
        ZB_TRY(zb_zero_grad(s));
        ZB_TRY(zb_forward_backward_step(
            s, &in, ZB_RETURN_LOSS | ZB_RETURN_OUTPUTS, &res));
        ZB_TRY(zb_optimizer_step(s, 1e-2, &res));
        if (step == 1 || step % 50 == 0) {
            printf("step %d loss %.6f norm %.4f, f(%.3f, %.3f) = %.4f "
                   "(true %.4f)\n",
                   step, res.loss, res.grad_norm, (double)point[0],
                   (double)point[1], (double)prediction[0], (double)target[0]);
        }
    }
    make_batch(&state, point, target, sample);
    ZB_TRY(zb_run_forward_only(s, &in, 4, ZB_RETURN_LOSS, &res));
    printf("loss on new points %.6f\n", res.loss);
    return ZB_OK;
}

static enum zb_status run(int n_steps)
{
    struct zb_graph *g;
    struct zb_model *m;
    struct zb_session *s;
    struct zb_session_opts o;
    enum zb_status st;

    ZB_TRY(zb_graph_new(&g));
    st = build(g);
    if (st == ZB_OK) {
        st = zb_model_from_graph(g, 1, N_BLOCKS, &m);
    }
    if (st != ZB_OK) {
        zb_graph_free(g);
        return st;
    }
    zb_session_opts_init(&o);
    o.n_stages = 2;
    o.n_micro = 4;
    o.max_rows = N_ROWS;
    o.max_seq = 1;
    st = zb_session_new(m, &o, &s);
    if (st == ZB_OK) {
        st = train(s, n_steps);
        zb_session_free(s);
    }
    zb_model_free(m);
    return st;
}

int main(int argc, char **argv)
{
    enum zb_status st = run(argc > 1 ? atoi(argv[1]) : 300);

    if (st != ZB_OK) {
        fprintf(stderr, "custom_model: %s\n", zb_error_text());
    }
    return st == ZB_OK ? 0 : 1;
}
