/* SPDX-License-Identifier: MIT
 *
 * A program that gives hostile bytes to one reader. It has a target for
 * libFuzzer (tests/fuzz/run-libfuzzer builds it with clang), and good inputs,
 * which fuzz_main.c mutates where there is no libFuzzer: `make check` does that
 * with a fixed seed. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Read these bytes and release everything. A crash, a leak, or memory beyond
 * what the input can ask for is a bug; that it is refused is not. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Good input i: its bytes (static storage until the next call), or 0. */
size_t fuzz_seed(size_t i, const uint8_t **data_out);

/* A path of memory that holds the bytes, the same at every call. */
const char *fuzz_file(const uint8_t *data, size_t n);

/* Stop the program unless as much host memory is allocated as `before`. */
void fuzz_check_live(int64_t before);

#endif
