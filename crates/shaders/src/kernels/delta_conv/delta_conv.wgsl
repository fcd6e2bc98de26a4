// Causal depthwise convolution over tokens, SiLU, and the L2 norm of queries and keys:
//     a[t, c] = SiLU(sum_j weight[c, j] * u[t - taps + 1 + j, c])
//     y[t]    = a[t], but divided by sqrt(sum(a^2) + eps) in heads of keys, and by sqrt(head_dim)
//               times that in heads of queries
// One workgroup per 8 tokens of a run of `head_dim` channels, which is a head of queries, then of
// keys, and then any piece of the values. Its 64 invocations stride over the channels.
//
// The ring holds the inputs of the last positions, position p in row p % 4. Only the workgroups of
// the first tokens read it, and they also replace it, each invocation in its own channels.

const TOKENS = 8u;

struct Params {
    rows: u32,
    channels: u32,
    // 2 to 4.
    taps: u32,
    key_heads: u32,
    head_dim: u32,
    u_first: u32,
    u_stride: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> u: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> ring: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// Squares that each invocation has summed up, [token][invocation], and what each token is
// multiplied by.
var<workgroup> parts: array<f32, TOKENS * 64u>;
var<workgroup> scales: array<f32, TOKENS>;

fn input(t: u32, channel: u32) -> f32 {
    return u[t * params.u_stride + params.u_first + channel];
}

// Index in the ring of the input of position `position`.
fn slot(position: u32, channel: u32) -> u32 {
    return (position & 3u) * params.channels + channel;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let n_heads = (params.channels + params.head_dim - 1u) / params.head_dim;
    let head = index % n_heads;
    let first = index / n_heads * TOKENS;
    let n_rows = min(state.n_tokens, params.rows);
    if (first >= n_rows) {
        return;
    }
    let n = min(TOKENS, n_rows - first);
    let end = min((head + 1u) * params.head_dim, params.channels);

    for (var t = 0u; t < n; t += 1u) {
        parts[t * 64u + lane] = 0.0;
    }
    // Shorter kernels are padded at the old end with taps of zero.
    let missing = 4u - params.taps;
    for (var channel = head * params.head_dim + lane; channel < end; channel += 64u) {
        var w = vec4f(0.0);
        for (var j = missing; j < 4u; j += 1u) {
            w[j] = weight[channel * params.taps + j - missing];
        }
        var past = vec3f(0.0);
        if (first == 0u) {
            let p = state.position;
            past = vec3f(ring[slot(p + 1u, channel)], ring[slot(p + 2u, channel)], ring[slot(p + 3u, channel)]);
            for (var t = max(n_rows, 4u) - 4u; t < n_rows; t += 1u) {
                ring[slot(p + t, channel)] = input(t, channel);
            }
        } else {
            past = vec3f(input(first - 3u, channel), input(first - 2u, channel), input(first - 1u, channel));
        }
        for (var t = 0u; t < n; t += 1u) {
            let now = input(first + t, channel);
            let sum = dot(w.xyz, past) + w.w * now;
            let value = sum * sigmoid(sum);
            y[(first + t) * params.channels + channel] = value;
            parts[t * 64u + lane] += value * value;
            past = vec3f(past.y, past.z, now);
        }
    }
    if (head >= 2u * params.key_heads) {
        return;
    }
    workgroupBarrier();
    if (lane < n) {
        var sum = 0.0;
        for (var i = 0u; i < 64u; i += 1u) {
            sum += parts[lane * 64u + i];
        }
        let norm = sqrt(sum + params.eps);
        scales[lane] = 1.0 / select(norm, norm * sqrt(f32(params.head_dim)), head < params.key_heads);
    }
    workgroupBarrier();
    for (var channel = head * params.head_dim + lane; channel < end; channel += 64u) {
        for (var t = 0u; t < n; t += 1u) {
            y[(first + t) * params.channels + channel] *= scales[t];
        }
    }
}
