/* SPDX-License-Identifier: MIT
 *
 * Optimizers, learning rates and clipping against tests/golden/optim.txt. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_util.h"
#include "zb/optim.h"
#include "zbt.h"

#ifdef ZB_REAL_IS_DOUBLE
#define TOL 1e-12
#else
#define TOL 1e-5
#endif

#define N 8          /* numbers of a trajectory */
#define N_FACTORS 14 /* updates 0..13 of a run of 12 */

/* ---- the file ------------------------------------------------------------ */

struct reader {
    FILE *f;
    char line[2048];
};

static void reader_open(struct reader *r)
{
    const char *path = zbt_source_path("tests/golden/optim.txt");

    r->f = fopen(path, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->f);
}

/* The next line whose first word is `word`; 0 at the end of the file. */
static int find_line(struct reader *r, const char *word)
{
    size_t n = strlen(word);

    while (fgets(r->line, sizeof(r->line), r->f) != NULL) {
        if (strncmp(r->line, word, n) == 0 && r->line[n] == ' ') {
            return 1;
        }
    }
    return 0;
}

/* The number behind a key of the line, or `other`. */
static double key_value(const struct reader *r, const char *key, double other)
{
    char word[64];
    const char *at;

    snprintf(word, sizeof(word), " %s ", key);
    at = strstr(r->line, word);
    return at == NULL ? other : strtod(at + strlen(word), NULL);
}

static void read_name(const struct reader *r, char *name)
{
    CU_ASSERT_EQUAL_FATAL(sscanf(r->line, "%*s %31s", name), 1);
}

/* "w 3 1.5 2.5 ...": n numbers behind the first `skip` words. */
static void read_numbers(const struct reader *r, int skip, int n, double *out)
{
    const char *at = r->line;

    for (int i = 0; i < skip; i++) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    for (int i = 0; i < n; i++) {
        char *end;

        out[i] = strtod(at, &end);
        CU_ASSERT_FATAL(end != at);
        at = end;
    }
}

/* ---- trajectories -------------------------------------------------------- */

/* One parameter on the cpu backend, whose device memory the host can
 * address. */
struct rig {
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
    zb_real *mem; /* grad, param, m, v */
};

static void rig_open(struct rig *r)
{
    struct zb_backend_opts o = {.n_devices = 1, .threads_per_device = 1};

    ZBT_OK(zb_backend_open("cpu", &o, &r->be));
    ZBT_OK(r->be->ops->device_open(r->be, 0, &r->dev));
    ZBT_OK(r->be->ops->stream_new(r->dev, "compute", &r->stream));
    ZBT_OK(r->be->ops->mem_alloc(r->dev, 4 * N * sizeof(zb_real), "parameter",
                                 (void **)&r->mem));
    memset(r->mem, 0, 4 * N * sizeof(zb_real));
}

static void rig_close(struct rig *r)
{
    r->be->ops->stream_free(r->stream);
    r->be->ops->mem_free(r->dev, r->mem);
    r->be->ops->device_close(r->dev);
    zb_backend_close(r->be);
}

static struct zb_optim read_optim(const struct reader *r, const char *name)
{
    return (struct zb_optim){
        .kind = strncmp(name, "sgd", 3) == 0 ? ZB_OPTIM_SGD : ZB_OPTIM_ADAMW,
        .beta1 = key_value(r, "beta1", 0),
        .beta2 = key_value(r, "beta2", 0),
        .eps = key_value(r, "eps", 0),
        .momentum = key_value(r, "momentum", 0),
        .weight_decay = key_value(r, "weight_decay", 0),
    };
}

/* One update; the worst deviation from the file's. */
static double one_update(struct reader *r, struct rig *rig,
                         const struct zb_optim *opt, int64_t t, double lr)
{
    struct zb_optim_param p = {
        .name = "w",
        .n = N,
        .grad = rig->mem,
        .param = rig->mem + N,
        .m = zb_optim_state_reals(opt) > 0 ? rig->mem + 2 * N : NULL,
        .v = zb_optim_state_reals(opt) > 1 ? rig->mem + 3 * N : NULL,
    };
    double grad[N], want[N], worst = 0;

    CU_ASSERT_FATAL(find_line(r, "grad"));
    read_numbers(r, 2, N, grad);
    CU_ASSERT_FATAL(find_line(r, "w"));
    read_numbers(r, 2, N, want);
    /* A gradient of twice the size with scale 1/2 must be the same thing. */
    for (int i = 0; i < N; i++) {
        rig->mem[i] = (zb_real)(2 * grad[i]);
    }
    ZBT_OK(zb_optim_step(opt, rig->be->ops, rig->stream, &p, t, lr, 0.5));
    ZBT_OK(rig->be->ops->stream_sync(rig->stream));
    for (int i = 0; i < N; i++) {
        double e = fabs((double)p.param[i] - want[i]) /
                   fmax(1, fabs(want[i]));

        worst = e <= worst ? worst : e;
    }
    return worst;
}

