/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zb/mem.h"

enum zb_status zb_make_dir(const char *dir)
{
    char *path = zb_strdup(dir);
    enum zb_status st = ZB_OK;
    size_t n = 0;

    if (path == NULL) {
        return ZB_ENOMEM;
    }
    while (st == ZB_OK && path[n] != '\0') {
        n += strspn(path + n, "/");
        n += strcspn(path + n, "/");
        path[n] = '\0';
        /* Only what happens to the last folder counts. */
        if (mkdir(path, 0777) != 0 && errno != EEXIST && dir[n] == '\0') {
            st = zb_fail(ZB_EIO, "%s: cannot create: %s", dir, strerror(errno));
        }
        path[n] = dir[n];
    }
    zb_free(path);
    return st;
}

enum zb_status zb_sink_open(struct zb_sink *k, const char *path)
{
    struct stat info;

    *k = (struct zb_sink){.path = path, .f = stdout};
    if (path == NULL) {
        return ZB_OK;
    }
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) {
        k->tmp = zb_format("%s.tmp%ld", path, (long)gettid());
        if (k->tmp == NULL) {
            return ZB_ENOMEM;
        }
    }
    k->f = fopen(k->tmp != NULL ? k->tmp : path, "w");
    if (k->f == NULL) {
        zb_free(k->tmp);
        return zb_fail(ZB_EIO, "%s: %s", path, strerror(errno));
    }
    return ZB_OK;
}

enum zb_status zb_sink_close(struct zb_sink *k, enum zb_status st)
{
    int is_bad = fflush(k->f) != 0 || ferror(k->f);

    if (k->path != NULL) {
        is_bad |= fclose(k->f) != 0;
    }
    if (st == ZB_OK && !is_bad && k->tmp != NULL) {
        is_bad = rename(k->tmp, k->path) != 0;
    }
    if (st == ZB_OK && is_bad) {
        st = zb_fail(ZB_EIO, "%s: cannot write: %s",
                     k->path != NULL ? k->path : "standard output",
                     strerror(errno));
    }
    if (st != ZB_OK && k->tmp != NULL) {
        remove(k->tmp);
    }
    zb_free(k->tmp);
    return st;
}

/* ---- texts --------------------------------------------------------------- */

static enum zb_status read_all(FILE *f, const char *path, size_t max_bytes,
                               char **text_out)
{
    struct stat info;
    char *text;
    size_t n;

    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode)) {
        return zb_fail(ZB_ECONFIG, "%s: is no regular file", path);
    }
    if ((uint64_t)info.st_size > max_bytes) {
        return zb_fail(ZB_ECONFIG, "%s: has %lld bytes, more than %zu", path,
                       (long long)info.st_size, max_bytes);
    }
    text = zb_alloc((size_t)info.st_size + 1);
    if (text == NULL) {
        return ZB_ENOMEM;
    }
    n = fread(text, 1, (size_t)info.st_size, f);
    if (n < (size_t)info.st_size) {
        zb_free(text);
        return zb_fail(ZB_ECONFIG, "%s: cannot read: %s", path,
                       ferror(f) ? strerror(errno) : "it became shorter");
    }
    *text_out = text;
    return ZB_OK;
}

enum zb_status zb_read_text(const char *path, size_t max_bytes, char **text_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    enum zb_status st;

    if (f == NULL) {
        st = zb_fail(ZB_ECONFIG, "%s: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return st;
    }
    st = read_all(f, path, max_bytes, text_out);
    fclose(f);
    return st;
}
