// The kernels themselves, compiled once for each instruction set. The file that includes this defines
//   KERNELS_NAMESPACE  a namespace of its own, so that no ALWAYS_INLINE function is shared between instruction sets,
//   WIDTH              floats of a vector,
//   ROWS               most rows of a register block with one panel, and
//   PAIRS              1 where the machine multiplies pairs of bf16.
// A sum runs over its inputs one after another in one accumulator for each output, so that how many rows and columns a
// register block has never shows in a result.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels.hpp"
#if WIDTH == 16
#include <immintrin.h>
#endif

namespace foredraft {
namespace KERNELS_NAMESPACE {

typedef float Vec __attribute__((vector_size(WIDTH * 4)));
typedef std::uint32_t Bits __attribute__((vector_size(WIDTH * 4)));
typedef std::int32_t Ints __attribute__((vector_size(WIDTH * 4)));

const int VECS = PANEL / WIDTH;  // vectors of a panel

template <class To, class From> ALWAYS_INLINE To load(const From *p) {
    To v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class V, class To> ALWAYS_INLINE void store(To *p, V v) { std::memcpy(p, &v, sizeof v); }
ALWAYS_INLINE Vec all(float x) { return Vec{} + x; }
ALWAYS_INLINE Vec choose(Ints mask, Vec yes, Vec no) { return mask ? yes : no; }
ALWAYS_INLINE Vec larger(Vec a, Vec b) { return choose(a > b, a, b); }

ALWAYS_INLINE Vec wide(const float *p) { return load<Vec>(p); }
ALWAYS_INLINE Vec wide(const bf16 *p) {
#if WIDTH == 16  // which GCC 12 does in two halves
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(p)), 16);
#else
    typedef std::uint16_t Half __attribute__((vector_size(WIDTH * 2)));
    return (Vec)(__builtin_convertvector(load<Half>(p), Bits) << 16);
#endif
}
ALWAYS_INLINE void narrow_to(float *p, Vec v) { store(p, v); }
ALWAYS_INLINE void narrow_to(bf16 *p, Vec v) {
    typedef std::uint16_t Half __attribute__((vector_size(WIDTH * 2)));
    Bits bits = (Bits)v;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bits = (Bits)choose(v == v, (Vec)bits, (Vec)(Bits{} + 0x7fc0));
    store(p, __builtin_convertvector(bits, Half));
}
ALWAYS_INLINE Vec round_to(const float *, Vec v) { return v; }
ALWAYS_INLINE Vec round_to(const bf16 *, Vec v) {
    Bits bits = (Bits)v;
    Bits up = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    return choose(v == v, (Vec)up, v);
}

ALWAYS_INLINE float sum_of(Vec v) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += v[i];
    return sum;
}

// ---------------------------------------------------------------------------------------------------- products

// One input of a row against a vector of weights. bf16 comes in pairs: two inputs, the first in the lower half.
ALWAYS_INLINE void multiply(Vec &sum, const float *a, const float *b) { sum += all(*a) * load<Vec>(b); }

#if PAIRS
ALWAYS_INLINE Vec dot_pairs(Vec sum, std::uint32_t a, Bits b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
}
#else
ALWAYS_INLINE Vec dot_pairs(Vec sum, std::uint32_t a, Bits b) {
    float low, high;
    std::uint32_t low_bits = a << 16, high_bits = a & 0xffff0000u;
    std::memcpy(&low, &low_bits, 4);
    std::memcpy(&high, &high_bits, 4);
    sum += all(low) * (Vec)(b << 16);
    sum += all(high) * (Vec)(b & 0xffff0000u);
    return sum;
}
#endif

// How many numbers of a type one step of a product takes from each input row.
template <class T> struct Step;
template <> struct Step<float> {
    static const int inputs = 1;
    typedef Vec Weight;
    static Vec times(Vec sum, const float *a, Vec b) { return sum + all(*a) * b; }
};
template <> struct Step<bf16> {
    static const int inputs = 2;
    typedef Bits Weight;
    static Vec times(Vec sum, const bf16 *a, Bits b) {
        std::uint32_t pair;
        std::memcpy(&pair, a, 4);
        return dot_pairs(sum, pair, b);
    }
};

// What to ask the memory for while a block is computed: `lines` cache lines a step from `from` on.
struct Ahead {
    const char *from;
    int lines;
};

