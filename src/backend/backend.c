/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "zb/backend.h"
#include "zb/log.h"
#include "zb/mem.h"
#include "backend/affinity_int.h"
#include "backend/backend_int.h"

/* GPUs have no double build. */
#if defined(HAVE_CUDA) && !defined(ZB_REAL_IS_DOUBLE)
#define ZB_HAS_CUDA 1
#else
#define ZB_HAS_CUDA 0
#endif

/* In the order of preference of "auto", helpers last. */
static const struct zb_backend_ops *const table[] = {
#if ZB_HAS_CUDA
    &zb_backend_cuda_ops,
#endif
    &zb_backend_cpu_ops,
    &zb_backend_check_ops,
    &zb_backend_sim_ops,
};

/* Names that are known everywhere but not built into every library. */
static const char *const known_names[] = {"cuda"};

void zb_backend_no_mark(struct zb_stream *stream, const char *node)
{
    (void)stream;
    (void)node;
}

enum zb_status zb_backend_no_discard(struct zb_stream *stream, void *ptr,
                                     size_t bytes)
{
    (void)stream;
    (void)ptr;
    (void)bytes;
    return ZB_OK;
}

enum zb_status zb_backend_no_host_access(struct zb_device *dev,
                                         const void *ptr, size_t bytes,
                                         enum zb_access_mode mode)
{
    (void)dev;
    (void)ptr;
    (void)bytes;
    (void)mode;
    return ZB_OK;
}

enum zb_status zb_backend_no_spend(struct zb_stream *stream, int64_t ns)
{
    (void)stream;
    (void)ns;
    return ZB_OK;
}

void zb_backend_no_delay(struct zb_event *event, int64_t ns)
{
    (void)event;
    (void)ns;
}

enum zb_status zb_backend_no_replay(struct zb_stream *stream, const void *key,
                                    size_t bytes, int *is_done_out)
{
    (void)stream;
    (void)key;
    (void)bytes;
    *is_done_out = 0;
    return ZB_OK;
}

enum zb_status zb_backend_no_replay_end(struct zb_stream *stream,
                                        enum zb_status st, int *is_done_out)
{
    (void)stream;
    *is_done_out = 1;
    return st;
}

int zb_backend_no_stats(const struct zb_device *dev, int i,
                        struct zb_stream_stats *stats_out)
{
    (void)dev;
    (void)i;
    (void)stats_out;
    return 0;
}

size_t zb_backend_no_product_bytes(const struct zb_k_gemm *p)
{
    (void)p;
    return 0;
}

void zb_backend_no_lend(struct zb_stream *stream, void *ptr, size_t bytes)
{
    (void)stream;
    (void)ptr;
    (void)bytes;
}

void zb_backend_no_words(const struct zb_backend_opts *opts, char *text,
                         size_t size)
{
    (void)opts;
    if (size > 0) {
        text[0] = '\0';
    }
}

enum zb_status zb_backend_all_shared(struct zb_backend *be, int may_try,
                                     struct zb_pair *pair, int n)
{
    (void)be;
    (void)may_try;
    for (int i = 0; i < n; i++) {
        pair[i].reach = ZB_REACH_SHARED;
    }
    return ZB_OK;
}

enum zb_status zb_backend_copy_by_kernel(
    enum zb_status (*launch)(struct zb_stream *stream,
                             const struct zb_launch *launch),
    struct zb_stream *stream, void *dst, const void *src, size_t bytes,
    const char *label)
{
    const struct zb_k_copy k = {.rows = 1,
                                .cols = (int64_t)bytes,
                                .ldx = (int64_t)bytes,
                                .ldy = (int64_t)bytes,
                                .elem_bytes = 1,
                                .x = src,
                                .y = dst};
    const struct zb_launch l = {
        .kernel = ZB_K_copy,
        .label = label,
        .params = &k,
        .n_access = 2,
        .access = {{src, bytes, ZB_READ}, {dst, bytes, ZB_WRITE}},
    };

    return bytes == 0 ? ZB_OK : launch(stream, &l);
}

int zb_backend_no_gpu_states(struct zb_backend *be, struct zb_gpu_state *state)
{
    (void)be;
    (void)state;
    return 0;
}

