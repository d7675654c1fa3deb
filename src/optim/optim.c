/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/optim.h"

#include <math.h>

#define WSD_DECAY_PART 0.1 /* of all steps, at the end */
#define PI 3.14159265358979323846

/* How much of the steps from `begin` to `end` is done at `step`: 0..1. */
static double part_done(int64_t step, int64_t begin, int64_t end)
{
    double x = end > begin ? (double)(step - begin) / (double)(end - begin) : 1;

    return x < 0 ? 0 : x > 1 ? 1 : x;
}

static double lr_constant(const struct zb_lr *lr, int64_t step)
{
    (void)step;
    return lr->peak;
}

static double lr_cosine(const struct zb_lr *lr, int64_t step)
{
    double x = part_done(step, lr->warmup_steps, lr->steps);

    return lr->min + (lr->peak - lr->min) * 0.5 * (1 + cos(PI * x));
}

static double lr_linear(const struct zb_lr *lr, int64_t step)
{
    double x = part_done(step, lr->warmup_steps, lr->steps);

    return lr->peak + (lr->min - lr->peak) * x;
}

static double lr_wsd(const struct zb_lr *lr, int64_t step)
{
    int64_t n_decay = (int64_t)ceil(WSD_DECAY_PART * (double)lr->steps);
    double x = part_done(step, lr->steps - n_decay, lr->steps);

    return lr->peak + (lr->min - lr->peak) * x;
}

double zb_lr_at(const struct zb_lr *lr, int64_t step)
{
    static double (*const rule[])(const struct zb_lr *, int64_t) = {
        [ZB_LR_CONSTANT] = lr_constant,
        [ZB_LR_COSINE] = lr_cosine,
        [ZB_LR_LINEAR] = lr_linear,
        [ZB_LR_WSD] = lr_wsd,
    };

    if (step < lr->warmup_steps) {
        return lr->peak * (double)step / (double)lr->warmup_steps;
    }
    return rule[lr->kind](lr, step);
}

double zb_clip_scale(double norm, double max_norm)
{
    double scale = max_norm > 0 ? max_norm / (norm + 1e-6) : 1;

    return scale < 1 ? scale : 1;
}

size_t zb_optim_state_reals(const struct zb_optim *opt)
{
    if (opt->kind == ZB_OPTIM_ADAMW) {
        return 2;
    }
    return opt->momentum != 0 ? 1 : 0;
}

static enum zb_status adamw_step(const struct zb_optim *opt,
                                 const struct zb_backend_ops *ops,
                                 struct zb_stream *stream,
                                 const struct zb_optim_param *p, int64_t t,
                                 double lr, double grad_scale)
{
    struct zb_k_adamw k = {
        .n = p->n,
        .t = t,
        .lr = lr,
        .beta1 = opt->beta1,
        .beta2 = opt->beta2,
        .eps = opt->eps,
        .weight_decay = p->no_decay ? 0 : opt->weight_decay,
        .grad_scale = grad_scale,
        .grad = p->grad,
        .param = p->param,
        .m = p->m,
        .v = p->v,
        .dtype = p->dtype,
        .stored = p->stored,
    };
    struct zb_launch l = {
        .kernel = ZB_K_adamw, .label = p->name, .params = &k};

    zb_launch_reals(&l, p->grad, p->n, ZB_READ);
    zb_launch_reals(&l, p->param, p->n, ZB_READ_WRITE);
    zb_launch_reals(&l, p->m, p->n, ZB_READ_WRITE);
    zb_launch_reals(&l, p->v, p->n, ZB_READ_WRITE);
    zb_launch_elems(&l, p->dtype, p->stored, p->n, ZB_WRITE);
    return ops->launch(stream, &l);
}

static enum zb_status sgd_step(const struct zb_optim *opt,
                               const struct zb_backend_ops *ops,
                               struct zb_stream *stream,
                               const struct zb_optim_param *p, int64_t t,
                               double lr, double grad_scale)
{
    struct zb_k_sgd k = {
        .n = p->n,
        .t = t,
        .lr = lr,
        .momentum = opt->momentum,
        .weight_decay = p->no_decay ? 0 : opt->weight_decay,
        .grad_scale = grad_scale,
        .grad = p->grad,
        .param = p->param,
        .buf = p->m,
        .dtype = p->dtype,
        .stored = p->stored,
    };
    struct zb_launch l = {.kernel = ZB_K_sgd, .label = p->name, .params = &k};

    zb_launch_reals(&l, p->grad, p->n, ZB_READ);
    zb_launch_reals(&l, p->param, p->n, ZB_READ_WRITE);
    zb_launch_reals(&l, p->m, p->n, ZB_READ_WRITE);
    zb_launch_elems(&l, p->dtype, p->stored, p->n, ZB_WRITE);
    return ops->launch(stream, &l);
}

enum zb_status zb_optim_step(const struct zb_optim *opt,
                             const struct zb_backend_ops *ops,
                             struct zb_stream *stream,
                             const struct zb_optim_param *p, int64_t t,
                             double lr, double grad_scale)
{
    if (opt->kind == ZB_OPTIM_ADAMW) {
        return adamw_step(opt, ops, stream, p, t, lr, grad_scale);
    }
    return sgd_step(opt, ops, stream, p, t, lr, grad_scale);
}
