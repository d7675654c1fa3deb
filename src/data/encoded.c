/* SPDX-License-Identifier: MIT
 *
 * Text files as the ids of a tokenizer, in memory. */
#include "config.h"
#include "data/data_int.h"

#include "zb/mem.h"

struct list {
    int32_t *ids;
    size_t n, cap;
    int32_t most;
};

static enum zb_status take(void *arg, const int32_t *ids, size_t n)
{
    struct list *list = arg;

    if (list->cap - list->n < n) {
        size_t cap = 2 * list->cap + n;
        int32_t *longer =
            zb_realloc_array(list->ids, list->cap, cap, sizeof(*longer));

        if (longer == NULL) {
            return ZB_ENOMEM;
        }
        list->ids = longer;
        list->cap = cap;
    }
    for (size_t i = 0; i < n; i++) {
        list->ids[list->n++] = ids[i];
        list->most = ids[i] > list->most ? ids[i] : list->most;
    }
    return ZB_OK;
}

enum zb_status zb_encoded_read(const struct zb_tokens *file,
                               const struct zb_tokenizer *tok,
                               struct zb_encoded *out)
{
    struct list list = {.most = -1};
    struct zb_encoder *enc;
    enum zb_status st;

    ZB_TRY(zb_encoder_new(tok, &enc));
    st = zb_encode(enc, zb_tokens_text(file),
                   (size_t)zb_tokens_info(file).n_tokens, take, &list);
    zb_encoder_free(enc);
    if (st != ZB_OK) {
        zb_free(list.ids);
        return zb_fail_in(st, "%s", zb_tokens_path(file));
    }
    /* An empty text has ids too: none. */
    out->ids = list.ids != NULL ? list.ids : zb_alloc(sizeof(*list.ids));
    out->n = (int64_t)list.n;
    out->id_limit = list.most + 1;
    return out->ids == NULL ? ZB_ENOMEM : ZB_OK;
}
