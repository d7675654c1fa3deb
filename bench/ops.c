/* SPDX-License-Identifier: MIT
 *
 * How fast the kernels of a backend are, beside what this machine's processor
 * can do: `bench/ops [backend [threads]]`. Each figure is the best of several
 * repeats. Only the work a kernel must do counts: half of the square for causal
 * attention, each byte once.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zb/backend.h"
#include "zb/mem.h"
#include "zb/thread.h"

#define N_REPEATS 20
#define REPEAT_NS 3000000.0 /* shorter than a time slice */

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

typedef float vec __attribute__((vector_size(VEC_BYTES)));

struct bench {
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
    double peak; /* GFLOP/s of the team */
    int n_threads;
    enum zb_status st; /* first error */
};

/* Independent multiply-adds in registers: the most one core can do. */
static double core_peak(void)
{
    enum { N_ACC = 12, N_ROUNDS = 200000 };
    vec acc[N_ACC], x = {0.5f}, y = {0.25f};
    double best = 0;

#pragma GCC unroll 12
    for (int i = 0; i < N_ACC; i++) {
        acc[i] = x * (float)i;
    }
    for (int r = 0; r < N_REPEATS; r++) {
        int64_t start = zb_now_ns();
        double flops = 2.0 * N_ROUNDS * N_ACC * VEC_BYTES / sizeof(float), g;

        for (int n = 0; n < N_ROUNDS; n++) {
#pragma GCC unroll 12
            for (int i = 0; i < N_ACC; i++) {
                acc[i] = acc[i] * x + y;
            }
            __asm__ volatile("" ::: "memory");
        }
        g = flops / (double)(zb_now_ns() - start);
        best = g > best ? g : best;
    }
#pragma GCC unroll 12
    for (int i = 1; i < N_ACC; i++) {
        acc[0] += acc[i];
    }
    return acc[0][0] > 1e30f ? 0 : best;
}

#define REAL ZB_DTYPE_REAL

static zb_real *reals(struct bench *b, int64_t n)
{
    struct zb_k_fill_normal fill = {.n = n, .seed = 1, .key = (uint64_t)n,
                                    .std = 0.5};
    struct zb_launch launch = {.kernel = ZB_K_fill_normal, .label = "fill",
                               .params = &fill, .n_access = 1};
    void *ptr = NULL;

    if (b->st == ZB_OK) {
        b->st = b->be->ops->mem_alloc(b->dev, (size_t)n * sizeof(zb_real),
                                      "bench", &ptr);
    }
    if (b->st == ZB_OK) {
        fill.y = ptr;
        launch.access[0] = (struct zb_access){
            ptr, (size_t)n * sizeof(zb_real), ZB_WRITE};
        b->st = b->be->ops->launch(b->stream, &launch);
    }
    return ptr;
}

static int32_t *labels(struct bench *b, int64_t n, int64_t n_ids)
{
    int32_t *host = zb_alloc_array((size_t)n, sizeof(*host));
    void *ptr = NULL;
    size_t bytes = (size_t)n * sizeof(*host);

    if (host == NULL) {
        b->st = ZB_ENOMEM;
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        host[i] = (int32_t)(i * 7919 % n_ids);
    }
    if (b->st == ZB_OK) {
        b->st = b->be->ops->mem_alloc(b->dev, bytes, "labels", &ptr);
    }
    if (b->st == ZB_OK) {
        b->st = b->be->ops->copy_in(b->stream, ptr, host, bytes, "labels");
    }
    if (b->st == ZB_OK) {
        b->st = b->be->ops->stream_sync(b->stream);
    }
    zb_free(host);
    return ptr;
}

static void drop(struct bench *b, int n, void *const *ptr)
{
    for (int i = 0; i < n; i++) {
        b->be->ops->mem_free(b->dev, ptr[i]);
    }
}

/* Processor time of this thread where it works alone, so that what else runs on
 * the machine counts less; else the time that passed. */