// A block of R rows and P of a group's panels; it goes on from the sums in `out` where `more`.
template <class T, int R, int P>
void block(const T *a, std::ptrdiff_t stride, int steps, std::ptrdiff_t apart, const T *group, float *out, bool more,
           Ahead ahead) {
    const int columns = P * VECS;
    Vec sums[R][columns];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) sums[r][c] = more ? load<Vec>(out + r * 64 + c * WIDTH) : Vec{};
    for (int step = 0; step < steps; step++) {
        for (int line = 0; line < ahead.lines; line++, ahead.from += 64) __builtin_prefetch(ahead.from, 0, 3);
        typename Step<T>::Weight weight[columns];
#pragma GCC unroll 16
        for (int c = 0; c < columns; c++)
            weight[c] = load<typename Step<T>::Weight>((const char *)group + c * sizeof(Vec));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 16
            for (int c = 0; c < columns; c++)
                sums[r][c] = Step<T>::times(sums[r][c], a + r * stride, weight[c]);
        a += Step<T>::inputs;
        group += apart;
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) store(out + r * 64 + c * WIDTH, sums[r][c]);
}

template <class T, int P> struct Blocks {
    typedef void (*Block)(const T *, std::ptrdiff_t, int, std::ptrdiff_t, const T *, float *, bool, Ahead);
    static const int room = ROWS / P, most = room > 8 ? 8 : room;
    static Block of(int rows) {
        static constexpr Block blocks[] = {
            block<T, 1, P>,
            block<T, (most > 1 ? 2 : 1), P>,
            block<T, (most > 2 ? 3 : 1), P>,
            block<T, (most > 3 ? 4 : 1), P>,
            block<T, (most > 4 ? 5 : 1), P>,
            block<T, (most > 5 ? 6 : 1), P>,
            block<T, (most > 6 ? 7 : 1), P>,
            block<T, (most > 7 ? 8 : 1), P>,
        };
        return blocks[rows - 1];
    }
};

const int PART_BYTES = 16384;  // of a group: what all blocks of rows read before the next part
const int NEAR = 2048;        // bytes ahead of a single block

// All rows against P panels, as even blocks. Several blocks take a group part by part, so that the weights come from the
// memory while all of them are computing, and not only while the first one is.
template <class T, int P>
void rows_product(const T *a, std::ptrdiff_t stride, int rows, int steps, std::ptrdiff_t apart, const T *group,
                  float *out) {
    const int blocks = (rows + Blocks<T, P>::most - 1) / Blocks<T, P>::most;
    const int width = int(apart * sizeof(T)), lines = width / 64;
    if (blocks == 1) {
        Blocks<T, P>::of(rows)(a, stride, steps, apart, group, out, false, {(const char *)group + NEAR, lines});
        return;
    }
    const int most = PART_BYTES / width;
    for (int start = 0; start < steps; start += most) {
        const int part = steps - start < most ? steps - start : most, share = (lines + blocks - 1) / blocks;
        const char *next = (const char *)(group + part * apart);
        int row = 0;
        for (int left = blocks; left > 0; left--) {
            const int height = (rows - row + left - 1) / left;
            Blocks<T, P>::of(height)(a + row * stride, stride, part, apart, group, out + row * 64, start > 0, {next, share});
            next += share * part * 64;
            row += height;
        }
        a += part * Step<T>::inputs;
        group += part * apart;
    }
}

template <class T>
void group_product(const T *a, std::ptrdiff_t stride, int rows, int steps, int panels, const T *group, float *out) {
    const std::ptrdiff_t apart = std::ptrdiff_t(panels) * PANEL * Step<T>::inputs;
    const int joined = ROWS >= 16 ? panels : 1;  // panels of a register block
    if (joined == 4) return rows_product<T, ROWS >= 16 ? 4 : 1>(a, stride, rows, steps, apart, group, out);
    if (joined == 2) return rows_product<T, ROWS >= 16 ? 2 : 1>(a, stride, rows, steps, apart, group, out);
    for (int panel = 0; panel < panels; panel++)
        rows_product<T, 1>(a, stride, rows, steps, apart, group + panel * PANEL * Step<T>::inputs, out + panel * PANEL);
}

template <class T>
void product(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const T *group, float *out) {
    group_product(a, stride, rows, inputs / Step<T>::inputs, panels, group, out);
}

