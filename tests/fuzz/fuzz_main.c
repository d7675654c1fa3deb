/* SPDX-License-Identifier: MIT
 *
 * Without libFuzzer: mutations of the good inputs with a fixed seed, or the
 * files that are named on the command line; or, with --seeds DIR, the good
 * inputs into a folder. ZBT_LONG: 100 times as many. */
#include "config.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define N_INPUTS 4000
#define MAX_BYTES (1 << 16)
#define HANG_S 60

static uint64_t state = 20261203;

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t n)
{
    return (size_t)(draw() % n);
}

static const char *const words[] = {
    "-1",
    "0",
    "1e99",
    "9223372036854775807",
    "18446744073709551616",
    "null",
    "[]",
    "{}",
    "\"\"",
    "\"\\u0000\"",
    "[[[[[[",
    "1.5",
    "true",
    "\xff\xfe",
    "-0",
};

static size_t change(uint8_t *x, size_t n)
{
    size_t at = below(n + 1), len;
    const char *word;

    switch (below(6)) {
    case 0:
        if (at < n) {
            x[at] ^= (uint8_t)(1u << below(8));
        }
        return n;
    case 1:
        if (at < n) {
            x[at] = (uint8_t)draw();
        }
        return n;
    case 2: /* cut something out */
        len = below(40);
        len = len < n - at ? len : n - at;
        memmove(x + at, x + at + len, n - at - len);
        return n - len;
    case 3: /* repeat something */
        len = below(40);
        len = len < n - at ? len : n - at;
        if (n + len > MAX_BYTES) {
            return n;
        }
        memmove(x + at + len, x + at, n - at);
        return n + len;
    case 4:
        return below(8) == 0 ? at : n;
    default:
        word = words[below(sizeof(words) / sizeof(words[0]))];
        len = strlen(word);
        len = len < n - at ? len : n - at;
        memcpy(x + at, word, len);
        return n;
    }
}

static void mutate_all(size_t n_inputs)
{
    static uint8_t x[MAX_BYTES];
    const uint8_t *seed;
    size_t n_seeds = 0;

    while (fuzz_seed(n_seeds, &seed) > 0) {
        n_seeds++;
    }
    for (size_t i = 0; i < n_inputs; i++) {
        size_t n = fuzz_seed(i % n_seeds, &seed);

        memcpy(x, seed, n);
        for (size_t k = i < n_seeds ? 0 : 1 + below(4); k > 0 && n > 0; k--) {
            n = change(x, n);
        }
        alarm(HANG_S);
        LLVMFuzzerTestOneInput(x, n);
    }
    printf("%zu inputs\n", n_inputs);
}

static void one_file(const char *path)
{
    static uint8_t x[16 * MAX_BYTES];
    FILE *f = fopen(path, "rb");
    size_t n;

    if (f == NULL) {
        perror(path);
        exit(99);
    }
    n = fread(x, 1, sizeof(x), f);
    fclose(f);
    LLVMFuzzerTestOneInput(x, n);
}

static void write_seeds(const char *dir)
{
    const uint8_t *seed;
    size_t n;

    for (size_t i = 0; (n = fuzz_seed(i, &seed)) > 0; i++) {
        char path[4096];
        FILE *f;

        snprintf(path, sizeof(path), "%s/seed-%zu", dir, i);
        f = fopen(path, "wb");
        if (f == NULL || fwrite(seed, 1, n, f) != n || fclose(f) != 0) {
            perror(path);
            exit(99);
        }
    }
}

int main(int argc, char **argv)
{
#ifndef __SANITIZE_ADDRESS__
    /* The sanitizer, which needs terabytes of addresses, has its own limit. */
    const struct rlimit most = {(rlim_t)1 << 30, (rlim_t)1 << 30};

    setrlimit(RLIMIT_AS, &most);
#endif
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
        write_seeds(argv[2]);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        one_file(argv[i]);
    }
    if (argc == 1) {
        mutate_all(getenv("ZBT_LONG") != NULL ? 100 * N_INPUTS : N_INPUTS);
    }
    return 0;
}
