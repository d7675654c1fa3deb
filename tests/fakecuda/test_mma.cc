/* SPDX-License-Identifier: MIT
 *
 * The products of cuda_mma.h as a GPU runs them, on a model of a warp, and its
 * index functions against the tables of the PTX ISA. Truth is the product in
 * double.
 */
#include "warp/warp_model.h"

#include "config.h"

#include <cmath>

#include "backend/cuda/cuda_mma.h"

extern "C" {
#include "unit/zbt.h"
}

/* ---- index functions ----------------------------------------------------- */

/* A few entries of the figures of m16n8k16, and that every element has one
 * place. */
static void fragments_of_a_cover_the_tile_once(void)
{
    int n[16][16] = {};

    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 8; i++) {
            n[zb_mma_a_row(lane, i)][zb_mma_a_k(lane, i)]++;
        }
    }
    for (int x = 0; x < 256; x++) {
        CU_ASSERT_EQUAL(n[x / 16][x % 16], 1);
    }
    /* T5 {a0, a1}: row 1, columns 2, 3; {a2, a3}: row 9; {a4, a5}: columns 10,
     * 11 of row 1. */
    CU_ASSERT(zb_mma_a_row(5, 0) == 1 && zb_mma_a_k(5, 0) == 2);
    CU_ASSERT(zb_mma_a_row(5, 1) == 1 && zb_mma_a_k(5, 1) == 3);
    CU_ASSERT(zb_mma_a_row(5, 2) == 9 && zb_mma_a_k(5, 2) == 2);
    CU_ASSERT(zb_mma_a_row(5, 5) == 1 && zb_mma_a_k(5, 5) == 11);
    CU_ASSERT(zb_mma_a_row(31, 7) == 15 && zb_mma_a_k(31, 7) == 15);
}

static void fragments_of_b_and_c_cover_the_tile_once(void)
{
    int n_b[16][8] = {}, n_c[16][8] = {};

    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            n_b[zb_mma_b_k(lane, i)][zb_mma_b_col(lane, i)]++;
            n_c[zb_mma_c_row(lane, i / 2)][zb_mma_c_col(lane, i % 2)]++;
        }
    }
    for (int x = 0; x < 128; x++) {
        CU_ASSERT_EQUAL(n_b[x / 8][x % 8], 1);
        CU_ASSERT_EQUAL(n_c[x / 8][x % 8], 1);
    }
    CU_ASSERT(zb_mma_b_k(6, 0) == 4 && zb_mma_b_col(6, 0) == 1);
    CU_ASSERT(zb_mma_b_k(6, 3) == 13 && zb_mma_b_col(6, 3) == 1);
    CU_ASSERT(zb_mma_c_row(6, 1) == 9 && zb_mma_c_col(6, 1) == 5);
}

/* Which element of the tile a loaded register has: that of matrix m, row and
 * column of which are those that the lane with that address names. */
static void loads_fill_the_fragments_of_mma(void)
{
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 8; i++) {
            int m = i / 2, line = 8 * m + lane / 4;
            int at = 2 * (lane % 4) + i % 2, line_t = 8 * m + at;

            CU_ASSERT_EQUAL(zb_mma_load_a_row(line), zb_mma_a_row(lane, i));
            CU_ASSERT_EQUAL(zb_mma_load_a_k(line) + at, zb_mma_a_k(lane, i));
            CU_ASSERT_EQUAL(zb_mma_load_bt_col(line),
                            zb_mma_b_col(lane, i % 4) + 8 * (i / 4));
            CU_ASSERT_EQUAL(zb_mma_load_bt_k(line) + at,
                            zb_mma_b_k(lane, i % 4));
            CU_ASSERT_EQUAL(zb_mma_load_b_k(line_t), zb_mma_b_k(lane, i % 4));
            CU_ASSERT_EQUAL(zb_mma_load_b_col(line_t) + lane / 4,
                            zb_mma_b_col(lane, i % 4) + 8 * (i / 4));
        }
    }
}

/* ---- products ------------------------------------------------------------ */

/* A number that bf16 and fp16 have, different for most i. */
static float number(int i)
{
    return (float)((i * 37 + 11) % 127 - 63) / 64;
}

/* Weights that neither has. */
static float weight(int row, int k)
{
    return 0.3f + (float)((row * 29 + k * 13) % 101) / 77;
}

template <class T, int N, int K> struct tiles {
    alignas(16) typename T::st a[16 * ZB_TILE_LD(T, K)];
    alignas(16) typename T::st bt[N * ZB_TILE_LD(T, K)];
    alignas(16) typename T::st b[K * ZB_TILE_LD(T, N)];
    float abt[16][N], pb[16][N];
};

