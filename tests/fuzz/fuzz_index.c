/* SPDX-License-Identifier: MIT
 *
 * model.safetensors.index.json beside a file of two tensors. */
#include "config.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zb/mem.h"
#include "zb/weights.h"

static const char *const indices[] = {
    "{\"metadata\": {\"total_size\": 12},\n \"weight_map\": {\n"
    "  \"x\": \"a.safetensors\",\n  \"y\": \"a.safetensors\"}}\n",
    "{\"weight_map\": {\"y\": \"a.safetensors\"}}",
};

static char dir[] = "/tmp/zbfuzz.XXXXXX";
static char index_path[64], file_path[64];

size_t fuzz_seed(size_t i, const uint8_t **data_out)
{
    if (i >= sizeof(indices) / sizeof(indices[0])) {
        return 0;
    }
    *data_out = (const uint8_t *)indices[i];
    return strlen(indices[i]);
}

static void remove_dir(void)
{
    unlink(index_path);
    unlink(file_path);
    rmdir(dir);
}

static void make_dir(void)
{
    static const float value[] = {1, 2, 3};
    const struct zb_st_out t[] = {
        {.name = "x",
         .dtype = ZB_ST_F32,
         .n_dims = 1,
         .dims = {2},
         .data = value},
        {.name = "y",
         .dtype = ZB_ST_F32,
         .n_dims = 1,
         .dims = {1},
         .data = value},
    };

    if (mkdtemp(dir) == NULL) {
        abort();
    }
    snprintf(index_path, sizeof(index_path), "%s/%s", dir, ZB_WEIGHTS_INDEX);
    snprintf(file_path, sizeof(file_path), "%s/a.safetensors", dir);
    atexit(remove_dir);
    if (zb_st_write(file_path, t, 2, NULL, 0) != ZB_OK) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct zb_weights *w;
    int64_t before;
    FILE *f;

    if (index_path[0] == '\0') {
        make_dir();
    }
    before = zb_mem_live();
    f = fopen(index_path, "wb");
    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        abort();
    }
    if (zb_weights_open(dir, &w) == ZB_OK) {
        if (zb_weights_find(w, "x").tensor == NULL) {
            abort();
        }
        zb_weights_close(w);
    }
    fuzz_check_live(before);
    return 0;
}
