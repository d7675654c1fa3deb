/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "zb/mem.h"

/* An allocation that the machine can not serve is an error of the reader's, as
 * anywhere; one of 64 GB that it can is no reason to stop fuzzing. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=512";
}

static void give_up(const char *why)
{
    fprintf(stderr, "fuzz: %s\n", why);
    abort();
}

const char *fuzz_file(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];

    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 ||
        pwrite(fd, data, n, 0) != (ssize_t)n) {
        give_up("no file in memory");
    }
    return path;
}

void fuzz_check_live(int64_t before)
{
    if (zb_mem_live() != before) {
        give_up("memory stays allocated");
    }
}
