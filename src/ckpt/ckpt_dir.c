/* SPDX-License-Identifier: MIT
 *
 * The folder that has the checkpoints of a run. */
#include "config.h"
#include "ckpt/ckpt_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zb/mem.h"

#define STEP_PREFIX "step-"

/* Names with this end are being written or removed: see ckpt_write.c. */
#define TMP_END ".tmp"

#define MAX_FDS 16
#define MAX_ASIDE 1000

static enum zb_status io_error(const char *path, const char *what)
{
    return zb_fail(ZB_EIO, "%s: %s: %s", path, what, strerror(errno));
}

char *zb_ckpt_path(const char *dir, int64_t step)
{
    return zb_format("%s/" STEP_PREFIX "%lld", dir, (long long)step);
}

/* ---- removing ------------------------------------------------------------ */

static int remove_one(const char *path, const struct stat *info, int flag,
                      struct FTW *at)
{
    (void)info;
    (void)flag;
    (void)at;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

enum zb_status zb_remove_tree(const char *path)
{
    struct stat info;

    if (lstat(path, &info) != 0 && errno == ENOENT) {
        return ZB_OK;
    }
    return nftw(path, remove_one, MAX_FDS, FTW_DEPTH | FTW_PHYS) == 0
               ? ZB_OK
               : io_error(path, "cannot remove");
}

enum zb_status zb_sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum zb_status st = ZB_OK;

    if (fd < 0) {
        return io_error(path, "cannot open");
    }
    /* A file system that cannot synchronise a folder says EINVAL. */
    if (fsync(fd) != 0 && errno != EINVAL) {
        st = io_error(path, "cannot synchronise");
    }
    close(fd);
    return st;
}

/* First under a name that is no checkpoint's: a half-removed one would look
 * like a damaged one. */
static enum zb_status remove_step(const char *dir, int64_t step)
{
    char *path = zb_ckpt_path(dir, step);
    char *tmp =
        zb_format("%s/" STEP_PREFIX "%lld.old" TMP_END, dir, (long long)step);
    enum zb_status st = path == NULL || tmp == NULL ? ZB_ENOMEM : ZB_OK;

    if (st == ZB_OK) {
        st = zb_remove_tree(tmp);
    }
    if (st == ZB_OK && rename(path, tmp) != 0) {
        st = io_error(path, "cannot rename");
    }
    if (st == ZB_OK) {
        st = zb_remove_tree(tmp);
    }
    zb_free(tmp);
    zb_free(path);
    return st;
}

enum zb_status zb_ckpt_prune(const char *dir, int keep)
{
    int64_t *step = NULL;
    size_t n = 0;
    enum zb_status st = ZB_OK;

    if (keep == 0) {
        return ZB_OK;
    }
    ZB_TRY(zb_ckpt_list(dir, &step, &n));
    for (size_t i = 0; i + (size_t)keep < n && st == ZB_OK; i++) {
        st = remove_step(dir, step[i]);
    }
    zb_free(step);
    return st;
}

/* ---- looking ------------------------------------------------------------- */

/* The N of "step-N" without leading zeros, or -1. */
static int64_t step_of(const char *name)
{
    size_t len = strlen(STEP_PREFIX);
    const char *digits = name + len;
    char *end;
    long long step;

    if (strncmp(name, STEP_PREFIX, len) != 0 || digits[0] < '0' ||
        digits[0] > '9' || (digits[0] == '0' && digits[1] != '\0')) {
        return -1;
    }
    errno = 0;
    step = strtoll(digits, &end, 10);
    return errno == 0 && *end == '\0' ? step : -1;
}

static int compare_steps(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static enum zb_status list_steps(DIR *d, int64_t **step, size_t *n)
{
    const struct dirent *entry;
    size_t cap = 0;

    while ((entry = readdir(d)) != NULL) {
        int64_t found = step_of(entry->d_name);

        if (found >= 0) {
            ZB_TRY(zb_grow(step, *n, &cap, sizeof(**step)));
            (*step)[(*n)++] = found;
        }
    }
    return ZB_OK;
}

enum zb_status zb_ckpt_list(const char *dir, int64_t **step_out, size_t *n_out)
{
    DIR *d = opendir(dir);
    int64_t *step = NULL;
    size_t n = 0;
    enum zb_status st = ZB_OK;

    if (d == NULL && errno != ENOENT) {
        return io_error(dir, "cannot read");
    }
    if (d != NULL) {
        st = list_steps(d, &step, &n);
        closedir(d);
    }
    if (st != ZB_OK) {
        zb_free(step);
        return st;
    }
    if (n > 0) {
        qsort(step, n, sizeof(*step), compare_steps);
    }
    *step_out = step;
    *n_out = n;
    return ZB_OK;
}

/* step-N.tmp and step-N.old.tmp */
static int is_leftover(const char *name)
{
    size_t len = strlen(name), end = strlen(TMP_END);

    return strncmp(name, STEP_PREFIX, strlen(STEP_PREFIX)) == 0 && len > end &&
           strcmp(name + len - end, TMP_END) == 0;
}

enum zb_status zb_ckpt_clean(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;
    enum zb_status st = ZB_OK;

    if (d == NULL) {
        return errno == ENOENT ? ZB_OK : io_error(dir, "cannot read");
    }
    while (st == ZB_OK && (entry = readdir(d)) != NULL) {
        char *path;

        if (!is_leftover(entry->d_name)) {
            continue;
        }
        path = zb_format("%s/%s", dir, entry->d_name);
        st = path == NULL ? ZB_ENOMEM : zb_remove_tree(path);
        zb_free(path);
    }
    closedir(d);
    return st;
}

enum zb_status zb_ckpt_set_aside(const char *dir, int64_t step)
{
    char *path = zb_ckpt_path(dir, step);
    enum zb_status st = path == NULL ? ZB_ENOMEM : ZB_EIO;

    for (int i = 1; st == ZB_EIO && i <= MAX_ASIDE; i++) {
        char *to = i == 1 ? zb_format("%s.damaged", path)
                          : zb_format("%s.damaged-%d", path, i);

        if (to == NULL) {
            st = ZB_ENOMEM;
        } else if (access(to, F_OK) != 0) {
            st =
                rename(path, to) == 0 ? ZB_OK : io_error(path, "cannot rename");
            zb_free(to);
            break;
        }
        zb_free(to);
    }
    zb_free(path);
    return st;
}
