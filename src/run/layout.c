/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

#include "zb/mem.h"

const char *zb_region_str(enum zb_region r)
{
    static const char *const name[ZB_N_REGIONS] = {
        [ZB_REGION_PARAM] = "parameters",
        [ZB_REGION_GRAD] = "gradients",
        [ZB_REGION_OPTIM] = "optimizer",
        [ZB_REGION_UNDO] = "undo copies",
        [ZB_REGION_CONST] = "tables",
        [ZB_REGION_ACT] = "activations",
        [ZB_REGION_SCRATCH] = "scratch",
        [ZB_REGION_MSG] = "messages",
        [ZB_REGION_ROOM] = "collectives",
        [ZB_REGION_BATCH] = "batch",
        [ZB_REGION_STREAM] = "streams",
        [ZB_REGION_MISC] = "sums",
    };
    return name[r];
}

/* Where the next thing of a region goes. */
struct cursor {
    struct zb_layout *l;
    enum zb_region region;
};

static void begin(struct cursor *c, enum zb_region r)
{
    c->region = r;
    c->l->region_offset[r] = c->l->total;
}

static size_t take(struct cursor *c, size_t bytes)
{
    size_t at = c->l->total;

    bytes = zb_round_up(bytes);
    c->l->region_bytes[c->region] += bytes;
    c->l->total += bytes;
    return at;
}

static size_t *new_offsets(size_t n)
{
    size_t *off = zb_alloc_array(n, sizeof(*off));

    for (size_t i = 0; off != NULL && i < n; i++) {
        off[i] = ZB_NO_OFFSET;
    }
    return off;
}

static enum zb_status alloc_tables(struct zb_layout *l,
                                   const struct zb_run_plan *p)
{
    size_t n_fly = (size_t)p->n_chunk * (size_t)p->o.n_micro;
    size_t n_chan = (size_t)zb_n_channels(p);
    struct {
        size_t **table;
        size_t n;
    } row[] = {
        {&l->param, (size_t)p->n_params},
        {&l->grad, (size_t)p->n_uses},
        {&l->konst, (size_t)p->n_consts},
        {&l->fb, n_fly},
        {&l->fw, n_fly},
        {&l->bw, n_fly},
        {&l->field, (size_t)l->n_slots * (size_t)p->n_data},
        {&l->sample, (size_t)l->n_slots},
        {&l->msg, n_chan},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(row); i++) {
        *row[i].table = new_offsets(row[i].n);
        if (*row[i].table == NULL) {
            return ZB_ENOMEM;
        }
    }
    l->msg_first = zb_alloc_array(n_chan, sizeof(int));
    l->msg_n = zb_alloc_array(n_chan, sizeof(int));
    if (l->msg_first == NULL || l->msg_n == NULL) {
        return ZB_ENOMEM;
    }
    return ZB_OK;
}

void zb_layout_release(struct zb_layout *l)
{
    void *tables[] = {l->param, l->grad,   l->konst, l->fb,
                      l->fw,    l->bw,     l->field, l->sample,
                      l->msg,   l->msg_first, l->msg_n};

    zb_buckets_release(&l->buckets);
    for (size_t i = 0; i < ZB_COUNT_OF(tables); i++) {
        zb_free(tables[i]);
    }
    memset(l, 0, sizeof(*l));
}

static size_t reals(int64_t n)
{
    return (size_t)n * sizeof(zb_real);
}

size_t zb_stored_bytes(const struct zb_run_plan *p, int64_t n)
{
    return (size_t)n * zb_dtype_bytes(p->storage);
}

void *zb_stored_at(const struct zb_run_plan *p, void *array, int64_t at)
{
    return (char *)array + zb_stored_bytes(p, at);
}

/* First of all: libraries like their memory aligned to more than ours. */
static void lay_streams(struct cursor *c, const struct zb_run_plan *p)
{
    begin(c, ZB_REGION_STREAM);
    c->l->compute = take(c, p->compute_bytes);
    c->l->side = take(c, p->side_bytes);
}

