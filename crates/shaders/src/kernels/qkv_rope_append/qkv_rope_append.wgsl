// Norms and rotates a step's queries and keys and appends its keys and values to the caches.
// A workgroup takes eight heads, be they of queries, keys or values and of one token or the next,
// with eight invocations each; so one barrier serves eight heads.

const LANES = 8u;

struct Params {
    rows: u32,
    // Positions from here on have no angles, or no row in the caches.
    context: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    // Elements from one query head of a row to the next.
    q_stride: u32,
    n_rot: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;
@group(0) @binding(5) var<storage, read> rope: array<f32>;
@group(0) @binding(6) var<storage, read_write> q: array<f32>;
@group(0) @binding(7) var<storage, read_write> k_cache: array<f32>;
@group(0) @binding(8) var<storage, read_write> v_cache: array<f32>;

// Of the squares of a head's elements.
var<workgroup> lane_sums: array<f32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let heads_per_token = params.num_heads + 2u * params.num_kv_heads;
    let n_heads = min(state.n_tokens, params.rows) * heads_per_token;
    let first = linear_workgroup(id, count) * (64u / LANES);
    if (first >= n_heads) {
        return;
    }
    let lane = index % LANES;
    // The last workgroup may have heads too many; they do the work of the last one up to the barrier.
    let wanted = first + index / LANES;
    let token = min(wanted, n_heads - 1u) / heads_per_token;
    let head = min(wanted, n_heads - 1u) % heads_per_token;
    let first_key = params.num_heads;
    let first_value = first_key + params.num_kv_heads;
    let q_cols = params.num_heads * params.q_stride;
    let row = token * (q_cols + 2u * params.num_kv_heads * params.head_dim);
    // Values follow the keys as one more run of heads.
    var source = row + head * params.q_stride;
    if (head >= first_key) {
        source = row + q_cols + (head - first_key) * params.head_dim;
    }

    var sum = 0.0;
    for (var i = lane; i < params.head_dim; i += LANES) {
        let v = qkv[source + i];
        sum += v * v;
    }
    lane_sums[index] = sum;
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < LANES; i += 1u) {
        total += lane_sums[index - lane + i];
    }
    let scale = 1.0 / sqrt(total / f32(params.head_dim) + params.eps);

    let position = state.position + token;
    if (wanted >= n_heads || position >= params.context) {
        return;
    }
    let angles = position * params.n_rot;
    let cached = position * params.num_kv_heads;
    if (head < first_key) {
        let dest = (token * params.num_heads + head) * params.head_dim;
        for (var i = lane; i < params.head_dim; i += LANES) {
            q[dest + i] = norm_rope(source, i, false, scale, angles);
        }
    } else if (head < first_value) {
        let dest = (cached + head - first_key) * params.head_dim;
        for (var i = lane; i < params.head_dim; i += LANES) {
            k_cache[dest + i] = norm_rope(source, i, true, scale, angles);
        }
    } else {
        let dest = (cached + head - first_value) * params.head_dim;
        for (var i = lane; i < params.head_dim; i += LANES) {
            v_cache[dest + i] = qkv[source + i];
        }
    }
}
