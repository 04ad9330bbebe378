/* Functions of one number, written once for all kernels. They go by the hardware's power of two and
 * inverse, one instruction each and exact to 2 ulp: with the library's, kernels that are bound by
 * memory would wait for arithmetic. What is too small for a normal number is 0. */
#pragma once

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

__device__ static inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1/inf is 0. */
__device__ static inline float invert(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline float sigmoid(float x) {
    return invert(1.0f + power_of_two(-LOG2E * x));
}

/* gelu in its tanh form is x·σ(x (A + B x²)), A = 2√(2/π) and B that times 0.044715. */
constexpr float GELU_A = 1.5957691216057308f, GELU_B = 0.07135481627260025f;

__device__ static inline float gelu_value(float x) {
    return x * invert(1.0f + power_of_two(x * (-LOG2E * GELU_A - LOG2E * GELU_B * (x * x))));
}

/* σ(1 − σ) as σ²e^-2u: 1 − σ itself would lose its digits where x is large. Beyond ±10 the slope is
 * 0 or 1 to the last bit; within it e^-2u stays finite. */
__device__ static inline float gelu_slope(float at) {
    float x = fminf(10.0f, fmaxf(-10.0f, at)), x2 = x * x;
    float e = power_of_two(x * (-LOG2E * GELU_A - LOG2E * GELU_B * x2)), s = invert(1.0f + e);
    return s + (s * e * s) * (x * (GELU_A + 3 * GELU_B * x2));
}

/* log(1 + e^rho) = max(rho, 0) + log(1 + z), z = e^-|rho|, the logarithm as z times a polynomial of
 * least relative error (3.5e-7): the smallest z keeps its digits. */
__device__ static inline float softplus(float rho) {
    float z = power_of_two(fabsf(rho) * -LOG2E);
    float p = -0x1.17d018p-7f;
    p = fmaf(p, z, 0x1.692eb4p-5f);
    p = fmaf(p, z, -0x1.b91082p-4f);
    p = fmaf(p, z, 0x1.6b6c32p-3f);
    p = fmaf(p, z, -0x1.f5aac8p-3f);
    p = fmaf(p, z, 0x1.54bdacp-2f);
    p = fmaf(p, z, -0x1.fff932p-2f);
    p = fmaf(p, z, 0x1.fffffap-1f);
    return fmaf(p, z, fmaxf(rho, 0.0f));
}

/* softplus' slope where it is sigma: 1 − e^−sigma. Below 1/32, where that cancels, its series; within
 * 2e-6. */
__device__ static inline float slope_at(float sigma) {
    float series = sigma * fmaf(sigma, fmaf(sigma, 1.0f / 6, -0.5f), 1.0f);
    return sigma < 0.03125f ? series : 1.0f - power_of_two(sigma * -LOG2E);
}
