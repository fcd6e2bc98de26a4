// The product alone: y[row_offset + o] (+)= sum_k W[o, k] x[k].

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> x: array<vec4f>;
@group(0) @binding(3) var<storage, read> quants: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

const NORM = false;
const SUMS_PER_OUTPUT = 1u;

fn matrix_row(sum: u32) -> u32 {
    return sum;
}

fn input(quad: u32) -> vec4f {
    return x[quad];
}

fn gain(quad: u32) -> vec4f {
    return vec4f(1.0);
}

// Stores output `i` of a workgroup whose first sum is `first`.
fn store(first: u32, i: u32) {
    let o = first + i;
    if (o >= params.rows) {
        return;
    }
    let at = params.row_offset + o;
    if (params.accumulate != 0u) {
        y[at] += total(i);
    } else {
        y[at] = total(i);
    }
}
