// The product of a normed input: y[row_offset + o] = r sum_k W[o, k] norm[k] x[k], where x is the
// step's last row and r = 1 / sqrt(mean_k(x[k]^2) + eps). The factor r is taken out of the sum, so
// that the squares are summed up in the same pass over x.

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> x: array<vec4f>;
@group(0) @binding(3) var<storage, read> norm: array<vec4f>;
@group(0) @binding(4) var<storage, read> quants: array<u32>;
@group(0) @binding(5) var<storage, read> scales: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

const NORM = true;

fn input(quad: u32) -> vec4f {
    return x[(state.n_tokens - 1u) * (params.cols / 4u) + quad];
}

fn gain(quad: u32) -> vec4f {
    return norm[quad];
}

fn norm_factor() -> f32 {
    return 1.0 / sqrt(total_square() / f32(params.cols) + params.eps);
}
