/* SPDX-License-Identifier: MIT
 *
 * The models of tests/golden/ (README.md there) and the measure of design
 * section 8 that gradients are compared with. */
#ifndef GOLDEN_RIG_H
#define GOLDEN_RIG_H

#include "zb/ckpt.h"
#include "zb/model.h"

struct golden {
    struct zb_st_file *file;
    struct zb_model *model;
    const struct zb_graph *g;
    zb_real **params; /* start values */
    int rows, seq;
    const void *data[3]; /* fields in the graph's order */
    int32_t *ids, *labels, *mask; /* labels are shifted: targets */
};

/* Case `name` of tests/golden/. Asserts success. */
void golden_open(struct golden *d, const char *name);
void golden_open_as(struct golden *d, const char *name, enum zb_dtype storage);
void golden_close(struct golden *d);

/* A tensor of the file as doubles, to be freed. Asserts that it is there. */
double *golden_doubles(const struct golden *d, const char *name);

/* Norm of all gradients of the file together. */
double golden_total_norm(const struct golden *d);

/* || a - b || / max(|| b ||, floor) */
double golden_error(const double *a, const double *b, int64_t n, double floor);

#endif
