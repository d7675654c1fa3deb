/* SPDX-License-Identifier: MIT
 *
 * Activation functions and their derivatives, one element each.
 */
#ifndef ZB_KERN_ACT_H
#define ZB_KERN_ACT_H

#include "kern/fmath.h"

ZB_KERN_FN zb_real zb_relu(zb_real x)
{
    return x > ZB_R(0) ? x : ZB_R(0);
}

ZB_KERN_FN zb_real zb_relu_d(zb_real x)
{
    return x > ZB_R(0) ? ZB_R(1) : ZB_R(0);
}

ZB_KERN_FN zb_real zb_silu(zb_real x)
{
    return x * zb_sigmoid(x);
}

ZB_KERN_FN zb_real zb_silu_d(zb_real x)
{
    zb_real s = zb_sigmoid(x);

    return s * (ZB_R(1) + x * (ZB_R(1) - s));
}

/* 2 sqrt(2 / pi): as (1 + tanh u) / 2 = sigmoid(2 u), the tanh form of GELU is
 * x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)). */
#define ZB_GELU_C ZB_R(1.595769121605730711759)

ZB_KERN_FN zb_real zb_gelu_tanh(zb_real x)
{
    zb_real u = ZB_GELU_C * x * (ZB_R(1) + ZB_R(0.044715) * x * x);

    return x * zb_sigmoid(u);
}

ZB_KERN_FN zb_real zb_gelu_tanh_d(zb_real x)
{
    zb_real u = ZB_GELU_C * x * (ZB_R(1) + ZB_R(0.044715) * x * x);
    zb_real du = ZB_GELU_C * (ZB_R(1) + ZB_R(0.134145) * x * x);
    zb_real s = zb_sigmoid(u);

    return s + x * s * (ZB_R(1) - s) * du;
}

/* x times the normal distribution function. */
ZB_KERN_FN zb_real zb_normal_cdf(zb_real x)
{
    return ZB_R(0.5) * (ZB_R(1) + zb_erf(x * ZB_R(0.70710678118654752440)));
}

ZB_KERN_FN zb_real zb_gelu_erf(zb_real x)
{
    return x * zb_normal_cdf(x);
}

ZB_KERN_FN zb_real zb_gelu_erf_d(zb_real x)
{
    zb_real pdf = ZB_R(0.39894228040143267794) * zb_exp(ZB_R(-0.5) * x * x);

    return zb_normal_cdf(x) + x * pdf;
}

ZB_KERN_FN zb_real zb_tanh_d(zb_real x)
{
    zb_real y = zb_tanh(x);

    return ZB_R(1) - y * y;
}

/* Run LOOP(function, derivative) for the activation, an enum zb_act of
 * zb/kernel.h. */
#define ZB_FOR_ACT(act, LOOP)                                                  \
    switch (act) {                                                             \
    case ZB_ACT_RELU:                                                          \
        LOOP(zb_relu, zb_relu_d)                                               \
        break;                                                                 \
    case ZB_ACT_SILU:                                                          \
        LOOP(zb_silu, zb_silu_d)                                               \
        break;                                                                 \
    case ZB_ACT_GELU_TANH:                                                     \
        LOOP(zb_gelu_tanh, zb_gelu_tanh_d)                                     \
        break;                                                                 \
    case ZB_ACT_GELU_ERF:                                                      \
        LOOP(zb_gelu_erf, zb_gelu_erf_d)                                       \
        break;                                                                 \
    case ZB_ACT_TANH:                                                          \
        LOOP(zb_tanh, zb_tanh_d)                                               \
        break;                                                                 \
    }

#endif
