/* SPDX-License-Identifier: MIT
 *
 * A row kernel gives on a GPU what it gives on the CPU, up to the order of its
 * sums. The double kernels are compared with the C library's own formulas.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>

#include "kern/act.h"
#include "kern/update.h"
#include "kern_rows.h"
#define ZB_TEMPLATE "kern/norm.h"
#include "kern/each_storage.h"
#define ZB_TEMPLATE "kern/xent_row.h"
#include "kern/each_storage.h"

static int n_failed;

static void check(const char *what, double got, double want, double tol)
{
    if (!(fabs(got - want) <= tol * (1 + fabs(want)))) {
        printf("%s: %.9g, expected %.9g\n", what, got, want);
        n_failed++;
    }
}

static void fill(struct row32 *a, struct row64 *b)
{
    for (int i = 0; i < ROW_N; i++) {
        a->x[i] = (float)sin(1.7 * i) * 3;
        a->gamma[i] = 1 + (float)cos(0.3 * i) / 4;
        a->beta[i] = (float)sin(0.9 * i + 1);
        b->x[i] = a->x[i];
        b->gamma[i] = a->gamma[i];
        b->beta[i] = a->beta[i];
    }
    a->label = b->label = 5;
}

/* The float kernels on this side. */
static void run_here(struct row32 *r)
{
    struct zb_philox_key key = zb_philox_site_key(7, 3, 11);

    zb_layernorm_row_real(ROW_N, 1e-5f, r->x, r->gamma, r->beta, r->normed,
                          &r->mean, &r->rstd);
    zb_layernorm_bwd_row_real(ROW_N, r->beta, r->x, r->gamma, r->mean, r->rstd,
                              NULL, r->d_normed);
    zb_xent_row_real(ROW_N, r->x, r->label, &r->loss, &r->lse);
    zb_xent_bwd_row_real(ROW_N, 0, ROW_N, 0.5f, r->x, r->lse, r->label,
                         r->d_loss);
    for (int i = 0; i < ROW_N; i++) {
        r->act[i] = zb_gelu_erf(r->x[i]);
        r->d_act[i] = zb_gelu_tanh_d(r->x[i]) + zb_silu_d(r->x[i]);
    }
    zb_normal_block(5, 9, 2, r->normal);
    zb_drop_block(key, 13, 1, zb_drop_limit(0.5), 2, r->factor);
}

static void compare32(const struct row32 *got, const struct row32 *want)
{
    const double tol = 2e-6;

    check("mean", got->mean, want->mean, tol);
    check("rstd", got->rstd, want->rstd, tol);
    check("loss", got->loss, want->loss, tol);
    for (int i = 0; i < ROW_N; i++) {
        check("layernorm", got->normed[i], want->normed[i], tol);
        check("layernorm gradient", got->d_normed[i], want->d_normed[i], tol);
        check("loss gradient", got->d_loss[i], want->d_loss[i], tol);
        check("gelu", got->act[i], want->act[i], tol);
        check("activation gradients", got->d_act[i], want->d_act[i], tol);
    }
    for (int i = 0; i < 4; i++) {
        check("normal", got->normal[i], want->normal[i], tol);
        check("dropout", got->factor[i], want->factor[i], 0);
    }
}

static void compare64(const struct row64 *r)
{
    const double tol = 1e-13;
    double sum = 0, var = 0, mean;

    for (int i = 0; i < ROW_N; i++) {
        sum += r->x[i];
    }
    mean = sum / ROW_N;
    sum = 0;
    for (int i = 0; i < ROW_N; i++) {
        var += (r->x[i] - mean) * (r->x[i] - mean) / ROW_N;
        sum += exp(r->x[i]);
        check("double gelu", r->act[i],
              r->x[i] * (1 + erf(r->x[i] / sqrt(2))) / 2, tol);
    }
    check("double mean", r->mean, mean, tol);
    check("double rstd", r->rstd, 1 / sqrt(var + 1e-5), tol);
    check("double loss", r->loss, log(sum) - r->x[r->label], tol);
}

int main(void)
{
    static struct row32 here, there;
    static struct row64 there64;
    int err;

    if (kern_rows_n_devices() < 1) {
        printf("no GPU\n");
        return 77;
    }
    fill(&here, &there64);
    there = here;
    run_here(&here);
    err = kern_rows_run32(&there);
    err = err != 0 ? err : kern_rows_run64(&there64);
    if (err != 0) {
        printf("CUDA error %d\n", err);
        return 1;
    }
    compare32(&there, &here);
    compare64(&there64);
    printf("zbt: kern_rows: %d passed, %d failed\n", n_failed == 0,
           n_failed != 0);
    return n_failed == 0 ? 0 : 1;
}