/* c = 1 + a b^T, and 1 + p b. */
template <class T, int N, int K> static void run_products(tiles<T, N, K> *t)
{
    warp_run([t]() {
        struct zb_acc<N> one, two;
        struct zb_acc<K> p;

        for (int n = 0; n < N / 8; n++) {
            for (int i = 0; i < 4; i++) {
                one.x[n][i / 2][i % 2] = two.x[n][i / 2][i % 2] = 1;
            }
        }
        for (int n = 0; n < K / 8; n++) {
            for (int i = 0; i < 4; i++) {
                p.x[n][i / 2][i % 2] =
                    weight(zb_acc_row(i / 2), 8 * n + zb_acc_col(i % 2));
            }
        }
        zb_mma_abt<T, N, K>(one, t->a, t->bt, ZB_TILE_LD(T, K), N, K);
        zb_mma_pb<T, N, K>(two, p, t->b, ZB_TILE_LD(T, N), N, K);
        for (int n = 0; n < N / 8; n++) {
            for (int i = 0; i < 4; i++) {
                int row = zb_acc_row(i / 2), col = 8 * n + zb_acc_col(i % 2);

                t->abt[row][col] = one.x[n][i / 2][i % 2];
                t->pb[row][col] = two.x[n][i / 2][i % 2];
            }
        }
    });
}

template <class T, int N, int K> static void check_products(void)
{
    static tiles<T, N, K> t;
    double worst = 0;

    memset(&t, 0xff, sizeof(t)); /* NaN between the rows */
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < 16; i++) {
            t.a[i * ZB_TILE_LD(T, K) + k] = T::to(number(i * K + k));
        }
        for (int n = 0; n < N; n++) {
            t.bt[n * ZB_TILE_LD(T, K) + k] = T::to(number(n * 5 + k * 3));
            t.b[k * ZB_TILE_LD(T, N) + n] = T::to(number(n * 5 + k * 3));
        }
    }
    run_products(&t);
    for (int i = 0; i < 16; i++) {
        for (int n = 0; n < N; n++) {
            double abt = 1, pb = 1;

            for (int k = 0; k < K; k++) {
                double y = number(n * 5 + k * 3);

                abt += number(i * K + k) * y;
                pb += (double)T::ld(T::to(weight(i, k))) * y;
            }
            worst = std::fmax(worst, std::fabs(t.abt[i][n] - abt));
            worst = std::fmax(worst, std::fabs(t.pb[i][n] - pb));
        }
    }
    CU_ASSERT(worst < 2e-5);
}

static void products_of_a_warp_agree_with_formula(void)
{
    check_products<zb_mma_bf16, 64, 128>();
    check_products<zb_mma_bf16, 16, 16>();
    check_products<zb_mma_f16, 32, 64>();
    check_products<zb_mma_f16, 128, 32>();
    check_products<zb_mma_real, 32, 64>();
    check_products<zb_mma_real, 128, 16>();
}

static void rows_of_a_warp_are_summed_and_compared(void)
{
    static float sum[16], top[16];

    warp_run([]() {
        for (int r = 0; r < ZB_ACC_ROWS; r++) {
            int row = zb_acc_row(r);
            float x = 0, most = -9;

            for (int c = 0; c < ZB_ACC_COLS; c++) {
                float y = number(row * 8 + zb_acc_col(c));

                x += y;
                most = y > most ? y : most;
            }
            x = zb_acc_row_sum(x);
            most = zb_acc_row_max(most);
            if (zb_acc_col(0) == 6) {
                sum[row] = x;
                top[row] = most;
            }
        }
    });
    for (int i = 0; i < 16; i++) {
        float x = 0, most = -9;

        for (int c = 0; c < 8; c++) {
            x += number(i * 8 + c);
            most = std::fmax(most, number(i * 8 + c));
        }
        CU_ASSERT_EQUAL(sum[i], x); /* multiples of 1/64: exact */
        CU_ASSERT_EQUAL(top[i], most);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(fragments_of_a_cover_the_tile_once),
        ZBT_CASE(fragments_of_b_and_c_cover_the_tile_once),
        ZBT_CASE(loads_fill_the_fragments_of_mma),
        ZBT_CASE(products_of_a_warp_agree_with_formula),
        ZBT_CASE(rows_of_a_warp_are_summed_and_compared),
    };

    return zbt_run("mma", cases, ZB_COUNT_OF(cases));
}