/* The parameters of a bucket lie in it; the others each for itself. */
static void lay_values(struct cursor *c, const struct zb_run_plan *p, int stage)
{
    struct zb_layout *l = c->l;

    begin(c, ZB_REGION_PARAM);
    for (int i = 0; i < l->buckets.n; i++) {
        struct zb_bucket *b = &l->buckets.bucket[i];

        b->value = take(c, zb_stored_bytes(p, b->n));
        for (int k = 0; k < b->n_params; k++) {
            l->param[b->param[k]] =
                b->value + zb_stored_bytes(p, b->first[k]);
        }
    }
    for (int k = 0; k < p->n_chunk; k++) {
        const struct zb_chunk_info *info = &p->info[zb_virt_of(p, stage, k)];

        for (int i = 0; i < info->n_params; i++) {
            size_t *at = &l->param[info->params[i]];

            if (*at == ZB_NO_OFFSET) {
                *at = take(c, zb_stored_bytes(
                                  p, zb_param_elems(p, info->params[i])));
            }
        }
    }
}

/* A bucket holds the gradients of first uses; later ones have places of their
 * own, from which they are added. */
static void lay_grads(struct cursor *c, const struct zb_run_plan *p, int stage)
{
    struct zb_layout *l = c->l;

    begin(c, ZB_REGION_GRAD);
    for (int i = 0; i < l->buckets.n; i++) {
        struct zb_bucket *b = &l->buckets.bucket[i];

        if (b->owner != stage) {
            continue;
        }
        b->grad = take(c, reals(b->n));
        for (int k = 0; k < b->n_params; k++) {
            struct zb_param_info info = zb_graph_param(p->g, b->param[k]);

            l->grad[info.use_ids[0]] = b->grad + reals(b->first[k]);
        }
    }
    for (int k = 0; k < p->n_chunk; k++) {
        const struct zb_chunk_info *info = &p->info[zb_virt_of(p, stage, k)];

        for (int i = 0; i < info->n_uses; i++) {
            size_t *at = &l->grad[info->uses[i]];

            if (*at == ZB_NO_OFFSET) {
                *at = take(c, reals(zb_param_elems(
                                  p, p->use_param[info->uses[i]])));
            }
        }
    }
}

/* Moments, and masters. */
static void lay_state(struct cursor *c, const struct zb_run_plan *p)
{
    struct zb_layout *l = c->l;
    size_t n_state = zb_optim_state_reals(&p->o.optim);

    begin(c, ZB_REGION_OPTIM);
    for (int i = 0; i < l->buckets.n; i++) {
        struct zb_bucket *b = &l->buckets.bucket[i];
        int64_t n = p->o.zero_stage == 0 ? b->n : b->shard;

        if (n_state > 0) {
            b->m = take(c, reals(n));
        }
        if (n_state > 1) {
            b->v = take(c, reals(n));
        }
        if (p->storage != ZB_DTYPE_REAL) {
            b->master = take(c, reals(n));
        }
    }
}

static void lay_undo(struct cursor *c, const struct zb_run_plan *p)
{
    int64_t n_arrays = 1 + (int64_t)zb_optim_state_reals(&p->o.optim);

    begin(c, ZB_REGION_UNDO);
    for (int i = 0; zb_keeps_undo(p) && i < c->l->buckets.n; i++) {
        struct zb_bucket *b = &c->l->buckets.bucket[i];

        b->undo = take(c, reals(n_arrays * (p->o.zero_stage == 0 ? b->n
                                                                : b->shard)));
    }
}

static void lay_consts(struct cursor *c, const struct zb_run_plan *p)
{
    begin(c, ZB_REGION_CONST);
    for (int i = 0; i < p->n_consts; i++) {
        struct zb_data_info info = zb_graph_const(p->g, i);

        c->l->konst[i] = take(c, reals(zb_shape_elems(&info.shape)));
    }
}

