// Causal depthwise convolution over tokens, then SiLU; the state becomes the last inputs:
//     y[t, c] = SiLU(sum_j weight[c, j] * win[t + j, c]),   win = conv_state rows, then u rows
// One invocation per channel walks the tokens with the last three inputs in registers. Nobody
// else touches its column of the state, which can therefore be replaced in place.

struct Params {
    channels: u32,
    rows: u32,
    // 2 to 4.
    taps: u32,
    // The first column of u that counts, and the length of its rows.
    first: u32,
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> u: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> conv_state: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let channel = linear_workgroup(id, count) * 64u + lane;
    let n_rows = min(state.n_tokens, params.rows);
    if (channel >= params.channels || n_rows == 0u) {
        return;
    }
    // Shorter kernels are padded at the old end with taps of zero.
    let missing = 4u - params.taps;
    var w = vec4f(0.0);
    var past = vec3f(0.0);
    for (var j = missing; j < 4u; j += 1u) {
        w[j] = weight[channel * params.taps + j - missing];
    }
    for (var j = missing; j < 3u; j += 1u) {
        past[j] = conv_state[(j - missing) * params.channels + channel];
    }
    for (var t = 0u; t < n_rows; t += 1u) {
        let now = u[t * params.stride + params.first + channel];
        let sum = dot(w.xyz, past) + w.w * now;
        y[t * params.channels + channel] = sum * sigmoid(sum);
        past = vec3f(past.y, past.z, now);
    }
    for (var j = missing; j < 3u; j += 1u) {
        conv_state[(j - missing) * params.channels + channel] = past[j];
    }
}
