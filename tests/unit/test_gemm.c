/* SPDX-License-Identifier: MIT
 *
 * Matrix products of every backend, against three plain loops in double.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "ops_rig.h"
#include "zb/mem.h"
#include "zb/thread.h"

static const char *backend;

struct shape {
    int64_t m, n, k;
    int trans_a, trans_b, accumulate, has_bias;
};

static void reference(const struct zb_k_gemm *p, const double *a,
                      const double *b, const double *bias, double *c)
{
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double sum = p->accumulate ? c[i * p->ldc + j] : 0;

            for (int64_t l = 0; l < p->k; l++) {
                sum += a[p->trans_a ? l * p->lda + i : i * p->lda + l] *
                       b[p->trans_b ? j * p->ldb + l : l * p->ldb + j];
            }
            c[i * p->ldc + j] = sum + (bias != NULL ? bias[j] : 0);
        }
    }
}

static void check_gemm(const struct shape *s)
{
    struct zbt_rng rng = {(unsigned long long)(s->m * 7 + s->n * 5 + s->k)};
    struct zb_k_gemm p = {.m = s->m, .n = s->n, .k = s->k,
                          .trans_a = s->trans_a, .trans_b = s->trans_b,
                          .accumulate = s->accumulate};
    int64_t a_rows = s->trans_a ? s->k : s->m;
    int64_t b_rows = s->trans_b ? s->n : s->k;
    double *a, *b, *c, *bias;

    p.lda = (s->trans_a ? s->m : s->k) + 3;
    p.ldb = (s->trans_b ? s->k : s->n) + 1;
    p.ldc = s->n + 2;
    a = ops_random(&rng, a_rows * p.lda + 1, -1, 1);
    b = ops_random(&rng, b_rows * p.ldb + 1, -1, 1);
    c = ops_random(&rng, s->m * p.ldc + 1, -1, 1);
    bias = ops_random(&rng, s->n + 1, -1, 1);
    p.a = ops_reals(a_rows * p.lda + 1, a);
    p.b = ops_reals(b_rows * p.ldb + 1, b);
    p.c = ops_reals(s->m * p.ldc + 1, c);
    p.bias = s->has_bias ? ops_reals(s->n + 1, bias) : NULL;
    ops_run(ZB_K_gemm, &p, OPS_OUT(p.c), OPS_IN(p.a, p.b, p.bias));
    reference(&p, a, b, s->has_bias ? bias : NULL, c);
    ops_expect("gemm", p.c, s->m * p.ldc + 1, c, OPS_TOL(2e-6, 1e-14));
}

static void every_form_and_odd_size_agrees_with_loops(void)
{
    static const int64_t sizes[][3] = {
        {1, 1, 1},   {3, 7, 13},   {13, 56, 7},    {56, 1, 3},  {1, 56, 13},
        {7, 3, 300}, {64, 70, 65}, {130, 33, 257}, {3, 513, 5}, {0, 5, 3},
        {5, 0, 3},   {5, 7, 0},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        for (int form = 0; form < 12; form++) {
            struct shape s = {sizes[i][0], sizes[i][1], sizes[i][2],
                              form & 1, form >> 1 & 1, form / 4 == 1,
                              form / 4 == 2};

            ops_open(backend, 1);
            check_gemm(&s);
            ops_close();
        }
    }
}

static void output_of_nan_is_overwritten(void)
{
    double ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    double want[9] = {4, 4, 4, 4, 4, 4, 4, 4, 4};
    struct zb_k_gemm p = {.m = 3, .n = 3, .k = 4, .lda = 4, .ldb = 3, .ldc = 3};

    ops_open(backend, 1);
    p.a = ops_reals(12, ones);
    p.b = ops_reals(12, ones);
    p.c = ops_blank(9);
    ops_run(ZB_K_gemm, &p, OPS_OUT(p.c), OPS_IN(p.a, p.b));
    ops_expect("gemm", p.c, 9, want, 0);
    ops_close();
}

/* Asynchronous backends report it, too, but then the stream is lost. */
static void short_row_stride_is_refused(void)
{
    double x[16] = {0};
    struct zb_k_gemm p = {.m = 4, .n = 4, .k = 4, .lda = 3, .ldb = 4, .ldc = 4};

    if (strcmp(backend, "cpu") != 0) {
        return;
    }
    ops_open(backend, 1);
    p.a = ops_reals(16, x);
    p.b = ops_reals(16, x);
    p.c = ops_reals(16, x);
    CU_ASSERT_EQUAL(ops_try(ZB_K_gemm, &p, OPS_OUT(p.c), OPS_IN(p.a, p.b)),
                    ZB_EINVAL);
    ops_close();
}

static uint64_t hash_with(int n_threads, int form)
{
    static const struct shape big[] = {
        {300, 1030, 70, 0, 0, 0, 0}, {1030, 130, 300, 0, 1, 0, 1},
        {515, 515, 129, 1, 0, 1, 0}, {1, 2000, 800, 0, 0, 0, 0},
        {2000, 1, 800, 1, 0, 0, 0},  {258, 514, 1000, 0, 1, 0, 0},
    };
    uint64_t hash;

    if (form >= (int)ZB_COUNT_OF(big)) {
        return 0;
    }
    ops_open(backend, n_threads);
    check_gemm(&big[form]);
    hash = ops_hash();
    ops_close();
    return hash;
}

