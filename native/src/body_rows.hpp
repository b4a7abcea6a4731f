// Part of kernels_body.hpp: what is done to each number of a row.
#pragma once
#include <cmath>

#include "body_vectors.hpp"

namespace foredraft {
namespace KERNELS_NAMESPACE {

// e^x by 2^n times a polynomial of what is left (n ln 2 taken off in two parts; Taylor to the seventh degree), within
// 2 ulp for x up to 88; 0 below -87.
ALWAYS_INLINE Vec exponential(Vec x) {
    const Vec shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number, held in the last bits
    Vec bounded = larger(all(-87.0f), x);
    bounded = bounded < all(88.0f) ? bounded : all(88.0f);
    const Vec turns = bounded * all(1.44269504f) + shift, whole = turns - shift;
    Vec r = bounded - whole * all(0.693359375f);
    r = r + whole * all(2.12194440e-4f);
    Vec p = r * all(1.0f / 5040) + all(1.0f / 720);
    p = p * r + all(1.0f / 120);
    p = p * r + all(1.0f / 24);
    p = p * r + all(1.0f / 6);
    p = p * r + all(0.5f);
    p = p * r + all(1.0f);
    p = p * r + all(1.0f);
    return choose(x < all(-87.0f), Vec{}, (Vec)((Ints)p + ((Ints)turns << 23)));
}

ALWAYS_INLINE Vec hyperbolic_tangent(Vec x) {
    Vec size = choose(x < Vec{}, -x, x);
    size = choose(size > all(10.0f), all(10.0f), size);
    Vec small = exponential(size * all(-2.0f));
    Vec value = (all(1.0f) - small) / (all(1.0f) + small);
    Vec cube = size * size * size;  // where the quotient cancels
    value = choose(size < all(0.02f), size - cube * all(1.0f / 3), value);
    return choose(x < Vec{}, -value, value);
}

template <Activation A> ALWAYS_INLINE Vec activated(Vec x) {
    if (A == Activation::silu) return x / (all(1.0f) + exponential(-x));
    if (A == Activation::gelu_tanh)
        return all(0.5f) * x * (all(1.0f) + hyperbolic_tangent(all(0.79788456f) * (x + all(0.044715f) * x * x * x)));
    Vec out;
    for (int i = 0; i < WIDTH; i++) out[i] = 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.70710678f));
    return out;
}

// ---------------------------------------------------------------------------------------------------- rows

// Body on each vector of a row; past its end it sees zeros.
template <class T, class Body> ALWAYS_INLINE void along(const T *x, int width, T *out, const Body &body) {
    int i = 0;
    for (; i + WIDTH <= width; i += WIDTH) narrow_to(out + i, body(wide(x + i), i));
    if (i < width) store_part(out + i, body(part(x, i, width), i), width - i);
}

template <class T> void norm(const T *x, const T *weight, const float *wide_weight, int width, float eps, T *out) {
    Vec squares[4] = {};
    int i = 0;
    for (; i + 4 * WIDTH <= width; i += 4 * WIDTH)
        for (int j = 0; j < 4; j++) {
            Vec v = wide(x + i + j * WIDTH);
            squares[j] += v * v;
        }
    for (; i < width; i += WIDTH) {
        Vec v = part(x, i, width);
        squares[0] += v * v;
    }
    const float sum = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3]));
    const Vec scale = all(1.0f / __builtin_sqrtf(sum / width + eps));
    if (wide_weight)
        along(x, width, out, [&](Vec v, int at) { return v * scale * part(wide_weight, at, width); });
    else
        along(x, width, out, [&](Vec v, int at) { return round_to(x, v * scale) * part(weight, at, width); });
}

template <class T>
void close(const float *sums, int rows, const T *bias, const T *residual, std::ptrdiff_t residual_stride, int columns,
           T *out, std::ptrdiff_t stride) {
    for (; rows > 0; rows--, sums += SUMS_APART, out += stride) {
        for (int i = 0; i < columns; i += WIDTH) {
            Vec v = load<Vec>(sums + i);
            if (bias) v = v + part(bias, i, columns);
            if (residual) v = part(residual, i, columns) + round_to(out, v);
            store_part(out + i, v, columns - i);
        }
        if (residual) residual += residual_stride;
    }
}

template <class T, Activation A>
void gate_with(const float *sums, int rows, int apart, int columns, T *out, std::ptrdiff_t stride) {
    for (; rows > 0; rows--, sums += SUMS_APART, out += stride)
        for (int i = 0; i < columns; i += WIDTH) {
            Vec gate = round_to(out, activated<A>(round_to(out, load<Vec>(sums + i))));
            Vec v = gate * round_to(out, load<Vec>(sums + apart + i));
            store_part(out + i, v, columns - i);
        }
}

template <class T>
void gate(const float *sums, int rows, int apart, int columns, Activation activation, T *out, std::ptrdiff_t stride) {
    const auto with = activation == Activation::silu   ? gate_with<T, Activation::silu>
                      : activation == Activation::gelu ? gate_with<T, Activation::gelu>
                                                       : gate_with<T, Activation::gelu_tanh>;
    with(sums, rows, apart, columns, out, stride);
}

template <class T> void activate(const T *x, int width, Activation activation, T *out) {
    if (activation == Activation::silu)
        along(x, width, out, [](Vec v, int) { return activated<Activation::silu>(v); });
    else if (activation == Activation::gelu)
        along(x, width, out, [](Vec v, int) { return activated<Activation::gelu>(v); });
    else
        along(x, width, out, [](Vec v, int) { return activated<Activation::gelu_tanh>(v); });
}

// Halves change places and the first takes the sign, each product rounded as transformers' modules do it.
template <class T> void rotate(T *x, const float *cos, const float *sin, int size) {
    const int half = size / 2;
    int i = 0;
    for (; i + WIDTH <= half; i += WIDTH) {
        Vec low = wide(x + i), high = wide(x + half + i), c = load<Vec>(cos + i), s = load<Vec>(sin + i);
        narrow_to(x + i, round_to(x, low * c) + round_to(x, -high * s));
        narrow_to(x + half + i, round_to(x, high * c) + round_to(x, low * s));
    }
    for (; i < half; i++) {
        float low = widened(x[i]), high = widened(x[half + i]);
        float a = rounded<T>(low * cos[i]), b = rounded<T>(-high * sin[i]);
        float c = rounded<T>(high * cos[i]), d = rounded<T>(low * sin[i]);
        x[i] = narrow<T>(a + b);
        x[half + i] = narrow<T>(c + d);
    }
}

template <class T> void add(const T *a, const T *b, int width, T *out) {
    along(a, width, out, [&](Vec v, int at) { return v + part(b, at, width); });
}

template <class T> void scale(const T *a, float factor, int width, T *out) {
    along(a, width, out, [&](Vec v, int) { return v * all(factor); });
}

template <class T> void squeeze(const T *a, float factor, float softcap, int width, T *out) {
    along(a, width, out, [&](Vec v, int) {
        v = round_to(a, v * all(factor));
        if (softcap == 0) return v;
        v = round_to(a, v / all(softcap));
        return round_to(a, hyperbolic_tangent(v)) * all(softcap);
    });
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