// 64 inputs of an int8 group as the program's type, in the order `group_product` reads.
ALWAYS_INLINE void widen_int8(const std::int8_t *from, int count, bf16 *to) {
    for (int i = 0; i < count; i++) to[i] = narrowed(float(from[i]));
}
ALWAYS_INLINE void widen_int8(const std::int8_t *from, int count, float *to) {
    for (int i = 0; i < count; i++) to[i] = float(from[i]);
}

template <class T>
void product_int8(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const void *group, float *out) {
    alignas(64) T weights[INT8_GROUP * PANEL * MOST_PANELS];
    alignas(64) float part[64 * 64];
    const int columns = panels * PANEL;
    const char *from = static_cast<const char *>(group);
    for (int r = 0; r < rows; r++) std::memset(out + r * 64, 0, columns * sizeof(float));
    for (int start = 0; start < inputs; start += INT8_GROUP) {
        const float *scales = reinterpret_cast<const float *>(from);
        from += columns * sizeof(float);
        widen_int8(reinterpret_cast<const std::int8_t *>(from), INT8_GROUP * columns, weights);
        from += INT8_GROUP * columns;
        group_product(a + start, stride, rows, INT8_GROUP / Step<T>::inputs, panels, weights, part);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c += WIDTH)
                store(out + r * 64 + c, load<Vec>(out + r * 64 + c) + load<Vec>(scales + c) * load<Vec>(part + r * 64 + c));
    }
}

// ---------------------------------------------------------------------------------------------------- elementary functions

// e^x by 2^n times a polynomial of what is left (n ln 2 taken off in two parts; Taylor to the seventh degree), within 2 ulp
// for x up to 88; 0 below -87.
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
    for (int i = 0; i < WIDTH; i++) out[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
    return out;
}

// ---------------------------------------------------------------------------------------------------- rows

// Body on whole vectors of a row, and on a padded copy of what is left.
template <class T, class Body> ALWAYS_INLINE void along(const T *x, int width, T *out, const Body &body) {
    int i = 0;
    for (; i + WIDTH <= width; i += WIDTH) narrow_to(out + i, body(wide(x + i), i));
    if (i == width) return;
    alignas(64) T rest[WIDTH] = {};
    std::memcpy(rest, x + i, (width - i) * sizeof(T));
    narrow_to(rest, body(wide(rest), i));
    std::memcpy(out + i, rest, (width - i) * sizeof(T));
}

// A vector of a row of `width` numbers, zero past its end.
template <class T> ALWAYS_INLINE Vec part(const T *x, int i, int width) {
    if (i + WIDTH <= width) return wide(x + i);
    alignas(64) T rest[WIDTH] = {};
    std::memcpy(rest, x + i, (width - i) * sizeof(T));
    return wide(rest);
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
    Vec scale = all(1.0f / std::sqrt(sum_of((squares[0] + squares[1]) + (squares[2] + squares[3])) / width + eps));
    if (wide_weight)
        along(x, width, out, [&](Vec v, int at) { return v * scale * part(wide_weight, at, width); });
    else
        along(x, width, out, [&](Vec v, int at) { return round_to(x, v * scale) * part(weight, at, width); });
}

template <class T> void close(const float *sums, const T *bias, const T *residual, int columns, T *out) {
    for (int i = 0; i < columns; i += WIDTH) {
        Vec v = load<Vec>(sums + i);
        if (bias) v = v + part(bias, i, columns);
        if (residual) v = part(residual, i, columns) + round_to(out, v);
        if (i + WIDTH <= columns) {
            narrow_to(out + i, v);
        } else {
            alignas(64) T rest[WIDTH];
            narrow_to(rest, v);
            std::memcpy(out + i, rest, (columns - i) * sizeof(T));
        }
    }
}

template <class T, Activation A> void gate_with(const float *sums, int apart, int columns, T *out) {
    for (int i = 0; i < columns; i += WIDTH) {
        Vec gate = round_to(out, activated<A>(round_to(out, load<Vec>(sums + i))));
        Vec v = gate * round_to(out, load<Vec>(sums + apart + i));
        if (i + WIDTH <= columns) {
            narrow_to(out + i, v);
        } else {
            alignas(64) T rest[WIDTH];
            narrow_to(rest, v);
            std::memcpy(out + i, rest, (columns - i) * sizeof(T));
        }
    }
}

