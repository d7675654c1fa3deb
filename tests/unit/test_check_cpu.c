/* SPDX-License-Identifier: MIT
 *
 * The check backend over the real cpu backend: kernels run in the threads of
 * its streams, with the cpu backend's team and scratch memory, and give the
 * same bits as without it.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "zb/backend.h"
#include "zb/check.h"
#include "zb/mem.h"
#include "zbt.h"

/* [SEQ, DIM] with HEADS heads, one batch row. */
#define SEQ 96
#define HEADS 4
#define HEAD_DIM 16
#define DIM ((int64_t)HEADS * HEAD_DIM)
#define N_X (SEQ * DIM)
#define N_W (3 * DIM * DIM)

/* The parts of the arena, in elements. */
enum { X = 0, RSTD = N_X, H = RSTD + SEQ, W = H + N_X, QKV = W + N_W };
enum { OUT = QKV + 3 * N_X, LSE = OUT + N_X, ARENA = LSE + HEADS * SEQ };

struct work {
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *main, *side;
    struct zb_event *ready;
    zb_real *arena;
};

static enum zb_status go(struct work *w, struct zb_stream *s, enum zb_kernel k,
                         const char *label, const void *p,
                         const struct zb_access *access, int n_access)
{
    struct zb_launch launch = {
        .kernel = k, .label = label, .params = p, .n_access = n_access};

    memcpy(launch.access, access, (size_t)n_access * sizeof(access[0]));
    return w->be->ops->launch(s, &launch);
}

static struct zb_access use(const zb_real *p, int64_t n,
                            enum zb_access_mode mode)
{
    return (struct zb_access){p, (size_t)n * sizeof(*p), mode};
}

static enum zb_status start_values(struct work *w)
{
    zb_real *a = w->arena;
    const struct zb_k_fill_normal x = {
        .n = N_X, .seed = 1, .key = 2, .std = 1, .y = a + X};
    const struct zb_k_fill_normal wqkv = {
        .n = N_W, .seed = 1, .key = 3, .std = 0.1, .y = a + W};
    const struct zb_access acc_x = use(a + X, N_X, ZB_WRITE);
    const struct zb_access acc_w = use(a + W, N_W, ZB_WRITE);

    ZB_TRY(go(w, w->main, ZB_K_fill_normal, "x", &x, &acc_x, 1));
    ZB_TRY(go(w, w->side, ZB_K_fill_normal, "w", &wqkv, &acc_w, 1));
    ZB_TRY(w->be->ops->event_record(w->ready, w->side));
    return ZB_OK;
}

/* gamma is a row of w: it only has to be something. */
static enum zb_status norm_and_project(struct work *w)
{
    zb_real *a = w->arena;
    const struct zb_k_rmsnorm_fwd norm = {.rows = SEQ,
                                          .cols = DIM,
                                          .eps = 1e-5,
                                          .x = a + X,
                                          .gamma = a + W,
                                          .y = a + H,
                                          .rstd = a + RSTD};
    const struct zb_access acc_norm[] = {
        use(a + X, N_X, ZB_READ), use(a + W, DIM, ZB_READ),
        use(a + H, N_X, ZB_WRITE), use(a + RSTD, SEQ, ZB_WRITE)};
    const struct zb_k_gemm gemm = {.m = SEQ,
                                   .n = 3 * DIM,
                                   .k = DIM,
                                   .trans_b = 1,
                                   .a = a + H,
                                   .b = a + W,
                                   .c = a + QKV,
                                   .lda = DIM,
                                   .ldb = DIM,
                                   .ldc = 3 * DIM};
    const struct zb_access acc_gemm[] = {use(a + H, N_X, ZB_READ),
                                         use(a + W, N_W, ZB_READ),
                                         use(a + QKV, 3 * N_X, ZB_WRITE)};

    ZB_TRY(go(w, w->main, ZB_K_rmsnorm_fwd, "norm", &norm, acc_norm, 4));
    return go(w, w->main, ZB_K_gemm, "qkv", &gemm, acc_gemm, 3);
}

