/* SPDX-License-Identifier: MIT
 *
 * The gradient of a table: rows with the same id are added up in order. Few
 * rows look for their equals themselves. Of many, blocks sort chunks by id and
 * row; then each row learns which is the next one with its id, in its chunk or
 * a later one, and the first of an id walks along them. Either way a sum has
 * the order of the rows, whatever the GPU.
 */
#include "backend/cuda/cuda_typed.h"

/* A team adds up so many columns of a row. */
#define TABLE_PIECE 256
#define TABLE_PIECES(cols) (((cols) + TABLE_PIECE - 1) / TABLE_PIECE)

#define FEW_ROWS 1024
#define CHUNK 4096 /* rows that a block sorts: 32 KiB of shared memory */
#define SORT_BLOCK 1024

/* Rows sorted at a time: two words for each fill the scratch. */
#define SLAB ((int64_t)(ZB_CUDA_SCRATCH_BYTES / (2 * sizeof(int64_t))))

#define NO_KEY INT64_MAX

struct sorted {
    int64_t first, n; /* rows of the slab */
    int64_t *key;     /* [n] row of the table << 32 | row of the slab, chunk by
                         chunk; NO_KEY where a row adds nothing, behind all
                         others */
    int64_t *link;    /* [n] by row: 2 * (next row of its id + 1), + 1 if it is
                         the first of the slab */
};

ZB_KERN_FN int is_counted(const struct zb_k_embedding_bwd_w *p, int32_t id)
{
    int64_t row = p->offset + id, at = row - p->first;

    return at >= 0 && at < p->n_ids && row >= 0 && row < p->whole &&
           row != p->padding_idx;
}

static __global__ void ZB_CUDA_BOUNDS(SORT_BLOCK)
    sort_chunks(struct zb_k_embedding_bwd_w p, struct sorted s)
{
    ZB_SHARED int64_t key[CHUNK];

    ZB_ITEM_EACH(c, (s.n + CHUNK - 1) / CHUNK) {
        int64_t begin = c * CHUNK;
        int64_t n = s.n - begin < CHUNK ? s.n - begin : CHUNK;

        ZB_BLOCK_EACH(i, CHUNK) {
            int32_t id = i < n ? p.id[s.first + begin + i] : -1;

            key[i] = i < n && is_counted(&p, id)
                         ? (p.offset + id) << 32 | (begin + i)
                         : NO_KEY;
        }
        ZB_BLOCK_SYNC();
        /* Bitonic. */
        for (int64_t size = 2; size <= CHUNK; size *= 2) {
            for (int64_t step = size / 2; step > 0; step /= 2) {
                ZB_BLOCK_EACH(k, CHUNK / 2) {
                    int64_t i = 2 * k - (k & (step - 1)), j = i + step;
                    int64_t a = key[i], b = key[j];

                    if ((a > b) == ((i & size) == 0)) {
                        key[i] = b;
                        key[j] = a;
                    }
                }
                ZB_BLOCK_SYNC();
            }
        }
        ZB_BLOCK_EACH(i, n) {
            s.key[begin + i] = key[i];
        }
        ZB_BLOCK_SYNC();
    }
}

/* The first row of a chunk that has the id, or -1. */
ZB_KERN_FN int64_t find_id(const struct sorted *s, int64_t chunk, int64_t id)
{
    int64_t lo = chunk * CHUNK;
    int64_t end = s->n - lo < CHUNK ? s->n : lo + CHUNK, hi = end;

    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;

        if (s->key[mid] >> 32 < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < end && s->key[lo] >> 32 == id ? s->key[lo] & 0xffffffff : -1;
}

static __global__ void link_rows(struct sorted s)
{
    int64_t n_chunks = (s.n + CHUNK - 1) / CHUNK;

    ZB_LANE_EACH(k, s.n) {
        int64_t key = s.key[k], id = key >> 32, c = k / CHUNK, next = -1;
        int is_first = k == c * CHUNK || s.key[k - 1] >> 32 != id;

        if (key == NO_KEY) {
            continue;
        }
        if (k + 1 < s.n && (k + 1) / CHUNK == c && s.key[k + 1] >> 32 == id) {
            next = s.key[k + 1] & 0xffffffff;
        }
        for (int64_t later = c + 1; next < 0 && later < n_chunks; later++) {
            next = find_id(&s, later, id);
        }
        for (int64_t before = 0; is_first && before < c; before++) {
            is_first = find_id(&s, before, id) < 0;
        }
        s.link[key & 0xffffffff] = 2 * (next + 1) + is_first;
    }
}

#define ZB_TEMPLATE "backend/cuda/cuda_table_typed.h"
#include "kern/each_storage.h"

static enum zb_status add_sorted(struct zb_stream *stream,
                                 const struct zb_k_embedding_bwd_w *p,
                                 int64_t first)
{
    struct sorted s;

    s.first = first;
    s.n = p->rows - first < SLAB ? p->rows - first : SLAB;
    s.key = (int64_t *)stream->scratch;
    s.link = s.key + SLAB;
    ZB_TRY(ZB_CUDA_LAUNCH(sort_chunks, zb_cuda_grid(stream, s.n, CHUNK),
                          SORT_BLOCK, stream, *p, s));
    ZB_TRY(ZB_CUDA_LAUNCH(link_rows, zb_cuda_lane_grid(stream, s.n),
                          ZB_CUDA_BLOCK, stream, s));
    return ZB_CUDA_LAUNCH_TYPED(
        p->dtype, add_linked,
        zb_cuda_team_grid(stream, s.n * TABLE_PIECES(p->cols)), ZB_CUDA_BLOCK,
        stream, *p, s);
}

enum zb_status zb_cuda_embedding_bwd_w(struct zb_stream *stream,
                                       const void *params)
{
    const struct zb_k_embedding_bwd_w *p =
        (const struct zb_k_embedding_bwd_w *)params;

    if (p->rows <= FEW_ROWS) {
        return ZB_CUDA_LAUNCH_TYPED(
            p->dtype, add_found,
            zb_cuda_team_grid(stream, p->rows * TABLE_PIECES(p->cols)),
            ZB_CUDA_BLOCK, stream, *p);
    }
    for (int64_t first = 0; first < p->rows; first += SLAB) {
        ZB_TRY(add_sorted(stream, p, first));
    }
    return ZB_OK;
}

enum zb_status zb_cuda_position_bwd_w(struct zb_stream *stream,
                                      const void *params)
{
    const struct zb_k_position_bwd_w *p =
        (const struct zb_k_position_bwd_w *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->seq * TABLE_PIECES(p->cols));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, position_bwd_w, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}
