/* SPDX-License-Identifier: MIT
 *
 * Elementary functions that vectorise: no branch, no call, no table. In the
 * float build polynomials with an error of about 1 to 2 units in the last
 * place; in the double build the C library's functions.
 *
 * The coefficients minimise the largest relative error on the reduced interval
 * (Lawson's iteration on Chebyshev nodes, in 40 digits).
 */
#ifndef ZB_KERN_FMATH_H
#define ZB_KERN_FMATH_H

#include "kern/kern.h"

#ifdef ZB_REAL_IS_DOUBLE

ZB_KERN_FN double zb_exp(double x)
{
    return exp(x);
}

ZB_KERN_FN double zb_log(double x)
{
    return log(x);
}

ZB_KERN_FN double zb_erf(double x)
{
    return erf(x);
}

ZB_KERN_FN double zb_tanh(double x)
{
    return tanh(x);
}

/* Sine and cosine of 2 pi u, for u in [0, 1]. */
ZB_KERN_FN void zb_sincos_turn(double u, double *sin_out, double *cos_out)
{
    *sin_out = sin(6.283185307179586476925 * u);
    *cos_out = cos(6.283185307179586476925 * u);
}

ZB_KERN_FN double zb_sqrt(double x)
{
    return sqrt(x);
}

#else

/* exp(x) = 2^n exp(r), r = x - n ln 2. Adding 1.5 * 2^23 rounds to the nearest
 * integer and leaves it in the low bits. As 2^128 is not a float, the power is
 * 2^(n-1) times 2; so below 2^-125.5, where that ends, the result is 0. */
ZB_KERN_FN float zb_exp(float x)
{
    const float shift = 12582912.0f;
    float c = x > 89.0f ? 89.0f : x;
    float t = c * 1.44269504f + shift;
    float n = t - shift;
    float r = c - n * 0.693145752f;
    uint32_t power = zb_bits_of_float(t) << 23;
    float p;

    r = r - n * 1.42860677e-6f;
    p = 0.008369598665f + r * 0.001395171466f;
    p = 0.04166618732f + r * p;
    p = 0.1666651289f + r * p;
    p = 0.5f + r * p;
    p = 1.0f + (r + r * r * p);
    p = p * zb_float_of_bits(power + 0x3f000000u) * 2.0f;
    return x < -86.98f ? 0.0f : p;
}

/* log(x), for normal x > 0: x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2);
 * log(1 + f) = 2 atanh(s), s = f / (2 + f). */
ZB_KERN_FN float zb_log(float x)
{
    uint32_t bits = zb_bits_of_float(x) - 0x3f3504f3u;
    float n = (float)((int32_t)bits >> 23);
    float f = zb_float_of_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float s = f / (2.0f + f);
    float z = s * s;
    float p = 0.2853727775f + z * 0.2358277165f;

    p = 0.4000033564f + z * p;
    p = 0.6666666564f + z * p;
    /* 2 s = f - s f, without the rounding error of s doubled. */
    p = f - s * (f - z * p);
    return n * 0.693145752f + (p + n * 1.42860677e-6f);
}

/* x P(x^2) below 1; above, 1 - exp(-Q(|x|)). */
ZB_KERN_FN float zb_erf(float x)
{
    float a = x < 0.0f ? -x : x;
    float z = x * x;
    float c = a > 4.0f ? 4.0f : a;
    float p, q;

    p = -0.0008020839946f + z * 7.889115075e-5f;
    p = 0.00518953519f + z * p;
    p = -0.02685444451f + z * p;
    p = 0.1128360017f + z * p;
    p = -0.3761262714f + z * p;
    p = x * (1.128379166f + z * p);
    q = 0.002964025134f - c * 0.0001879736978f;
    q = -0.02190654973f + c * q;
    q = 0.103256351f + c * q;
    q = 0.6379648336f + c * q;
    q = 1.127202373f + c * q;
    q = 0.000312446935f + c * q;
    q = 1.0f - zb_exp(-q);
    q = x < 0.0f ? -q : q;
    return a < 1.0f ? p : q;
}

/* Below 1/2 Lambert's continued fraction x / (1 + z / (3 + z / (5 + z / (7 + z /
 * 9)))), z = x^2, as one quotient; above, 1 - 2 / (exp(2 |x|) + 1). */
ZB_KERN_FN float zb_tanh(float x)
{
    float a = x < 0.0f ? -x : x;
    float z = x * x;
    float p = 945.0f + z * (105.0f + z);
    float q = 945.0f + z * (420.0f + z * 15.0f);
    float t = 1.0f - 2.0f / (zb_exp(2.0f * a) + 1.0f);

    t = x < 0.0f ? -t : t;
    return a < 0.5f ? x * p / q : t;
}

/* u = q / 4 + r with |r| <= 1/8; a quarter turn swaps sine and cosine. */
ZB_KERN_FN void zb_sincos_turn(float u, float *sin_out, float *cos_out)
{
    int32_t q = (int32_t)(4.0f * u + 0.5f);
    float r = u - 0.25f * (float)q;
    float z = r * r;
    float s, c, t;

    s = 81.59255353f - z * 75.40206764f;
    s = -41.34166263f + z * s;
    s = r * (6.283185307f + z * s);
    c = -85.44285212f + z * 59.22040716f;
    c = 64.93931621f + z * c;
    c = 1.0f + z * (-19.73920865f + z * c);
    t = q & 1 ? c : s;
    c = q & 1 ? s : c;
    *sin_out = q & 2 ? -t : t;
    *cos_out = (q + 1) & 2 ? -c : c;
}

#if defined(__CUDACC__)
ZB_KERN_FN float zb_sqrt(float x)
{
    return sqrtf(x);
}
#else
ZB_KERN_FN float zb_sqrt(float x)
{
    return __builtin_sqrtf(x);
}
#endif

#endif

ZB_KERN_FN zb_real zb_sigmoid(zb_real x)
{
    return ZB_R(1) / (ZB_R(1) + zb_exp(-x));
}

#endif