static void check_trajectory(struct reader *r, const char *name)
{
    struct zb_optim opt = read_optim(r, name);
    double lr = key_value(r, "lr", 0), start[N];
    struct rig rig;

    rig_open(&rig);
    CU_ASSERT_FATAL(find_line(r, "w"));
    read_numbers(r, 2, N, start);
    for (int i = 0; i < N; i++) {
        rig.mem[N + i] = (zb_real)start[i];
    }
    for (int64_t t = 1; t <= 5; t++) {
        double e = one_update(r, &rig, &opt, t, lr);

        if (!(e <= TOL)) {
            printf("\n%s, update %d: off by %.3g", name, (int)t, e);
        }
        CU_ASSERT(e <= TOL);
    }
    rig_close(&rig);
}

static void trajectories_equal_pytorch(void)
{
    struct reader r;
    int n = 0;

    reader_open(&r);
    while (find_line(&r, "optimizer")) {
        char name[32];

        read_name(&r, name);
        check_trajectory(&r, name);
        n++;
    }
    CU_ASSERT_EQUAL(n, 5);
    fclose(r.f);
}

static void no_decay_leaves_weights_of_zero_gradients(void)
{
    struct zb_optim opt = {.kind = ZB_OPTIM_ADAMW,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.5};
    struct rig rig;

    rig_open(&rig);
    for (int no_decay = 0; no_decay < 2; no_decay++) {
        struct zb_optim_param p = {.name = "w",
                                   .n = N,
                                   .no_decay = no_decay,
                                   .grad = rig.mem,
                                   .param = rig.mem + N,
                                   .m = rig.mem + 2 * N,
                                   .v = rig.mem + 3 * N};

        rig.mem[N] = 4;
        ZBT_OK(zb_optim_step(&opt, rig.be->ops, rig.stream, &p, 1, 0.25, 1));
        ZBT_OK(rig.be->ops->stream_sync(rig.stream));
        /* 4 - 0.25 * 0.5 * 4 */
        CU_ASSERT_EQUAL(rig.mem[N], no_decay ? 4 : (zb_real)3.5);
    }
    rig_close(&rig);
}

/* ---- learning rates ------------------------------------------------------ */

/* The factors of one schedule of the file. */
static int read_schedule(const char *want, double *factor)
{
    struct reader r;
    char name[32];
    int found = 0;

    reader_open(&r);
    while (!found && find_line(&r, "schedule")) {
        read_name(&r, name);
        found = strcmp(name, want) == 0;
    }
    if (found) {
        CU_ASSERT_FATAL(find_line(&r, "factor"));
        read_numbers(&r, 1, N_FACTORS, factor);
    }
    fclose(r.f);
    return found;
}

/* Ours of step k + shift is transformers' of count k, for k in [first, end). */
static void compare_lr(const char *name, const struct zb_lr *lr, int first,
                       int end, int shift)
{
    double factor[N_FACTORS];

    CU_ASSERT_FATAL(read_schedule(name, factor));
    for (int k = first; k < end; k++) {
        double have = zb_lr_at(lr, k + shift) / lr->peak;

        if (!(fabs(have - factor[k]) < 1e-12)) {
            printf("\n%s, step %d: %.17g, not %.17g", name, k, have,
                   factor[k]);
        }
        CU_ASSERT(fabs(have - factor[k]) < 1e-12);
    }
}

static struct zb_lr lr_of(enum zb_lr_kind kind, double min_ratio)
{
    return (struct zb_lr){.kind = kind,
                          .peak = 3e-4,
                          .min = min_ratio * 3e-4,
                          .warmup_steps = 3,
                          .steps = 12};
}

static void learning_rates_equal_transformers(void)
{
    struct zb_lr lr = lr_of(ZB_LR_CONSTANT, 0);

    compare_lr("constant", &lr, 0, N_FACTORS, 0);
    lr = lr_of(ZB_LR_LINEAR, 0);
    compare_lr("linear", &lr, 0, N_FACTORS, 0);
    /* Behind the end ours stays at the minimum; theirs swings up again. */
    lr = lr_of(ZB_LR_COSINE, 0);
    compare_lr("cosine", &lr, 0, 13, 0);
    lr = lr_of(ZB_LR_COSINE, 0.1);
    compare_lr("cosine_min", &lr, 0, 13, 0);
}

/* Theirs takes the length of the decay, ours is a tenth of all steps: warm-up
 * and plateau agree as they are, the decay with that of a run of 40 steps,
 * whose last 4 steps begin 28 later. */
static void wsd_equals_transformers_where_defined_alike(void)
{
    struct zb_lr lr = lr_of(ZB_LR_WSD, 0);

    compare_lr("wsd", &lr, 0, 9, 0);
    lr.steps = 40;
    compare_lr("wsd", &lr, 8, N_FACTORS, 28);
    lr.min = 0.1 * lr.peak;
    compare_lr("wsd_min", &lr, 8, N_FACTORS, 28);
}

