/* SPDX-License-Identifier: MIT
 *
 * Parameters from files: each type, on each layout, every device its part. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_util.h"
#include "zbt.h"
#include "zb/ckpt.h"
#include "zb/mem.h"
#include "zb/tensor.h"

/* All parameters of a model, one after the other, as numbers that their type
 * can hold. */
static zb_real *make_values(const struct zb_model *m, enum zb_dtype type)
{
    size_t n = ru_n_elems(m);
    struct zbt_rng rng = {5};
    zb_real *x = zb_alloc_array(n, sizeof(*x));
    void *stored = zb_alloc_array(n, sizeof(*x));

    CU_ASSERT_FATAL(x != NULL && stored != NULL);
    for (size_t i = 0; i < n; i++) {
        x[i] = (zb_real)zbt_rand_in(&rng, -9999, 9999) / (zb_real)7001;
    }
    zb_dtype_store(type, (int64_t)n, x, stored);
    zb_dtype_load(type, (int64_t)n, stored, x);
    zb_free(stored);
    return x;
}

/* The same in a file, less `n_left_out` tensors. */
static const char *write_values(const struct zb_model *m, const zb_real *x,
                                enum zb_dtype type, int n_left_out)
{
    static const enum zb_st_dtype st_dtype[] = {[ZB_DTYPE_REAL] = ZB_ST_REAL,
                                                [ZB_DTYPE_BF16] = ZB_ST_BF16,
                                                [ZB_DTYPE_F16] = ZB_ST_F16};
    const struct zb_graph *g = zb_model_graph(m);
    int n = zb_graph_n_params(g);
    const char *path = zbt_scratch_path("model.safetensors");
    struct zb_st_out *t = zb_alloc_array((size_t)n, sizeof(*t));
    char *stored = zb_alloc_array(ru_n_elems(m), sizeof(*x));
    size_t at = 0;

    CU_ASSERT_FATAL(t != NULL && stored != NULL);
    zb_dtype_store(type, (int64_t)ru_n_elems(m), x, stored);
    for (int i = 0; i < n; i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        t[i] = (struct zb_st_out){.name = info.name,
                                  .dtype = st_dtype[type],
                                  .n_dims = info.whole.n_dims,
                                  .data = stored + at};
        memcpy(t[i].dims, info.whole.dim, (size_t)t[i].n_dims * 8);
        at += (size_t)zb_shape_elems(&info.whole) * zb_dtype_bytes(type);
    }
    ZBT_OK(zb_st_write(path, t, (size_t)(n - n_left_out), NULL, 0));
    zb_free(stored);
    zb_free(t);
    return path;
}

struct setup {
    struct ru_grid grid;
    enum zb_dtype storage; /* of the run */
    enum zb_dtype type;    /* of the file */
};

static struct zb_model *model_of(const struct setup *u, ru_model_fn fn)
{
    const struct zb_parallel par = {.tp = u->grid.tp,
                                    .sp = u->grid.sp,
                                    .mode = u->grid.mode,
                                    .vocab_multiple = 24};

    return fn != NULL ? fn(&par) : ru_llama_as(&par, u->storage);
}

/* Masters are what the file has, whatever computes. */
static void load_and_compare(const struct setup *u, ru_model_fn fn)
{
    struct zb_model *m = model_of(u, fn);
    struct zb_session_opts o = ru_grid_opts(&u->grid, 8);
    size_t n = ru_n_elems(m);
    zb_real *want = make_values(m, u->type);
    zb_real *have = zb_alloc_array(n, sizeof(*have));
    struct zb_session *s = NULL;

    o.pretrained = write_values(m, want, u->type, 0);
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_PTR_NOT_NULL_FATAL(have);
    ru_get_params(s, have);
    CU_ASSERT(memcmp(have, want, n * sizeof(*have)) == 0);
    zb_session_free(s);
    zb_free(have);
    zb_free(want);
    zb_model_free(m);
}

static void file_load_gives_its_values_on_every_layout(void)
{
    static const struct ru_grid grid[] = {
        {1, 1, 1, 1, ZB_SEQ_WHOLE}, {2, 1, 1, 1, ZB_SEQ_WHOLE},
        {1, 2, 1, 1, ZB_SEQ_WHOLE}, {2, 2, 1, 2, ZB_SEQ_WHOLE},
        {1, 4, 1, 1, ZB_SEQ_WHOLE}, {1, 1, 2, 1, ZB_SEQ_ALL_TO_ALL},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(grid); i++) {
        const struct setup u = {grid[i], ZB_DTYPE_REAL, ZB_DTYPE_REAL};

        load_and_compare(&u, ru_llama_on);
        load_and_compare(&u, ru_gpt2_on);
    }
}

static void file_load_takes_types_of_16_bits(void)
{
    static const enum zb_dtype type[] = {ZB_DTYPE_BF16, ZB_DTYPE_F16,
                                         ZB_DTYPE_REAL};

    for (size_t i = 0; i < ZB_COUNT_OF(type); i++) {
        for (size_t k = 0; k < ZB_COUNT_OF(type); k++) {
            const struct setup u = {
                {1, 2, 1, 2, ZB_SEQ_WHOLE}, type[i], type[k]};

            load_and_compare(&u, NULL);
        }
    }
}

static void missing_tensor_ends_the_start_with_its_name(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(1, 1, 1);
    struct zb_session *s = NULL;
    zb_real *x = make_values(m, ZB_DTYPE_REAL);
    int64_t before = zb_mem_live();
    FILE *f = fopen("/dev/null", "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    o.pretrained = write_values(m, x, ZB_DTYPE_REAL, 1);
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "1 missing: "));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "lm_head.weight"));
    CU_ASSERT_EQUAL(zb_session_dry_run(m, &o, f), ZB_ECONFIG);
    CU_ASSERT_EQUAL(zb_mem_live(), before);
    fclose(f);
    zb_free(x);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(file_load_gives_its_values_on_every_layout),
        ZBT_CASE(file_load_takes_types_of_16_bits),
        ZBT_CASE(missing_tensor_ends_the_start_with_its_name),
    };

    return zbt_run("run_weights", cases, ZB_COUNT_OF(cases));
}
