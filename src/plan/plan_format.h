/* SPDX-License-Identifier: MIT
 *
 * What the formats of schedule files share. A format is a file plan_<name>.c
 * and a row of the table in plan_format.c.
 *
 * Threads: any, no shared state.
 */
#ifndef PLAN_FORMAT_H
#define PLAN_FORMAT_H

#include "plan/plan_int.h"

/* ---- writers: style is not NULL, the caller looks for errors of f ---- */

enum zb_status zb_plan_write_text(const struct zb_schedule *s,
                                  const struct zb_plan_style *style,
                                  FILE *f) ZB_CHECKED;
enum zb_status zb_plan_write_json(const struct zb_schedule *s,
                                  const struct zb_plan_style *style,
                                  FILE *f) ZB_CHECKED;
enum zb_status zb_plan_write_nodes(const struct zb_schedule *s,
                                   const struct zb_plan_style *style,
                                   FILE *f) ZB_CHECKED;
enum zb_status zb_plan_write_torch(const struct zb_schedule *s,
                                   const struct zb_plan_style *style,
                                   FILE *f) ZB_CHECKED;
enum zb_status zb_plan_write_svg(const struct zb_schedule *s,
                                 const struct zb_plan_style *style,
                                 FILE *f) ZB_CHECKED;
enum zb_status zb_plan_write_trace(const struct zb_schedule *s,
                                   const struct zb_plan_style *style,
                                   FILE *f) ZB_CHECKED;

/* A JSON string, quotes included. */
void zb_plan_put_json(FILE *f, const char *s);

/* ", lower bound 51 (gap 2.0 %)" of the schedule's objective, or nothing. */
void zb_plan_put_bound(FILE *f, const struct zb_schedule *s);

/* Decimal digits of x >= 0. */
int zb_plan_n_digits(int x);

/* ---- readers: text has len bytes, none of them 0, and ends with a 0 ---- */

enum zb_status zb_plan_read_json(const char *path, const char *text, size_t len,
                                 struct zb_schedule **s_out) ZB_CHECKED;
enum zb_status zb_plan_read_nodes(const char *path, const char *text,
                                  size_t len,
                                  struct zb_schedule **s_out) ZB_CHECKED;
enum zb_status zb_plan_read_torch(const char *path, const char *text,
                                  size_t len,
                                  struct zb_schedule **s_out) ZB_CHECKED;

/* Whether a file of this format may begin so. */
int zb_plan_is_json(const char *text);
int zb_plan_is_torch(const char *text);

/* A schedule under construction by a reader: nodes in file order. */
struct zb_plan_draft {
    struct zb_node *node;
    size_t n, cap;
    size_t *first; /* [n_stage] index of each stage's first node */
    size_t n_stage, cap_stage;
    int max_chunk, max_mb; /* -1 before the first node */
};
void zb_plan_draft_release(struct zb_plan_draft *d);
/* Start the next stage. */
enum zb_status zb_plan_draft_stage(struct zb_plan_draft *d) ZB_CHECKED;
enum zb_status zb_plan_draft_node(struct zb_plan_draft *d,
                                  const struct zb_node *node) ZB_CHECKED;
/* Make the schedule: find out the placement when it is -1, check the sizes,
 * add messages when there are none. n_micro 0 means one more than the largest
 * mb. */
enum zb_status zb_plan_draft_finish(struct zb_plan_draft *d, int placement,
                                    int n_micro,
                                    struct zb_schedule **s_out) ZB_CHECKED;

/* The type of this name; 0 when there is none. */
int zb_plan_find_type(const char *name, size_t len,
                      enum zb_node_type *type_out);

#endif
