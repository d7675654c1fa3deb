/* SPDX-License-Identifier: MIT
 *
 * A tokenizer.json, and after the first NUL a text: parsed, encoded, decoded.
 */
#include "config.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MAX_IDS 65536

struct ids {
    size_t n;
    int32_t limit;
    int32_t id[MAX_IDS];
};

/* Ids are those of the vocabulary; more than there is room for end it. */
static enum zb_status take(void *arg, const int32_t *ids, size_t n)
{
    struct ids *list = arg;

    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= list->limit) {
            abort();
        }
        if (list->n == MAX_IDS) {
            return zb_fail(ZB_EIO, "enough");
        }
        list->id[list->n++] = ids[i];
    }
    return ZB_OK;
}

static void encode(const struct zb_tokenizer *tok, const char *text, size_t n)
{
    static struct ids first, second;
    struct zb_encoder *enc = NULL;
    char *back = NULL;

    if (zb_encoder_new(tok, &enc) != ZB_OK) {
        abort();
    }
    first.n = second.n = 0;
    first.limit = second.limit = zb_tokenizer_n_ids(tok);
    if (zb_encode(enc, text, n, take, &first) == ZB_OK) {
        /* What is remembered changes nothing. */
        if (zb_encode(enc, text, n, take, &second) != ZB_OK ||
            first.n != second.n ||
            memcmp(first.id, second.id, first.n * sizeof(*first.id)) != 0) {
            abort();
        }
        if (zb_decode(tok, first.id, first.n, 1, &back) == ZB_OK) {
            zb_free(back);
        }
    }
    zb_encoder_free(enc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *json = (const char *)data;
    size_t n_json = n == 0 ? 0 : strnlen(json, n);
    struct zb_tokenizer *tok = NULL;

    if (zb_tokenizer_parse(json, n_json, "t.json", &tok) == ZB_OK) {
        if (n_json < n) {
            encode(tok, json + n_json + 1, n - n_json - 1);
        }
        zb_tokenizer_find(tok, "a");
        zb_tokenizer_free(tok);
    } else if (zb_error_text()[0] == '\0') {
        abort();
    }
    if (zb_mem_live() != 0) {
        abort();
    }
    return 0;
}
