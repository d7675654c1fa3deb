/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "data/data_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zb/mem.h"

static enum zb_status map(struct zb_mapped *file)
{
    struct stat sb;
    void *bytes;

    if (fstat(file->fd, &sb) != 0) {
        return zb_fail(ZB_ECONFIG, "%s: %s", file->path, strerror(errno));
    }
    if (!S_ISREG(sb.st_mode)) {
        return zb_fail(ZB_ECONFIG, "%s: is %s, not a regular file", file->path,
                       S_ISDIR(sb.st_mode) ? "a directory" : "something else");
    }
    file->n_bytes = sb.st_size;
    if (file->n_bytes == 0) {
        return ZB_OK;
    }
    bytes =
        mmap(NULL, (size_t)file->n_bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (bytes == MAP_FAILED) {
        return zb_fail(ZB_ECONFIG, "%s: can not be mapped: %s", file->path,
                       strerror(errno));
    }
    file->bytes = bytes;
    return ZB_OK;
}

enum zb_status zb_mapped_open(const char *path, struct zb_mapped *file_out)
{
    struct zb_mapped file = {0};
    enum zb_status st;

    file.path = zb_strdup(path);
    if (file.path == NULL) {
        return ZB_ENOMEM;
    }
    /* Without O_NONBLOCK a pipe would wait here for a writer. */
    file.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.fd < 0) {
        st = zb_fail(ZB_ECONFIG, "%s: %s", path, strerror(errno));
        zb_free(file.path);
        return st;
    }
    st = map(&file);
    if (st != ZB_OK) {
        zb_mapped_close(&file);
        return st;
    }
    *file_out = file;
    return ZB_OK;
}

void zb_mapped_close(struct zb_mapped *file)
{
    if (file->bytes != NULL) {
        munmap((void *)(uintptr_t)file->bytes, (size_t)file->n_bytes);
    }
    close(file->fd);
    zb_free(file->path);
    memset(file, 0, sizeof(*file));
}

enum zb_status zb_mapped_check(const struct zb_mapped *file)
{
    struct stat sb;

    if (fstat(file->fd, &sb) != 0) {
        return zb_fail(ZB_EIO, "%s: %s", file->path, strerror(errno));
    }
    if (sb.st_size < file->n_bytes) {
        return zb_fail(
            ZB_EIO, "%s: has %lld bytes now, %lld when it was opened",
            file->path, (long long)sb.st_size, (long long)file->n_bytes);
    }
    return ZB_OK;
}

const char *zb_mapped_kind(const struct zb_mapped *file)
{
    static const struct {
        const char *magic;
        size_t n;
        const char *kind;
    } kinds[] = {
        {"\x1f\x8b\x08", 3, "a gzip file"},
        {"\xfd\x37zXZ\0", 6, "an xz file"},
        {"\x28\xb5\x2f\xfd", 4, "a zstd file"},
        {"PK\x03\x04", 4, "a zip file"},
        /* 20240522, llm.c's multiple-choice examples */
        {"\x8a\xd8\x34\x01", 4, "a file of llm.c's evaluations"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(kinds); i++) {
        if (file->n_bytes >= (int64_t)kinds[i].n &&
            memcmp(file->bytes, kinds[i].magic, kinds[i].n) == 0) {
            return kinds[i].kind;
        }
    }
    return NULL;
}