static int64_t clock_ns(const struct bench *b)
{
    struct timespec t;

    if (b->n_threads > 1 || strcmp(b->be->ops->name, "cpu") != 0 ||
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) {
        return zb_now_ns();
    }
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double run_ns(struct bench *b, const struct zb_launch *launch, int n)
{
    int64_t start = clock_ns(b);

    for (int i = 0; i < n && b->st == ZB_OK; i++) {
        b->st = b->be->ops->launch(b->stream, launch);
    }
    if (b->st == ZB_OK) {
        b->st = b->be->ops->stream_sync(b->stream);
    }
    return (double)(clock_ns(b) - start) / n;
}

/* Print one line: time, and GFLOP/s with the share of the peak, or GB/s. */
static void measure(struct bench *b, const char *what, enum zb_kernel kernel,
                    const void *params, double flops, double bytes)
{
    struct zb_launch launch = {.kernel = kernel, .label = what,
                               .params = params};
    double best, once = run_ns(b, &launch, 1);
    int n = once >= REPEAT_NS ? 1 : (int)(REPEAT_NS / once) + 1;

    best = once;
    for (int r = 0; r < N_REPEATS; r++) {
        double ns = run_ns(b, &launch, n);

        best = ns < best ? ns : best;
    }
    if (b->st != ZB_OK) {
        return;
    }
    printf("%-36s %10.1f us", what, best / 1000);
    if (flops > 0) {
        printf(" %8.1f GFLOP/s %5.1f %%\n", flops / best,
               100 * flops / best / b->peak);
    } else {
        printf(" %8.1f GB/s\n", bytes / best);
    }
}

static void bench_gemm(struct bench *b, int64_t m, int64_t n, int64_t k)
{
    static const char *const forms[] = {"AB", "AB'", "A'B"};
    zb_real *a = reals(b, m * k), *bb = reals(b, k * n), *c = reals(b, m * n);
    char what[64];

    for (int form = 0; form < 3; form++) {
        struct zb_k_gemm p = {.m = m, .n = n, .k = k, .trans_a = form == 2,
                              .trans_b = form == 1, .accumulate = form == 2,
                              .a = a, .b = bb, .c = c,
                              .lda = form == 2 ? m : k,
                              .ldb = form == 1 ? k : n, .ldc = n};

        snprintf(what, sizeof(what), "gemm %s%s %lld x %lld x %lld",
                 forms[form], form == 2 ? " +=" : "", (long long)m,
                 (long long)n, (long long)k);
        measure(b, what, ZB_K_gemm, &p,
                2.0 * (double)m * (double)n * (double)k, 0);
    }
    drop(b, 3, (void *[]){a, bb, c});
}

struct attn {
    int64_t batch, seq, heads, dim;
    int causal;
    double dropout;
};

/* q, k and v packed in one row, as models have them. */
static void bench_attention(struct bench *b, const struct attn *s)
{
    int64_t rows = s->batch * s->seq, n = rows * s->heads * s->dim;
    int64_t row = 3 * s->heads * s->dim;
    zb_real *qkv = reals(b, 3 * n), *dqkv = reals(b, 3 * n);
    zb_real *out = reals(b, n), *dout = reals(b, n);
    zb_real *lse = reals(b, rows * s->heads);
    int32_t *sample = labels(b, 2 * s->batch, 100);
    struct zb_k_attention_fwd f = {
        .batch = s->batch, .seq = s->seq, .kv_seq = s->seq,
        .whole = s->seq, .q_heads = s->heads, .kv_heads = s->heads,
        .head_dim = s->dim, .causal = s->causal, .q_batch = s->seq * row,
        .k_batch = s->seq * row, .v_batch = s->seq * row,
        .out_batch = s->seq * s->heads * s->dim, .lse_row = s->seq,
        .scale = 1 / sqrt((double)s->dim), .dropout = s->dropout,
        .philox = {.sample = (const int64_t *)(void *)sample}, .q = qkv,
        .k = qkv + s->heads * s->dim, .v = qkv + 2 * s->heads * s->dim,
        .q_row = row, .k_row = row, .v_row = row, .q_head = s->dim,
        .k_head = s->dim, .v_head = s->dim, .out = out, .lse = lse};
    struct zb_k_attention_bwd w = {
        .fwd = f, .dout = dout, .dq = dqkv, .dk = dqkv + s->heads * s->dim,
        .dv = dqkv + 2 * s->heads * s->dim, .dq_batch = s->seq * row,
        .dk_batch = s->seq * row, .dv_batch = s->seq * row, .dq_row = row, .dk_row = row,
        .dv_row = row, .dq_head = s->dim, .dk_head = s->dim,
        .dv_head = s->dim};
    double seq = (double)s->seq, pairs = s->causal ? (seq + 1) / 2 : seq;
    double flops = 4.0 * (double)n * pairs;
    char what[64];

    for (int pass = 0; pass < 2; pass++) {
        snprintf(what, sizeof(what), "attn%s%s T %lld D %lld %s",
                 s->causal ? " causal" : "", s->dropout > 0 ? " drop" : "",
                 (long long)s->seq, (long long)s->dim,
                 pass == 0 ? "forward" : "backward");
        if (pass == 0) {
            measure(b, what, ZB_K_attention_fwd, &f, flops, 0);
        } else {
            measure(b, what, ZB_K_attention_bwd, &w, 2.5 * flops, 0);
        }
    }
    drop(b, 6, (void *[]){qkv, dqkv, out, dout, lse, sample});
}

static void bench_norms(struct bench *b, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols;
    zb_real *x = reals(b, n), *y = reals(b, n), *dy = reals(b, n);
    zb_real *g = reals(b, cols), *dg = reals(b, cols), *db = reals(b, cols);
    zb_real *mean = reals(b, rows), *rstd = reals(b, rows);
    struct zb_k_layernorm_fwd lf = {rows, cols, 1, 1e-5, REAL, x, g, g, y, mean, rstd};
    struct zb_k_layernorm_bwd lb = {rows, cols, 1, REAL, dy, x, g, dy, mean, rstd, y};
    struct zb_k_layernorm_bwd_w lw = {rows, cols, 1, REAL, dy, x, mean, rstd, dg, db};
    struct zb_k_rmsnorm_fwd rf = {rows, cols, 1e-5, REAL, x, g, y, rstd};
    struct zb_k_rmsnorm_bwd rb = {rows, cols, REAL, dy, x, g, dy, rstd, y};
    struct zb_k_rmsnorm_bwd_w rw = {rows, cols, REAL, dy, x, rstd, dg};
    struct zb_k_col_sum cs = {rows, cols, cols, REAL, x, dg};
    double bytes = (double)n * sizeof(zb_real);

    measure(b, "layernorm_fwd", ZB_K_layernorm_fwd, &lf, 0, 2 * bytes);
    measure(b, "layernorm_bwd", ZB_K_layernorm_bwd, &lb, 0, 3 * bytes);
    measure(b, "layernorm_bwd_w", ZB_K_layernorm_bwd_w, &lw, 0, 2 * bytes);
    measure(b, "rmsnorm_fwd", ZB_K_rmsnorm_fwd, &rf, 0, 2 * bytes);
    measure(b, "rmsnorm_bwd", ZB_K_rmsnorm_bwd, &rb, 0, 3 * bytes);
    measure(b, "rmsnorm_bwd_w", ZB_K_rmsnorm_bwd_w, &rw, 0, 2 * bytes);
    measure(b, "col_sum", ZB_K_col_sum, &cs, 0, bytes);
    drop(b, 8, (void *[]){x, y, dy, g, dg, db, mean, rstd});
}

static void bench_elementwise(struct bench *b, int64_t n)
{
    zb_real *x = reals(b, n), *y = reals(b, n), *z = reals(b, n);
    zb_real *m = reals(b, n), *v = reals(b, n);
    struct zb_k_act_fwd gelu = {n, ZB_ACT_GELU_TANH, REAL, x, y};
    struct zb_k_act_bwd gelu_b = {n, ZB_ACT_GELU_TANH, REAL, z, x, y};
    struct zb_k_gated_fwd gate = {n / 512, 512, 512, 512, 512, ZB_ACT_SILU,
                                  REAL, x, z, y};
    struct zb_k_gated_bwd gate_b = {n / 512, 512, 512, 512, 512, 512, 512,
                                    ZB_ACT_SILU, REAL, m, x, z, y, v};
    struct zb_k_add add = {n, REAL, x, z, y};
    struct zb_k_sumsq_f64 sum = {n, REAL, x, (double *)(void *)y};
    struct zb_k_fill_normal normal = {.n = n, .seed = 1, .std = 1, .y = y};
    struct zb_k_fill zero = {n, 0, REAL, v};
    struct zb_k_adamw adamw = {.n = n, .t = 3, .lr = 1e-6, .beta1 = 0.9,
                               .beta2 = 0.95, .eps = 1e-8,
                               .weight_decay = 0.1, .grad_scale = 1,
                               .grad = x, .param = z, .m = m, .v = v};
    double bytes = (double)n * sizeof(zb_real);

    measure(b, "gelu_tanh forward", ZB_K_act_fwd, &gelu, 0, 2 * bytes);
    measure(b, "gelu_tanh backward", ZB_K_act_bwd, &gelu_b, 0, 3 * bytes);
    measure(b, "swiglu forward", ZB_K_gated_fwd, &gate, 0, 3 * bytes);
    measure(b, "swiglu backward", ZB_K_gated_bwd, &gate_b, 0, 5 * bytes);
    measure(b, "add", ZB_K_add, &add, 0, 3 * bytes);
    measure(b, "sumsq_f64", ZB_K_sumsq_f64, &sum, 0, bytes);
    measure(b, "fill_normal", ZB_K_fill_normal, &normal, 0, bytes);
    measure(b, "fill", ZB_K_fill, &zero, 0, bytes);
    measure(b, "adamw", ZB_K_adamw, &adamw, 0, 7 * bytes);
    drop(b, 5, (void *[]){x, y, z, m, v});
}

static void bench_loss(struct bench *b, int64_t rows, int64_t cols)
{
    zb_real *x = reals(b, rows * cols), *d = reals(b, rows * cols);
    zb_real *loss = reals(b, rows), *lse = reals(b, rows);
    int32_t *label = labels(b, rows, cols);
    struct zb_k_xent_fwd f = {rows, cols, cols, REAL, x, label, loss, lse};
    struct zb_k_xent_bwd w = {rows, cols, cols, cols, 0,   cols, 0,
                              1,    REAL, x,    lse,  label, d};
    double bytes = (double)(rows * cols) * sizeof(zb_real);

    measure(b, "xent_fwd", ZB_K_xent_fwd, &f, 0, bytes);
    measure(b, "xent_bwd", ZB_K_xent_bwd, &w, 0, 2 * bytes);
    drop(b, 5, (void *[]){x, d, loss, lse, label});
}

static void bench_all(struct bench *b)
{
    static const struct attn attn[] = {
        {8, 64, 12, 64, 1, 0},   {4, 128, 12, 64, 1, 0},
        {4, 256, 12, 64, 1, 0},  {4, 256, 12, 64, 0, 0},
        {1, 1024, 12, 64, 1, 0}, {4, 256, 8, 128, 1, 0},
        {4, 256, 12, 32, 1, 0},  {4, 256, 12, 64, 1, 0.1},
        {4, 256, 16, 16, 1, 0},
    };
    static const int64_t gemm[][3] = {
        {64, 64, 64},      {256, 128, 128},  {1024, 512, 128},
        {256, 2304, 768},  {256, 768, 3072}, {256, 3072, 768},
        {1024, 1024, 1024}};

    for (size_t i = 0; i < ZB_COUNT_OF(gemm); i++) {
        bench_gemm(b, gemm[i][0], gemm[i][1], gemm[i][2]);
    }
    for (size_t i = 0; i < ZB_COUNT_OF(attn); i++) {
        bench_attention(b, &attn[i]);
    }
    bench_norms(b, 512, 768);
    bench_elementwise(b, 1 << 18);
    bench_loss(b, 256, 32000);
    printf("in memory:\n");
    bench_elementwise(b, 1 << 24);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "cpu";
    struct zb_backend_opts opts = {
        .n_devices = 1, .threads_per_device = argc > 2 ? atoi(argv[2]) : 1};
    struct bench b = {.n_threads = opts.threads_per_device};

    b.st = zb_backend_open(name, &opts, &b.be);
    if (b.st == ZB_OK) {
        b.st = b.be->ops->device_open(b.be, 0, &b.dev);
    }
    if (b.st == ZB_OK) {
        b.st = b.be->ops->stream_new(b.dev, "bench", &b.stream);
    }
    if (b.st == ZB_OK) {
        b.peak = core_peak() * b.n_threads;
        printf("%-36s %23.1f GFLOP/s (%d threads)\n", "peak, multiply-adds",
               b.peak, b.n_threads);
        bench_all(&b);
    }
    if (b.st != ZB_OK) {
        fprintf(stderr, "ops: %s\n", zb_error_text());
        return 1;
    }
    b.be->ops->stream_free(b.stream);
    b.be->ops->device_close(b.dev);
    zb_backend_close(b.be);
    return 0;
}