template <class T> void gate(const float *sums, int apart, int columns, Activation activation, T *out) {
    if (activation == Activation::silu) gate_with<T, Activation::silu>(sums, apart, columns, out);
    else if (activation == Activation::gelu) gate_with<T, Activation::gelu>(sums, apart, columns, out);
    else gate_with<T, Activation::gelu_tanh>(sums, apart, columns, out);
}

template <class T> void activate(const T *x, int width, Activation activation, T *out) {
    if (activation == Activation::silu) along(x, width, out, [](Vec v, int) { return activated<Activation::silu>(v); });
    else if (activation == Activation::gelu) along(x, width, out, [](Vec v, int) { return activated<Activation::gelu>(v); });
    else along(x, width, out, [](Vec v, int) { return activated<Activation::gelu_tanh>(v); });
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

// ---------------------------------------------------------------------------------------------------- attention

// R keys against all lanes.
template <class T, int R> void score_block(const T *const *keys, int steps, const T *queries, float *out) {
    Vec sums[R][VECS] = {};
    for (int step = 0; step < steps; step++) {
        typename Step<T>::Weight query[VECS];
#pragma GCC unroll 4
        for (int c = 0; c < VECS; c++)
            query[c] = load<typename Step<T>::Weight>((const char *)queries + c * sizeof(Vec));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int c = 0; c < VECS; c++)
                sums[r][c] = Step<T>::times(sums[r][c], keys[r] + step * Step<T>::inputs, query[c]);
        queries += LANES * Step<T>::inputs;
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < VECS; c++) store(out + r * LANES + c * WIDTH, sums[r][c]);
}

const int KEY_ROWS = WIDTH == 16 ? 12 : WIDTH == 8 ? 6 : 2;  // keys of a register block
const int ROWS_AHEAD = 48;  // keys or values asked for before they are needed: they lie far apart

// Ask the memory for rows `from` to `stop`.
template <class T> ALWAYS_INLINE void ask(const SlotRows<T> &rows, std::int64_t from, std::int64_t stop, int size) {
    for (; from < stop; from++) {
        const char *row = (const char *)rows.row(from);
        for (std::size_t byte = 0; byte < size * sizeof(T); byte += 64) __builtin_prefetch(row + byte, 0, 3);
    }
}

ALWAYS_INLINE std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <class T>
void scores(SlotRows<T> keys, std::int64_t start, std::int64_t count, int size, const T *queries, float *out) {
    const int steps = size / Step<T>::inputs;
    const std::int64_t stop = start + count;
    const T *rows[KEY_ROWS];
    std::int64_t i = 0;
    ask(keys, start, lesser(stop, start + ROWS_AHEAD), size);
    for (; i + KEY_ROWS <= count; i += KEY_ROWS) {
        ask(keys, lesser(stop, start + i + ROWS_AHEAD), lesser(stop, start + i + ROWS_AHEAD + KEY_ROWS), size);
        for (int r = 0; r < KEY_ROWS; r++) rows[r] = keys.row(start + i + r);
        score_block<T, KEY_ROWS>(rows, steps, queries, out + i * LANES);
    }
    for (; i < count; i++) {
        rows[0] = keys.row(start + i);
        score_block<T, 1>(rows, steps, queries, out + i * LANES);
    }
}

// Minus infinity where a lane does not see a key.
ALWAYS_INLINE Vec masked(Vec score, std::int64_t key, int lane, const Sight &sight) {
    Ints seen;
    if (key < sight.context) {
        if (key >= sight.most_from) return score;
        for (int i = 0; i < WIDTH; i++) seen[i] = key >= sight.from[lane + i] ? -1 : 0;
    } else {
        unsigned bits = unsigned(sight.own[key - sight.context]) >> lane;
        for (int i = 0; i < WIDTH; i++) seen[i] = (bits >> i) & 1 ? -1 : 0;
    }
    return choose(seen, score, all(-std::numeric_limits<float>::infinity()));
}