static void number_of_threads_does_not_change_a_bit(void)
{
    for (int form = 0; hash_with(1, form) != 0; form++) {
        uint64_t one = hash_with(1, form);

        CU_ASSERT_EQUAL(one, hash_with(2, form));
        CU_ASSERT_EQUAL(one, hash_with(3, form));
    }
}

/* ---- several devices at once --------------------------------------------- */

#define N_CALLERS 4
#define CALL_M 96
#define CALL_N 130
#define CALL_K 200

struct caller {
    struct zb_backend *be;
    int index, n_calls, n_wrong;
    enum zb_status st;
    const zb_real *a, *b; /* shared, read only */
    zb_real *c;           /* [CALL_M, CALL_N] */
    const zb_real *want;  /* or NULL: leave c as it is */
};

static enum zb_status call_once(struct caller *t, struct zb_stream *stream)
{
    struct zb_k_gemm p = {.m = CALL_M, .n = CALL_N, .k = CALL_K,
                          .a = t->a, .b = t->b, .c = t->c,
                          .lda = CALL_K, .ldb = CALL_N, .ldc = CALL_N};
    struct zb_launch launch = {.kernel = ZB_K_gemm, .label = "gemm",
                               .params = &p};

    ZB_TRY(t->be->ops->launch(stream, &launch));
    if (t->want != NULL &&
        memcmp(t->c, t->want, CALL_M * CALL_N * sizeof(zb_real)) != 0) {
        t->n_wrong++;
    }
    return ZB_OK;
}

static void call_many(void *arg)
{
    struct caller *t = arg;
    struct zb_device *dev;
    struct zb_stream *stream;

    t->st = t->be->ops->device_open(t->be, t->index, &dev);
    if (t->st != ZB_OK) {
        return;
    }
    t->st = t->be->ops->stream_new(dev, "s", &stream);
    for (int i = 0; t->st == ZB_OK && i < t->n_calls; i++) {
        t->st = call_once(t, stream);
    }
    t->be->ops->stream_free(stream);
    t->be->ops->device_close(dev);
}

static void concurrent_devices_give_serial_bits(void)
{
    struct zb_backend_opts opts = {.n_devices = N_CALLERS,
                                   .threads_per_device = 1};
    struct zb_thread threads[N_CALLERS];
    struct caller callers[N_CALLERS];
    struct zb_backend *be;
    struct zbt_rng rng = {5};
    size_t n_c = CALL_M * CALL_N;
    zb_real *a = zb_alloc_array(CALL_M * CALL_K, sizeof(*a));
    zb_real *b = zb_alloc_array(CALL_K * CALL_N, sizeof(*b));
    zb_real *c = zb_alloc_array(n_c * (N_CALLERS + 1), sizeof(*c));

    if (strcmp(backend, "cpu") != 0) {
        zb_free(a);
        zb_free(b);
        zb_free(c);
        return;
    }
    for (int i = 0; i < CALL_M * CALL_K; i++) {
        a[i] = (zb_real)zbt_rand_in(&rng, -1000, 1000) / 977;
    }
    for (int i = 0; i < CALL_K * CALL_N; i++) {
        b[i] = (zb_real)zbt_rand_in(&rng, -1000, 1000) / 977;
    }
    ZBT_OK(zb_backend_open("cpu", &opts, &be));
    callers[0] = (struct caller){be, 0, 1, 0, ZB_OK, a, b,
                                 c + N_CALLERS * n_c, NULL};
    call_many(&callers[0]);
    ZBT_OK(callers[0].st);
    for (int i = 0; i < N_CALLERS; i++) {
        callers[i] = (struct caller){be, i, 500, 0, ZB_OK, a, b,
                                     c + (size_t)i * n_c, c + N_CALLERS * n_c};
        ZBT_OK(zb_thread_start(&threads[i], "caller", call_many, &callers[i]));
    }
    for (int i = 0; i < N_CALLERS; i++) {
        zb_thread_join(&threads[i]);
        CU_ASSERT_EQUAL(callers[i].st, ZB_OK);
        CU_ASSERT_EQUAL(callers[i].n_wrong, 0);
    }
    zb_backend_close(be);
    zb_free(a);
    zb_free(b);
    zb_free(c);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_form_and_odd_size_agrees_with_loops),
        ZBT_CASE(output_of_nan_is_overwritten),
        ZBT_CASE(short_row_stride_is_refused),
        ZBT_CASE(number_of_threads_does_not_change_a_bit),
        ZBT_CASE(concurrent_devices_give_serial_bits),
    };
    int bad = 0;

    for (size_t i = 0; (backend = ops_backend(i)) != NULL; i++) {
        printf("backend %s\n", backend);
        bad |= zbt_run("gemm", cases, ZB_COUNT_OF(cases));
    }
    return bad;
}