enum zb_status zb_backend_plain_alloc(struct zb_backend *be, size_t bytes,
                                      const char *what, void **ptr_out)
{
    void *ptr = zb_alloc(bytes);

    (void)be;
    if (ptr == NULL) {
        return zb_fail_in(ZB_ENOMEM, "%s", what);
    }
    *ptr_out = ptr;
    return ZB_OK;
}

void zb_backend_plain_free(struct zb_backend *be, void *ptr)
{
    (void)be;
    zb_free(ptr);
}

const struct zb_backend_ops *zb_backend_at(size_t i)
{
    return i < ZB_COUNT_OF(table) ? table[i] : NULL;
}

static enum zb_status refuse(const char *name)
{
    char names[128] = "auto";

    for (size_t i = 0; i < ZB_COUNT_OF(known_names); i++) {
        if (strcmp(known_names[i], name) == 0) {
            return zb_fail(ZB_EUNSUPPORTED,
                           "backend '%s' is not built into this zbrun", name);
        }
    }
    for (size_t i = 0; i < ZB_COUNT_OF(table); i++) {
        size_t len = strlen(names);

        snprintf(names + len, sizeof(names) - len, ", %s", table[i]->name);
    }
    return zb_fail(ZB_ECONFIG, "unknown backend '%s' (there are: %s)", name,
                   names);
}

static const struct zb_backend_ops *best(void)
{
#if ZB_HAS_CUDA
    int is_odd = 0;

    if (zb_cuda_is_usable(&is_odd) == ZB_OK) {
        return &zb_backend_cuda_ops;
    }
    zb_log(is_odd ? ZB_LOG_WARN : ZB_LOG_DEBUG, "the backend is cpu: %s",
           zb_error_text());
#endif
    return &zb_backend_cpu_ops;
}

enum zb_status zb_backend_find(const char *name,
                               const struct zb_backend_ops **ops_out)
{
    if (strcmp(name, "auto") == 0) {
        *ops_out = best();
        return ZB_OK;
    }
    for (size_t i = 0; i < ZB_COUNT_OF(table); i++) {
        if (strcmp(table[i]->name, name) == 0) {
            *ops_out = table[i];
            return ZB_OK;
        }
    }
    return refuse(name);
}

void zb_launch_elems(struct zb_launch *launch, enum zb_dtype dtype,
                     const void *ptr, int64_t n, enum zb_access_mode mode)
{
    if (ptr == NULL) {
        return;
    }
    ZB_BUG_IF(launch->n_access == ZB_MAX_ACCESS,
              "%s touches too many ranges", launch->label);
    launch->access[launch->n_access++] =
        (struct zb_access){ptr, (size_t)n * zb_dtype_bytes(dtype), mode};
}

void zb_launch_reals(struct zb_launch *launch, const zb_real *ptr, int64_t n,
                     enum zb_access_mode mode)
{
    zb_launch_elems(launch, ZB_DTYPE_REAL, ptr, n, mode);
}

enum zb_status zb_backend_open(const char *name,
                               const struct zb_backend_opts *opts,
                               struct zb_backend **be_out)
{
    const struct zb_backend_ops *ops;

    if (opts->n_devices < 1 || opts->threads_per_device < 1) {
        return zb_fail(ZB_EINVAL, "a backend needs at least one device and one "
                                  "thread per device, not %d and %d",
                       opts->n_devices, opts->threads_per_device);
    }
    ZB_TRY(zb_backend_find(name, &ops));
    return ops->open(opts, be_out);
}

void zb_backend_close(struct zb_backend *be)
{
    if (be != NULL) {
        be->ops->close(be);
    }
}

const char *zb_throttle_str(int i)
{
    static const char *const names[] = {
#define ZB_X(NAME, text) text,
        ZB_THROTTLE_MAP(ZB_X)
#undef ZB_X
    };

    return i >= 0 && (size_t)i < ZB_COUNT_OF(names) ? names[i] : NULL;
}

void zb_backend_binding(const struct zb_backend *be, int index, char *text,
                        size_t size)
{
    if (be->affinity != NULL) {
        zb_affinity_text(be->affinity, index, text, size);
    } else if (size > 0) {
        text[0] = '\0';
    }
}
