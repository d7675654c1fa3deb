/* SPDX-License-Identifier: MIT
 *
 * What GPUs said of themselves, over a run. */
#include "config.h"
#include "cli/report_int.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

static void add_value(struct zbrun_range *r, double x)
{
    if (!isfinite(x)) {
        return;
    }
    r->min = r->n == 0 || x < r->min ? x : r->min;
    r->max = r->n == 0 || x > r->max ? x : r->max;
    r->sum += x;
    r->n++;
}

static void add_state(struct zbrun_gpu *g, const struct zb_gpu_state *state)
{
    g->gpu = state->gpu;
    g->n++;
    add_value(&g->used_bytes, state->used_bytes);
    add_value(&g->power_w, state->power_w);
    add_value(&g->sm_mhz, state->sm_mhz);
    add_value(&g->temperature_c, state->temperature_c);
    if (state->throttle == ZB_THROTTLE_UNKNOWN) {
        return;
    }
    g->n_throttle++;
    for (int i = 0; i < ZB_N_THROTTLES; i++) {
        g->throttle[i] += state->throttle >> i & 1;
    }
}

enum zb_status zbrun_gpus_add(struct zbrun_gpus *gs,
                              const struct zb_gpu_state *state, int n)
{
    if (n > gs->n) {
        struct zbrun_gpu *all =
            zb_realloc_array(gs->gpu, (size_t)gs->n, (size_t)n, sizeof(*all));

        if (all == NULL) {
            return ZB_ENOMEM;
        }
        gs->gpu = all;
        gs->n = n;
    }
    for (int i = 0; i < n; i++) {
        add_state(&gs->gpu[i], &state[i]);
    }
    return ZB_OK;
}

void zbrun_gpus_release(struct zbrun_gpus *gs)
{
    zb_free(gs->gpu);
    memset(gs, 0, sizeof(*gs));
}

/* ---- the page ------------------------------------------------------------ */

/* Empty cells where nothing was told. */
static void put_cell(FILE *f, int is_known, double value)
{
    if (is_known) {
        fprintf(f, "<td>%.6g</td>", value);
    } else {
        fputs("<td></td>", f);
    }
}

static void put_mean(FILE *f, const struct zbrun_range *r)
{
    put_cell(f, r->n > 0, r->sum / (double)(r->n > 0 ? r->n : 1));
}

static void put_throttle(FILE *f, const struct zbrun_gpu *g)
{
    const char *comma = "";

    fputs("<td class=\"t\">", f);
    for (int i = 0; i < ZB_N_THROTTLES; i++) {
        if (g->throttle[i] > 0) {
            fprintf(f, "%s%s %.0f %%", comma, zb_throttle_str(i),
                    100.0 * (double)g->throttle[i] / (double)g->n_throttle);
            comma = ", ";
        }
    }
    fputs("</td>", f);
}

void zbrun_report_gpus(const struct zbrun_gpus *gs, FILE *f)
{
    if (gs->n == 0) {
        return;
    }
    fputs(
        "<h2>GPUs</h2>\n<p>As their driver says, read in the steps that "
        "train.log_interval shows; memory is that of all programs. What slows "
        "a clock: in how many of the readings.</p>\n"
        "<div class=\"scroll\"><table>\n<tr><th>GPU</th><th>readings</th>"
        "<th>memory, GiB at most</th><th>W, mean</th><th>W, at most</th>"
        "<th>SM MHz, mean</th><th>SM MHz, at least</th><th>&deg;C, at "
        "most</th><th class=\"t\">slowed by</th></tr>\n",
        f);
    for (int i = 0; i < gs->n; i++) {
        const struct zbrun_gpu *g = &gs->gpu[i];

        fprintf(f, "<tr><td>%d</td><td>%lld</td>", g->gpu, (long long)g->n);
        put_cell(f, g->used_bytes.n > 0, g->used_bytes.max / 1073741824.0);
        put_mean(f, &g->power_w);
        put_cell(f, g->power_w.n > 0, g->power_w.max);
        put_mean(f, &g->sm_mhz);
        put_cell(f, g->sm_mhz.n > 0, g->sm_mhz.min);
        put_cell(f, g->temperature_c.n > 0, g->temperature_c.max);
        put_throttle(f, g);
        fputs("</tr>\n", f);
    }
    fputs("</table></div>\n", f);
}