void weights(float *scores, std::int64_t start, std::int64_t count, float scale, float softcap, const Sight &sight,
             float *sums) {
    for (int c = 0; c < VECS; c++) {
        float *column = scores + c * WIDTH;
        Vec most = all(-std::numeric_limits<float>::infinity());
        for (std::int64_t i = 0; i < count; i++) {
            Vec score = load<Vec>(column + i * LANES) * all(scale);
            if (softcap != 0) score = hyperbolic_tangent(score / all(softcap)) * all(softcap);
            score = masked(score, start + i, c * WIDTH, sight);
            most = larger(score, most);
            store(column + i * LANES, score);
        }
        most = larger(most, all(-std::numeric_limits<float>::max()));  // of a lane that nobody uses
        Vec sum{};
        for (std::int64_t i = 0; i < count; i++) {
            Vec weight = exponential(load<Vec>(column + i * LANES) - most);
            sum += weight;
            store(column + i * LANES, weight);
        }
        store(sums + c * WIDTH, sum);
    }
}

// L lanes and C vectors of values, from `column` on; the last vector may be cut short.
template <class T, int L, int C, bool Cut>
void mix_block(const float *weights, std::int64_t start, std::int64_t count, SlotRows<T> values, int column, int size,
               const float *sums, T *const *out) {
    Vec total[L][C] = {};
    for (std::int64_t i = 0; i < count; i++) {
        const T *value = values.row(start + i);
        if (i + ROWS_AHEAD < count) {
            const char *later = (const char *)(values.row(start + i + ROWS_AHEAD) + column);
            for (int line = 0; line * 64 < C * WIDTH * int(sizeof(T)); line++) __builtin_prefetch(later + line * 64, 0, 3);
        }
        Vec numbers[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++)
            numbers[c] = Cut ? part(value, column + c * WIDTH, size) : wide(value + column + c * WIDTH);
#pragma GCC unroll 8
        for (int lane = 0; lane < L; lane++)
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) total[lane][c] += all(weights[i * LANES + lane]) * numbers[c];
    }
    for (int lane = 0; lane < L; lane++)
        for (int c = 0; c < C; c++) {
            alignas(64) T rest[WIDTH];
            narrow_to(rest, total[lane][c] / all(sums[lane]));
            const int here = Cut ? size - column - c * WIDTH : WIDTH;
            std::memcpy(out[lane] + column + c * WIDTH, rest, here * sizeof(T));
        }
}

template <class T, int C, bool Cut>
void mix_lanes(const float *weights, std::int64_t start, std::int64_t count, SlotRows<T> values, int column, int size,
               int lanes, const float *sums, T *const *out) {
    const int most = WIDTH == 16 ? 6 : 2;  // lanes of a register block
    for (int done; lanes > 0; lanes -= done, weights += done, sums += done, out += done) {
        done = lanes >= 6 && most >= 6 ? 6 : lanes >= 4 && most >= 4 ? 4 : lanes >= 2 ? 2 : 1;
        if (done == 6) mix_block<T, most, C, Cut>(weights, start, count, values, column, size, sums, out);
        else if (done == 4) mix_block<T, (most >= 4 ? 4 : 1), C, Cut>(weights, start, count, values, column, size, sums, out);
        else if (done == 2) mix_block<T, 2, C, Cut>(weights, start, count, values, column, size, sums, out);
        else mix_block<T, 1, C, Cut>(weights, start, count, values, column, size, sums, out);
    }
}

template <class T>
void mix(const float *weights, std::int64_t start, std::int64_t count, SlotRows<T> values, int size, int lanes,
         const float *sums, T *const *out) {
    int column = 0;
    for (; column + 4 * WIDTH <= size; column += 4 * WIDTH)
        mix_lanes<T, 4, false>(weights, start, count, values, column, size, lanes, sums, out);
    for (; column + WIDTH <= size; column += WIDTH)
        mix_lanes<T, 1, false>(weights, start, count, values, column, size, lanes, sums, out);
    if (column < size) mix_lanes<T, 1, true>(weights, start, count, values, column, size, lanes, sums, out);
}

// Constants, so that nothing of an instruction set runs while the library is loaded.
template <class T> constexpr Kernels<T> kernels() {
    return {product<T>,  product_int8<T>, scores<T>, weights,   mix<T>, norm<T>, close<T>,
            gate<T>,     activate<T>,     rotate<T>, add<T>,    scale<T>, squeeze<T>};
}

constexpr Kernels<bf16> narrow_kernels = kernels<bf16>();
constexpr Kernels<float> wide_kernels = kernels<float>();

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
