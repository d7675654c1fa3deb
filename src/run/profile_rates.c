/* SPDX-License-Identifier: MIT
 *
 * How fast the devices are: products with the largest matrix of the most
 * frequent kind of layer, additions of long arrays, launches without work. */
#include "config.h"
#include "run/profile.h"
#include "run/run_int.h"

#include "zb/machine.h"

#define ROUNDS 5
#define WARM_UP 1
#define MAX_FLOPS 2e8       /* of one product */
#define ARRAY_REALS (1 << 21)
#define N_LAUNCHES 200

/* C[m,n] = A[m,k] B[k,n] */
struct sizes {
    int64_t m, n, k;
};

static struct sizes find_product(const struct zb_profile_request *r)
{
    const struct zb_layer_kinds *kinds = r->kinds;
    struct sizes z = {.n = 1, .k = 1};
    struct zb_chunk_info info;
    double most;
    int best = 0;

    for (int i = 1; i < kinds->n_kinds; i++) {
        best = kinds->count[i] > kinds->count[best] ? i : best;
    }
    info = zb_chunk_info(kinds->chunk[best]);
    for (int i = 0; i < info.n_params; i++) {
        struct zb_param_info p = zb_graph_param(r->g, info.params[i]);

        if (p.shape.n_dims == 2 && zb_shape_elems(&p.shape) > z.n * z.k) {
            z.n = p.shape.dim[0];
            z.k = p.shape.dim[1];
        }
    }
    z.m = r->max.value[ZB_SYM_BATCH] * r->max.value[ZB_SYM_SEQ];
    most = MAX_FLOPS / 2 / ((double)z.n * (double)z.k);
    if ((double)z.m > most) {
        z.m = most < 1 ? 1 : (int64_t)most;
    }
    return z;
}

/* The sizes of the pass in which a linear layer has that form. */
static struct zb_k_gemm product_of(struct sizes z, enum zb_product form,
                                   enum zb_dtype dtype, zb_real *mem)
{
    struct zb_k_gemm k = {.dtype = dtype,
                          .c_dtype = dtype,
                          .a = mem,
                          .b = mem + z.m * z.k,
                          .c = mem + z.m * z.k + z.k * z.n};

    switch (form) {
    case ZB_PRODUCT_NT: /* y = x W^T */
        k.trans_b = 1;
        break;
    case ZB_PRODUCT_TN: /* dW += dy^T x */
        k.b = mem + z.m * z.n;
        k.c = mem + z.m * z.n + z.m * z.k;
        k.c_dtype = ZB_DTYPE_REAL;
        k.trans_a = k.accumulate = 1;
        k.m = k.lda = z.n;
        k.n = k.ldb = k.ldc = z.k;
        k.k = z.m;
        return k;
    default:
        break;
    }
    k.m = z.m;
    k.n = k.ldc = z.n;
    k.k = k.lda = z.k;
    k.ldb = k.trans_b ? z.k : z.n;
    return k;
}

static enum zb_status launch_product(struct zb_seat *s, zb_real *mem,
                                     enum zb_product form)
{
    struct sizes z = find_product(s->p->r);
    struct zb_k_gemm k =
        product_of(z, form, zb_graph_storage(s->p->r->g), mem);
    struct zb_launch l = {
        .kernel = ZB_K_gemm, .label = "profile", .params = &k};

    zb_launch_reals(&l, mem, (const zb_real *)k.c - mem, ZB_READ);
    zb_launch_reals(&l, k.c, k.m * k.n,
                    k.accumulate ? ZB_READ_WRITE : ZB_WRITE);
    return s->ops->launch(s->stream, &l);
}

static enum zb_status launch_nn(struct zb_seat *s, zb_real *mem)
{
    return launch_product(s, mem, ZB_PRODUCT_NN);
}

static enum zb_status launch_nt(struct zb_seat *s, zb_real *mem)
{
    return launch_product(s, mem, ZB_PRODUCT_NT);
}

static enum zb_status launch_tn(struct zb_seat *s, zb_real *mem)
{
    return launch_product(s, mem, ZB_PRODUCT_TN);
}

static enum zb_status launch_add(struct zb_seat *s, zb_real *mem)
{
    struct zb_k_add k = {.n = ARRAY_REALS,
                         .dtype = zb_graph_storage(s->p->r->g),
                         .a = mem,
                         .b = mem + ARRAY_REALS,
                         .y = mem + 2 * ARRAY_REALS};
    struct zb_launch l = {
        .kernel = ZB_K_add, .label = "profile", .params = &k};

    zb_launch_reals(&l, mem, 2 * (int64_t)ARRAY_REALS, ZB_READ);
    zb_launch_reals(&l, k.y, ARRAY_REALS, ZB_WRITE);
    return s->ops->launch(s->stream, &l);
}

static enum zb_status launch_nothing(struct zb_seat *s, zb_real *mem)
{
    for (int i = 0; i < N_LAUNCHES; i++) {
        ZB_TRY(zb_fill(s->ops, s->stream, ZB_DTYPE_REAL, mem, 1, 1, "profile"));
    }
    return ZB_OK;
}

static enum zb_status time_launch(struct zb_seat *s, zb_real *mem,
                                  enum zb_status (*launch)(struct zb_seat *s,
                                                           zb_real *mem),
                                  double *ns_out)
{
    double ns[ROUNDS];

    for (int round = -WARM_UP; round < ROUNDS; round++) {
        int64_t begin;

        ZB_TRY(zb_seat_meet(s));
        begin = zb_now_ns();
        ZB_TRY(launch(s, mem));
        ZB_TRY(s->ops->stream_sync(s->stream));
        if (round >= 0) {
            ns[round] = (double)(zb_now_ns() - begin);
        }
    }
    *ns_out = zb_median(ns, ROUNDS);
    return ZB_OK;
}

enum zb_status zb_profile_rates(struct zb_seat *s)
{
    static enum zb_status (*const launch[ZB_N_RATES])(struct zb_seat *s,
                                                      zb_real *mem) = {
        launch_nn, launch_nt, launch_tn, launch_add, launch_nothing};
    struct sizes z = find_product(s->p->r);
    int64_t n = z.m * z.k + z.k * z.n + z.m * z.n;
    double *v = s->result;
    void *mem;

    n = n > 3 * ARRAY_REALS ? n : 3 * ARRAY_REALS;
    ZB_TRY(s->ops->mem_alloc(s->dev, (size_t)n * sizeof(zb_real), "profile",
                             &mem));
    s->scratch = mem;
    ZB_TRY(zb_fill(s->ops, s->stream, ZB_DTYPE_REAL, mem, n, 1, "profile"));
    for (int i = 0; i < ZB_N_RATES; i++) {
        ZB_TRY(time_launch(s, mem, launch[i], &v[i]));
    }
    for (int i = 0; i < ZB_N_PRODUCTS; i++) {
        v[i] = 2 * (double)z.m * (double)z.n * (double)z.k / v[i];
    }
    v[ZB_N_PRODUCTS] = 3.0 * ARRAY_REALS *
                       (double)zb_dtype_bytes(zb_graph_storage(s->p->r->g)) /
                       v[ZB_N_PRODUCTS];
    v[ZB_N_PRODUCTS + 1] /= N_LAUNCHES;
    return ZB_OK;
}
