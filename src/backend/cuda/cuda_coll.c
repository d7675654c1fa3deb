/* SPDX-License-Identifier: MIT
 *
 * Exchanges of a group over NCCL: one launch of sends to and receives from all
 * other ranks. NCCL only moves bytes; what is added up is added by kernels of
 * ours, in rank order (src/comm/coll_link.c), so that no result depends on how
 * NCCL would reduce.
 */
#include "config.h"
#include "backend/cuda/cuda_nccl.h"

#include "zb/mem.h"

enum zb_status zb_nccl_open_group(struct zb_stream *stream,
                                  const struct zb_link_id *id, int n, int rank,
                                  const struct zb_abort *ab,
                                  struct zb_link **link_out)
{
    struct zb_link *l;

    ZB_TRY(zb_nccl_open(stream, id, n, rank, ab, &l));
    l->is_group = 1;
    *link_out = l;
    return ZB_OK;
}

/* Round the ranks, so that not all send to one at first. *n_out: how many there
 * were. */
static ncclResult_t post_all(struct zb_link *l, cudaStream_t stream,
                             const struct zb_exchange *x, int *n_out)
{
    ncclResult_t res = ncclSuccess;

    for (int i = 1; i < l->n; i++) {
        int to = (l->rank + i) % l->n, from = (l->rank + l->n - i) % l->n;
        const struct zb_link_part *send = &x->send[to], *recv = &x->recv[from];

        if (send->bytes > 0 && res == ncclSuccess) {
            res =
                ncclSend(send->ptr, send->bytes, ncclInt8, to, l->comm, stream);
            ++*n_out;
        }
        if (recv->bytes > 0 && res == ncclSuccess) {
            res = ncclRecv(recv->ptr, recv->bytes, ncclInt8, from, l->comm,
                           stream);
            ++*n_out;
        }
    }
    return res;
}

enum zb_status zb_nccl_exchange(struct zb_link *l, struct zb_stream *stream,
                                const struct zb_exchange *x)
{
    ncclResult_t res, end;
    int n_posted = 0;

    if (l->comm == NULL) {
        return ZB_EABORT;
    }
    ZB_TRY(zb_cuda_use(stream->dev));
    ZB_CUDA_TELL(fake_cuda_name_exchange(stream->cuda, x->label, x->number));
    res = ncclGroupStart();
    if (res == ncclSuccess) {
        res = post_all(l, stream->cuda, x, &n_posted);
        end = ncclGroupEnd();
        res = res == ncclSuccess ? end : res;
    }
    ZB_TRY(zb_nccl_check(l, res, x->label));
    return n_posted > 0 ? zb_nccl_settle(l, x->label) : ZB_OK;
}

enum zb_status zb_nccl_first_exchange(struct zb_link *l, size_t bytes)
{
    struct zb_link_part *part = zb_alloc_array(2 * (size_t)l->n, sizeof(*part));
    char *first = l->stream->first;
    struct zb_exchange x = {.label = "first exchange of a group"};
    enum zb_status st;

    if (part == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < l->n; i++) {
        part[i] = (struct zb_link_part){first, bytes};
        part[l->n + i] =
            (struct zb_link_part){first + (size_t)(i + 1) * bytes, bytes};
    }
    x.send = part;
    x.recv = part + l->n;
    st = zb_nccl_exchange(l, l->stream, &x);
    zb_free(part);
    return st;
}