/* Positions of a chunk's passes over one microbatch in the stage's stream. */
struct span {
    size_t pass[ZB_N_PASSES];
};

static void find_spans(const struct zb_run_plan *p,
                       const struct zb_stage_nodes *nodes, struct span *span)
{
    for (size_t i = 0; i < nodes->n; i++) {
        const struct zb_node *nd = &nodes->node[i];
        struct span *s = &span[nd->chunk * p->o.n_micro + nd->mb];

        switch (nd->type) {
        case ZB_NODE_F:
            s->pass[ZB_PASS_F] = i;
            break;
        case ZB_NODE_B:
            s->pass[ZB_PASS_B] = i;
            break;
        case ZB_NODE_W:
            s->pass[ZB_PASS_W] = i;
            break;
        case ZB_NODE_BW:
            s->pass[ZB_PASS_B] = s->pass[ZB_PASS_W] = i;
            break;
        default:
            break;
        }
    }
}

/* The blocks of activations: three kinds per chunk and microbatch. */
static enum zb_status lay_activations(struct cursor *c,
                                      const struct zb_run_plan *p, int stage)
{
    static const struct {
        enum zb_space space;
        enum zb_pass from, to;
    } kind[3] = {
        {ZB_SPACE_FB, ZB_PASS_F, ZB_PASS_B},
        {ZB_SPACE_FW, ZB_PASS_F, ZB_PASS_W},
        {ZB_SPACE_BW, ZB_PASS_B, ZB_PASS_W},
    };
    size_t *table[3] = {c->l->fb, c->l->fw, c->l->bw};
    size_t n_fly = (size_t)p->n_chunk * (size_t)p->o.n_micro;
    struct span *span = zb_alloc_array(n_fly, sizeof(*span));
    struct zb_block *block = zb_alloc_array(3 * n_fly, sizeof(*block));
    size_t bytes = 0, base;
    enum zb_status st = ZB_ENOMEM;

    if (span == NULL || block == NULL) {
        goto out;
    }
    find_spans(p, &p->sched->stages[stage], span);
    for (size_t i = 0; i < 3 * n_fly; i++) {
        size_t f = i / 3, k = i % 3;
        int chunk = (int)(f / (size_t)p->o.n_micro);

        block[i] = (struct zb_block){
            .first = span[f].pass[kind[k].from],
            .last = span[f].pass[kind[k].to],
            .bytes = p->info[zb_virt_of(p, stage, chunk)].bytes[kind[k].space],
        };
    }
    ZB_TRY_GOTO(st, zb_arena_pack(block, 3 * n_fly, &bytes), out);
    /* A forward-only pass keeps FB and FW side by side for one node. */
    for (int k = 0; k < p->n_chunk; k++) {
        const struct zb_chunk_info *info = &p->info[zb_virt_of(p, stage, k)];
        size_t need = info->bytes[ZB_SPACE_FB] + info->bytes[ZB_SPACE_FW];

        bytes = need > bytes ? need : bytes;
    }
    begin(c, ZB_REGION_ACT);
    base = take(c, bytes);
    for (size_t i = 0; i < 3 * n_fly; i++) {
        table[i % 3][i / 3] = base + block[i].offset;
    }
out:
    zb_free(block);
    zb_free(span);
    return st;
}

static void lay_scratch(struct cursor *c, const struct zb_run_plan *p,
                        int stage)
{
    size_t most = 0;

    for (int k = 0; k < p->n_chunk; k++) {
        size_t b = p->info[zb_virt_of(p, stage, k)].bytes[ZB_SPACE_SCRATCH];

        most = b > most ? b : most;
    }
    begin(c, ZB_REGION_SCRATCH);
    c->l->scratch = take(c, most);
}

/* The buffers that this stage gives to its channels: the sender's come first in
 * a pool. */
