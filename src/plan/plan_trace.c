/* SPDX-License-Identifier: MIT
 *
 * Format trace: the Trace Event Format, which chrome://tracing and Perfetto
 * open. One row per stage; a unit of time is a microsecond there, the unit of
 * the format.
 */
#include "config.h"
#include "plan/plan_format.h"

static void write_stage(const struct zb_schedule *s, int stage, FILE *f)
{
    char start[ZB_PLAN_NUMBER_MAX], length[ZB_PLAN_NUMBER_MAX];

    fprintf(f,
            ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"name\":\"thread_name\","
            "\"args\":{\"name\":\"stage %d\"}}",
            stage, stage);
    for (size_t j = 0; j < s->stages[stage].n; j++) {
        const struct zb_node *node = &s->stages[stage].node[j];
        const char *type = zb_node_type_str(node->type);

        if (!zb_node_is_compute(node->type)) {
            continue;
        }
        fprintf(f,
                ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"name\":\"%s%d.%d\","
                "\"cat\":\"%s\",\"ts\":%s,\"dur\":%s,"
                "\"args\":{\"chunk\":%d,\"mb\":%d}}",
                stage, type, node->chunk, node->mb, type,
                zb_plan_number(node->start, start),
                zb_plan_number(node->end - node->start, length), node->chunk,
                node->mb);
    }
}

enum zb_status zb_plan_write_trace(const struct zb_schedule *s,
                                   const struct zb_plan_style *style, FILE *f)
{
    (void)style;
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
          "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\","
          "\"args\":{\"name\":",
          f);
    zb_plan_put_json(f, s->planner);
    fputs("}}", f);
    for (int i = 0; i < s->n_stage; i++) {
        write_stage(s, i, f);
    }
    fputs("\n]}\n", f);
    return ZB_OK;
}
