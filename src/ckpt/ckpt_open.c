/* SPDX-License-Identifier: MIT
 *
 * Opening checkpoints: what is damaged is found before anything is used. */
#include "config.h"
#include "ckpt/ckpt_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "zb/hash.h"
#include "zb/log.h"
#include "zb/mem.h"

#define READ_BYTES (1 << 20)

/* ---- checksums ----------------------------------------------------------- */

static enum zb_status sum_fd(const char *path, int fd, struct zb_sum *sum)
{
    unsigned char *buf = zb_alloc(READ_BYTES);
    ssize_t n = buf == NULL ? 0 : 1;
    enum zb_status st = buf == NULL ? ZB_ENOMEM : ZB_OK;

    while (st == ZB_OK && n > 0) {
        n = read(fd, buf, READ_BYTES);
        if (n < 0 && errno == EINTR) {
            n = 1;
            continue;
        }
        if (n < 0) {
            st = zb_fail(ZB_EIO, "%s: cannot read: %s", path, strerror(errno));
        } else {
            zb_sum_add(sum, buf, (size_t)n);
        }
    }
    zb_free(buf);
    return st;
}

static enum zb_status check_file(const char *path,
                                 const struct zb_ckpt_file *want)
{
    /* Without O_NONBLOCK the open of a FIFO waits for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct zb_sum sum;
    enum zb_status st;

    if (fd < 0) {
        return zb_fail(ZB_EIO, "%s: cannot open: %s", path, strerror(errno));
    }
    zb_sum_init(&sum);
    st = sum_fd(path, fd, &sum);
    close(fd);
    ZB_TRY(st);
    if (sum.n_bytes != want->bytes) {
        return zb_fail(ZB_ECONFIG, "%s: %llu bytes instead of %llu", path,
                       (unsigned long long)sum.n_bytes,
                       (unsigned long long)want->bytes);
    }
    return zb_sum_value(&sum) == want->sum
               ? ZB_OK
               : zb_fail(ZB_ECONFIG, "%s: checksum differs", path);
}

static enum zb_status check_files(const char *dir,
                                  const struct zb_ckpt_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        char *path = zb_format("%s/%s", dir, files->file[i].path);
        enum zb_status st =
            path == NULL ? ZB_ENOMEM : check_file(path, &files->file[i]);

        zb_free(path);
        ZB_TRY(st);
    }
    return ZB_OK;
}

/* ---- one ----------------------------------------------------------------- */

static enum zb_status read_state(struct zb_ckpt *c)
{
    char *path = zb_format("%s/" ZB_CKPT_STATE, c->path);
    struct zb_ckpt_files files = {0};
    enum zb_status st =
        path == NULL ? ZB_ENOMEM : zb_ckpt_state_read(path, &c->state, &files);

    if (st == ZB_OK) {
        st = check_files(c->path, &files);
    }
    zb_ckpt_files_release(&files);
    zb_free(path);
    return st;
}

static enum zb_status open_ckpt(struct zb_ckpt *c, const char *path)
{
    char *optim;
    enum zb_status st;

    c->path = zb_strdup(path);
    if (c->path == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(read_state(c));
    ZB_TRY(zb_weights_open(path, &c->model));
    optim = zb_format("%s/" ZB_CKPT_OPTIM, path);
    st = optim == NULL ? ZB_ENOMEM : zb_weights_open(optim, &c->optim);
    zb_free(optim);
    return st;
}

enum zb_status zb_ckpt_open(const char *path, struct zb_ckpt **c_out)
{
    struct zb_ckpt *c = zb_alloc(sizeof(*c));
    enum zb_status st;

    if (c == NULL) {
        return ZB_ENOMEM;
    }
    st = open_ckpt(c, path);
    if (st != ZB_OK) {
        zb_ckpt_close(c);
        return st;
    }
    *c_out = c;
    return ZB_OK;
}

const char *const zb_ckpt_prefix[] = {
    [ZB_CKPT_M] = "m.", [ZB_CKPT_V] = "v.", [ZB_CKPT_MASTER] = "master."};

struct zb_weight zb_ckpt_find(const struct zb_ckpt *c, enum zb_ckpt_part part,
                              const char *name)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", zb_ckpt_prefix[part], name);
    return zb_weights_get(c->optim, full);
}

void zb_ckpt_close(struct zb_ckpt *c)
{
    if (c == NULL) {
        return;
    }
    zb_weights_close(c->optim);
    zb_weights_close(c->model);
    zb_free(c->path);
    zb_free(c);
}

int zb_ckpt_is_one(const char *path)
{
    char *state = zb_format("%s/" ZB_CKPT_STATE, path);
    int is_there = state != NULL && access(state, F_OK) == 0;

    zb_free(state);
    return is_there;
}

/* ---- the newest ---------------------------------------------------------- */

static enum zb_status try_step(const char *dir, int64_t step,
                               struct zb_ckpt **c_out)
{
    char *path = zb_ckpt_path(dir, step);
    enum zb_status st = path == NULL ? ZB_ENOMEM : zb_ckpt_open(path, c_out);

    if (st != ZB_OK && st != ZB_ENOMEM) {
        zb_log(ZB_LOG_WARN, "checkpoint %s is damaged: %s", path,
               zb_error_text());
    }
    zb_free(path);
    return st;
}

enum zb_status zb_ckpt_open_newest(const char *dir, struct zb_ckpt **c_out)
{
    struct zb_ckpt *c = NULL;
    int64_t *step = NULL;
    size_t n = 0;
    enum zb_status st = ZB_OK;

    ZB_TRY(zb_ckpt_list(dir, &step, &n));
    for (size_t i = n; i > 0 && c == NULL && st != ZB_ENOMEM; i--) {
        st = try_step(dir, step[i - 1], &c);
    }
    zb_free(step);
    if (c == NULL && st != ZB_OK && st != ZB_ENOMEM) {
        return zb_fail(ZB_ECONFIG, "%s: all checkpoints are damaged (%zu)", dir,
                       n);
    }
    ZB_TRY(st);
    *c_out = c;
    return ZB_OK;
}