static void lay_messages(struct cursor *c, const struct zb_run_plan *p,
                         int stage)
{
    begin(c, ZB_REGION_MSG);
    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        int is_sender = stage == zb_stage_of(p, zb_channel_from(ch));
        int is_receiver = stage == zb_stage_of(p, zb_channel_to(ch));
        int n = (is_sender ? p->n_send_bufs[ch] : 0) +
                (is_receiver ? p->n_recv_bufs[ch] : 0);

        c->l->msg_first[ch] = is_sender ? 0 : p->n_send_bufs[ch];
        c->l->msg_n[ch] = n;
        if (n > 0) {
            c->l->msg[ch] = take(c, (size_t)n * zb_channel_bytes(p, ch));
        }
    }
}

/* Groups of one stream receive in the same place. */
static enum zb_status lay_rooms(struct cursor *c, const struct zb_run_plan *p,
                                int stage)
{
    struct zb_layout *l = c->l;

    begin(c, ZB_REGION_ROOM);
    if (!p->has_group_links) {
        return ZB_OK;
    }
    ZB_TRY(zb_find_coll_room(p, stage, &l->buckets, &l->room_bytes));
    l->room = take(c, l->room_bytes.room);
    l->side_room = take(c, l->room_bytes.side_room);
    return ZB_OK;
}

static void lay_batch(struct cursor *c, const struct zb_run_plan *p)
{
    begin(c, ZB_REGION_BATCH);
    for (int slot = 0; slot < c->l->n_slots; slot++) {
        for (int i = 0; i < p->n_data; i++) {
            struct zb_data_info info = zb_graph_data(p->g, i);
            struct zb_shape bound = zb_shape_bind(&info.shape, &p->max);

            c->l->field[slot * p->n_data + i] =
                take(c, (size_t)zb_shape_elems(&bound) *
                            zb_dtype_bytes(info.dtype));
        }
        c->l->sample[slot] =
            take(c, (size_t)p->max.value[ZB_SYM_BATCH] * sizeof(int64_t));
    }
}

static enum zb_status lay_all(struct zb_layout *l, const struct zb_run_plan *p,
                              int stage, int with_schedule)
{
    struct cursor c = {.l = l};

    l->n_slots = p->o.n_micro > p->n_chunk ? p->o.n_micro : p->n_chunk;
    ZB_TRY(alloc_tables(l, p));
    ZB_TRY(zb_buckets_init(&l->buckets, p, stage));
    lay_streams(&c, p);
    lay_values(&c, p, stage);
    lay_grads(&c, p, stage);
    lay_state(&c, p);
    lay_undo(&c, p);
    lay_consts(&c, p);
    if (with_schedule) {
        ZB_TRY(lay_activations(&c, p, stage));
    }
    lay_scratch(&c, p, stage);
    if (with_schedule) {
        lay_messages(&c, p, stage);
    }
    ZB_TRY(lay_rooms(&c, p, stage));
    lay_batch(&c, p);
    begin(&c, ZB_REGION_MISC);
    l->loss = take(&c, (size_t)(p->o.n_micro * zb_graph_n_losses(p->g)) *
                           sizeof(double));
    l->sumsq = take(&c, (size_t)zb_most_norms(p) * sizeof(double));
    return ZB_OK;
}

enum zb_status zb_layout_init(struct zb_layout *l, const struct zb_run_plan *p,
                              int stage)
{
    enum zb_status st;

    memset(l, 0, sizeof(*l));
    st = lay_all(l, p, stage, 1);
    if (st != ZB_OK) {
        zb_layout_release(l);
    }
    return st;
}

enum zb_status zb_layout_fixed_bytes(const struct zb_run_plan *p, int stage,
                                     size_t *bytes_out)
{
    struct zb_layout l = {0};
    enum zb_status st = lay_all(&l, p, stage, 0);

    if (st == ZB_OK) {
        *bytes_out = l.total;
    }
    zb_layout_release(&l);
    return st;
}