static enum zb_status attend(struct work *w)
{
    zb_real *a = w->arena;
    const struct zb_k_attention_fwd k = {.batch = 1,
                                         .seq = SEQ,
                                         .kv_seq = SEQ,
                                         .whole = SEQ,
                                         .lse_row = SEQ,
                                         .q_heads = HEADS,
                                         .kv_heads = HEADS,
                                         .head_dim = HEAD_DIM,
                                         .causal = 1,
                                         .scale = 0.25,
                                         .q = a + QKV,
                                         .k = a + QKV + DIM,
                                         .v = a + QKV + 2 * DIM,
                                         .q_row = 3 * DIM,
                                         .k_row = 3 * DIM,
                                         .v_row = 3 * DIM,
                                         .q_head = HEAD_DIM,
                                         .k_head = HEAD_DIM,
                                         .v_head = HEAD_DIM,
                                         .out = a + OUT,
                                         .lse = a + LSE};
    const struct zb_access acc[] = {use(a + QKV, 3 * N_X, ZB_READ),
                                    use(a + OUT, N_X, ZB_WRITE),
                                    use(a + LSE, HEADS * SEQ, ZB_WRITE)};

    return go(w, w->main, ZB_K_attention_fwd, "attention", &k, acc, 3);
}

static enum zb_status open_work(struct work *w, const char *name, uint64_t seed,
                                int n_threads)
{
    const struct zb_backend_opts opts = {.n_devices = 1,
                                         .threads_per_device = n_threads,
                                         .seed = seed,
                                         .max_delay_us = 200};
    void *arena;

    ZB_TRY(zb_backend_open(name, &opts, &w->be));
    ZB_TRY(w->be->ops->device_open(w->be, 0, &w->dev));
    ZB_TRY(w->be->ops->stream_new(w->dev, "main", &w->main));
    ZB_TRY(w->be->ops->stream_new(w->dev, "side", &w->side));
    ZB_TRY(w->be->ops->event_new(w->dev, &w->ready));
    ZB_TRY(w->be->ops->mem_alloc(w->dev, ARENA * sizeof(zb_real), "arena",
                                 &arena));
    w->arena = arena;
    return ZB_OK;
}

static void close_work(struct work *w)
{
    w->be->ops->stream_free(w->main);
    w->be->ops->stream_free(w->side);
    w->be->ops->event_free(w->ready);
    w->be->ops->mem_free(w->dev, w->arena);
    w->be->ops->device_close(w->dev);
    zb_backend_close(w->be);
}

/* All of it into result; without the wait for w when told so. */
static enum zb_status compute(struct work *w, int has_wait, zb_real *result)
{
    ZB_TRY(start_values(w));
    if (has_wait) {
        ZB_TRY(w->be->ops->stream_wait(w->main, w->ready));
    }
    ZB_TRY(norm_and_project(w));
    ZB_TRY(attend(w));
    ZB_TRY(w->be->ops->copy_out(w->main, result, w->arena + OUT,
                                (size_t)N_X * sizeof(*result), "result"));
    return w->be->ops->stream_sync(w->main);
}

static void attention_in_streams_gives_the_bits_of_cpu(void)
{
    const size_t bytes = (size_t)N_X * sizeof(zb_real);
    zb_real *want = zb_alloc(bytes), *got = zb_alloc(bytes);
    struct work w;

    CU_ASSERT_FATAL(want != NULL && got != NULL);
    ZBT_OK(open_work(&w, "cpu", 0, 1));
    ZBT_OK(compute(&w, 1, want));
    close_work(&w);
    CU_ASSERT(isfinite(want[0]) && want[0] != 0);
    for (uint64_t seed = 0; seed < 20; seed++) {
        memset(got, 0, bytes);
        ZBT_OK(open_work(&w, "check", seed, 1 + (int)(seed % 2)));
        ZBT_OK(compute(&w, 1, got));
        CU_ASSERT_EQUAL(zb_check_reports(w.be), 0);
        close_work(&w);
        CU_ASSERT_EQUAL(memcmp(want, got, bytes), 0);
    }
    zb_free(want);
    zb_free(got);
}

static void missing_wait_is_reported_on_check_only(void)
{
    zb_real *result = zb_alloc((size_t)N_X * sizeof(*result));
    struct work w;

    CU_ASSERT_PTR_NOT_NULL_FATAL(result);
    ZBT_OK(open_work(&w, "cpu", 0, 1));
    ZBT_OK(compute(&w, 0, result));
    CU_ASSERT_EQUAL(zb_check_reports(w.be), 0);
    close_work(&w);
    for (uint64_t seed = 0; seed < 20; seed++) {
        ZBT_OK(open_work(&w, "check", seed, 1));
        CU_ASSERT_EQUAL(compute(&w, 0, result), ZB_EDEVICE);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "race: read of"));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "by \"norm\""));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "its write by \"w\""));
        close_work(&w);
    }
    zb_free(result);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(attention_in_streams_gives_the_bits_of_cpu),
        ZBT_CASE(missing_wait_is_reported_on_check_only),
    };

    return zbt_run("check_cpu", cases, ZB_COUNT_OF(cases));
}
