/* SPDX-License-Identifier: MIT
 *
 * Files of tensors: opened, and every tensor that is in them read. */
#include "config.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "zb/ckpt.h"
#include "zb/mem.h"

static const char *const headers[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}",
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"x\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
    "\"y\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[16,18]},"
    "\"z\":{\"dtype\":\"F8_E4M3\",\"shape\":[0,7],\"data_offsets\":[18,18]}}",
    "{}",
};
static const size_t data_bytes[] = {32, 18, 0};

size_t fuzz_seed(size_t i, const uint8_t **data_out)
{
    static uint8_t x[1024];
    uint64_t n;

    if (i >= sizeof(headers) / sizeof(headers[0])) {
        return 0;
    }
    n = strlen(headers[i]);
    memcpy(x, &n, sizeof(n));
    memcpy(x + 8, headers[i], n);
    for (size_t k = 0; k < data_bytes[i]; k++) {
        x[8 + n + k] = (uint8_t)(k * 41);
    }
    *data_out = x;
    return 8 + n + data_bytes[i];
}

static void read_tensor(const struct zb_st_file *f,
                        const struct zb_st_tensor *t)
{
    size_t n = t->n_elems > 0 ? (size_t)t->n_elems : 1;
    zb_real *real;
    int32_t *whole;

    /* Of an unknown type a shape may be anything. */
    if (t->dtype == ZB_ST_OTHER) {
        return;
    }
    real = zb_alloc_array(n, sizeof(*real));
    whole = zb_alloc_array(n, sizeof(*whole));
    if (real == NULL || whole == NULL ||
        zb_st_read_real(f, t, real, t->n_elems) != ZB_OK ||
        zb_st_read_part(f, t, t->n_elems / 2, t->n_elems - t->n_elems / 2,
                        real) != ZB_OK ||
        zb_st_read_i32(f, t, whole, t->n_elems) != ZB_OK) {
        /* another type; the text says which */
        (void)zb_error_text();
    }
    zb_free(whole);
    zb_free(real);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int64_t before = zb_mem_live();
    struct zb_st_file *f;

    if (zb_st_open(fuzz_file(data, n), &f) == ZB_OK) {
        for (size_t i = 0; i < f->n_tensors; i++) {
            if (zb_st_find(f, f->tensors[i].name) != &f->tensors[i]) {
                abort();
            }
            read_tensor(f, &f->tensors[i]);
        }
        zb_st_close(f);
    }
    fuzz_check_live(before);
    return 0;
}
