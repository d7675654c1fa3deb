/* SPDX-License-Identifier: MIT
 *
 * Which stage holds what, and how large things are. */
#include "config.h"
#include "run/run_int.h"

int zb_virt_of(const struct zb_run_plan *p, int stage, int chunk)
{
    return zb_virtual_stage(p->in.placement, p->n_stages, stage, chunk);
}

int zb_stage_of(const struct zb_run_plan *p, int virt)
{
    int stage, chunk;

    zb_virtual_to_local(p->in.placement, p->n_stages, virt, &stage, &chunk);
    return stage;
}

int zb_chunk_of(const struct zb_run_plan *p, int virt)
{
    int stage, chunk;

    zb_virtual_to_local(p->in.placement, p->n_stages, virt, &stage, &chunk);
    return chunk;
}

int zb_device_of(const struct zb_run_plan *p, int stage, int column)
{
    return stage * p->n_columns + column;
}

struct zb_column zb_column_of(const struct zb_run_plan *p, int column)
{
    return (struct zb_column){.dp = column / (p->n_sp * p->n_tp),
                              .sp = column / p->n_tp % p->n_sp,
                              .tp = column % p->n_tp};
}

int64_t zb_param_elems(const struct zb_run_plan *p, int param)
{
    struct zb_param_info info = zb_graph_param(p->g, param);

    return zb_shape_elems(&info.shape);
}

int64_t zb_param_whole_elems(const struct zb_run_plan *p, int param)
{
    struct zb_param_info info = zb_graph_param(p->g, param);

    return zb_shape_elems(&info.whole);
}

int zb_n_channels(const struct zb_run_plan *p)
{
    return 2 * (p->n_virtual - 1);
}

int zb_channel_from(int channel)
{
    return channel / 2 + channel % 2;
}

int zb_channel_to(int channel)
{
    return channel / 2 + 1 - channel % 2;
}

size_t zb_channel_bytes(const struct zb_run_plan *p, int channel)
{
    return channel % 2 == 0 ? p->info[channel / 2].bytes[ZB_SPACE_OUT]
                            : p->info[channel / 2].bytes[ZB_SPACE_DIN];
}
