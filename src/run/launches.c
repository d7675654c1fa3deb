/* SPDX-License-Identifier: MIT
 *
 * How much a step enqueues: the counts of a device's streams after it, less
 * those before. */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

/* Streams of a name count together: a stage has one for copies per channel. */
static int add_up(const struct zb_worker *w,
                  struct zb_stream_stats sum[ZB_MAX_STREAM_NAMES])
{
    struct zb_stream_stats one;
    int n = 0;

    for (int i = 0; w->dev != NULL && w->ops->stream_stats(w->dev, i, &one);
         i++) {
        int k = 0;

        while (k < n && strcmp(sum[k].name, one.name) != 0) {
            k++;
        }
        if (k == ZB_MAX_STREAM_NAMES) {
            continue;
        }
        if (k == n) {
            sum[n++] = (struct zb_stream_stats){.name = one.name};
        }
        sum[k].kernels += one.kernels;
        sum[k].products += one.products;
        sum[k].copies += one.copies;
        sum[k].graphs += one.graphs;
    }
    return n;
}

void zb_worker_note_launches(struct zb_worker *w)
{
    w->n_noted = add_up(w, w->noted);
}

int zb_session_step_stats(const struct zb_session *s, int stage, int i,
                          struct zb_stream_stats *stats_out)
{
    const struct zb_worker *w = &s->worker[zb_device_of(s->plan, stage, 0)];
    struct zb_stream_stats now[ZB_MAX_STREAM_NAMES];
    int n = add_up(w, now);

    if (i < 0 || i >= n) {
        return 0;
    }
    for (int k = 0; k < w->n_noted; k++) {
        if (strcmp(w->noted[k].name, now[i].name) == 0) {
            now[i].kernels -= w->noted[k].kernels;
            now[i].products -= w->noted[k].products;
            now[i].copies -= w->noted[k].copies;
            now[i].graphs -= w->noted[k].graphs;
        }
    }
    *stats_out = now[i];
    return 1;
}

void zb_session_print_launches(const struct zb_session *s, FILE *f)
{
    struct zb_stream_stats one;

    if (!zb_session_step_stats(s, 0, 0, &one)) {
        return;
    }
    fprintf(f, "enqueued by the last step:\n");
    for (int stage = 0; stage < s->plan->n_stages; stage++) {
        fprintf(f, "  stage %d:", stage);
        for (int i = 0; zb_session_step_stats(s, stage, i, &one); i++) {
            fprintf(f, "%s %s %llu kernels, %llu products, %llu copies, %llu "
                       "graphs",
                    i > 0 ? ";" : "", one.name, (unsigned long long)one.kernels,
                    (unsigned long long)one.products,
                    (unsigned long long)one.copies,
                    (unsigned long long)one.graphs);
        }
        fputc('\n', f);
    }
}