static void rate_without_warmup_begins_at_peak(void)
{
    struct zb_lr lr = {.kind = ZB_LR_LINEAR, .peak = 1, .steps = 10};

    CU_ASSERT_EQUAL(zb_lr_at(&lr, 0), 1);
    CU_ASSERT_DOUBLE_EQUAL(zb_lr_at(&lr, 1), 0.9, 1e-15);
    CU_ASSERT_EQUAL(zb_lr_at(&lr, 10), 0);
    CU_ASSERT_EQUAL(zb_lr_at(&lr, 11), 0);
}

/* ---- clipping ------------------------------------------------------------ */

static void clip_scale_limits_the_norm(void)
{
    CU_ASSERT_EQUAL(zb_clip_scale(5, 0), 1);
    CU_ASSERT_EQUAL(zb_clip_scale(0, 1), 1);
    CU_ASSERT_EQUAL(zb_clip_scale(0.5, 1), 1);
    CU_ASSERT_DOUBLE_EQUAL(zb_clip_scale(5, 1), 1 / (5 + 1e-6), 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(zb_clip_scale(50, 2.5), 2.5 / (50 + 1e-6), 1e-15);
}

/* Two layers of one weight each: z = (x a) b, loss (z - t)^2. */
static struct zb_model *two_numbers(void)
{
    const int64_t b11[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), 1};
    const int64_t one[] = {1, 1};
    struct zb_param_opts o = {.init = ZB_INIT_ONES};
    struct zb_model *m = NULL;
    struct zb_graph *g;
    int x, t, y;

    ZBT_OK(zb_graph_new(&g));
    x = zb_g_data(g, "x", ZB_DTYPE_REAL, 3, b11);
    t = zb_g_data(g, "t", ZB_DTYPE_REAL, 3, b11);
    zb_g_layer(g, "first");
    y = zb_g_linear(g, x, zb_g_param(g, "a", 2, one, &o), ZB_G_NONE, 0);
    zb_g_layer(g, "second");
    y = zb_g_linear(g, y, zb_g_param(g, "b", 2, one, &o), ZB_G_NONE, 0);
    zb_g_loss(g, zb_g_mse(g, y, t), ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_model_from_graph(g, 0, 2, &m));
    return m;
}

/* a = 1, b = 3/4, x = 1: y = 1, z = 3/4; with dz = 4 the gradient of b is 4 and
 * that of a is 3. */
static void norms_of_stages_are_added_in_squares(void)
{
    const zb_real x = 1, t = (zb_real)(0.75 - 2), b = (zb_real)0.75;
    const void *field[] = {&x, &t};
    const int64_t sample = 0;
    struct zb_step_input in = {
        .n_rows = 1, .seq_len = 1, .field = field, .sample = &sample};
    struct zb_model *m = two_numbers();
    const struct zb_graph *g = zb_model_graph(m);

    for (int p = 1; p <= 2; p++) {
        struct zb_session_opts o = ru_opts(p, 1, 1);
        struct zb_step_result res = {.loss = 0};
        struct zb_session *s = NULL;
        zb_real after[2], grad[2];

        o.planner = "1f1b";
        o.cut = ZB_CUT_UNIFORM;
        o.optim = (struct zb_optim){.kind = ZB_OPTIM_SGD, .max_norm = 1};
        ZBT_OK(zb_session_new(m, &o, &s));
        ZBT_OK(zb_session_set_param(s, zb_graph_find_param(g, "b"), &b));
        ZBT_OK(zb_forward_backward_step(s, &in, ZB_RETURN_LOSS, &res));
        CU_ASSERT_EQUAL(res.loss, 4);
        ZBT_OK(zb_session_get_grad(s, zb_graph_find_param(g, "a"), &grad[0]));
        ZBT_OK(zb_session_get_grad(s, zb_graph_find_param(g, "b"), &grad[1]));
        CU_ASSERT_EQUAL(grad[0], 3);
        CU_ASSERT_EQUAL(grad[1], 4);
        ZBT_OK(zb_optimizer_step(s, 0.5, &res));
        CU_ASSERT_EQUAL(res.grad_norm, 5);
        ZBT_OK(zb_session_get_param(s, zb_graph_find_param(g, "a"), &after[0]));
        ZBT_OK(zb_session_get_param(s, zb_graph_find_param(g, "b"), &after[1]));
        CU_ASSERT_DOUBLE_EQUAL(after[0], 1 - 0.5 * 3 / 5, 1e-6);
        CU_ASSERT_DOUBLE_EQUAL(after[1], 0.75 - 0.5 * 4 / 5, 1e-6);
        zb_session_free(s);
    }
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(trajectories_equal_pytorch),
        ZBT_CASE(no_decay_leaves_weights_of_zero_gradients),
        ZBT_CASE(learning_rates_equal_transformers),
        ZBT_CASE(wsd_equals_transformers_where_defined_alike),
        ZBT_CASE(rate_without_warmup_begins_at_peak),
        ZBT_CASE(clip_scale_limits_the_norm),
        ZBT_CASE(norms_of_stages_are_added_in_squares),
    };

    return zbt_run("optim", cases, ZB_COUNT_OF(cases));
}
