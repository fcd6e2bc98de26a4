// One token over the 4-bit cache: norm and rotation of its queries and its key, the flush of a full
// residual window, the append, and attention, split over the rows.
//     partials[h, split] = (sum_u w[u] v[u], max_u s[u], sum_u w[u]),   w[u] = e^(s[u] - max s),   s[u] = scale * q[h] . k[u]
// with u over the rows of the split; of a split without rows only the sum is written, 0.
// One workgroup per (KV head, split). The last split has the rows that this token's flush quantises and
// the residual window, so that nobody else reads what the dispatch writes; the others share the
// older quantised rows in blocks of 128, and the first has the sink, which is the last's while it grows.

struct Params {
    cache: Cache,
    num_heads: u32,
    n_splits: u32,
    // Elements of `qkv` from one query head to the next.
    stride: u32,
    n_rot: u32,
    eps: f32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;
@group(0) @binding(5) var<storage, read> rope: array<f32>;
@group(0) @binding(6) var<storage, read_write> exact: array<f32>;
@group(0) @binding(7) var<storage, read_write> codes: array<u32>;
@group(0) @binding(8) var<storage, read_write> scales: array<u32>;
@group(0) @binding(9) var<storage, read_write> partials: array<f32>;

// Sums of squares of up to eight query heads and the key head, in 16 parts each.
var<workgroup> squares: array<f32, 144>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let head = index / params.n_splits;
    let split = index % params.n_splits;
    let position = state.position;
    if (head >= params.cache.num_kv_heads || state.n_tokens == 0u || position >= params.cache.context) {
        return;
    }
    let dim = params.cache.head_dim;
    let heads_per_kv = params.num_heads / params.cache.num_kv_heads;
    let first_query = head * heads_per_kv * params.stride;
    let key = params.num_heads * params.stride + head * dim;
    let value = key + params.cache.num_kv_heads * dim;
    let angles = position * params.n_rot;
    let is_last = split == params.n_splits - 1u;
    let quantised = quantised_rows(position + 1u);
    let older = quantised_rows(position);
    let has_sink = select(split == 0u, is_last, position < SINK);
    let n_sharing = max(params.n_splits, 2u) - 1u;
    let n_older = older / WINDOW;
    let first_block = split * n_older / n_sharing;
    let end_block = select((split + 1u) * n_older / n_sharing, quantised / WINDOW, is_last);
    if (!has_sink && !is_last && first_block == end_block) {
        for (var h = lane; h < heads_per_kv; h += LANES) {
            partials[partial_index(head * heads_per_kv + h, split) + dim + 1u] = 0.0;
        }
        return;
    }

    for (var h = lane / 16u; h <= heads_per_kv; h += 8u) {
        let source = select(first_query + h * params.stride, key, h == heads_per_kv);
        var sum = 0.0;
        for (var i = lane % 16u; i < dim; i += 16u) {
            sum += qkv[source + i] * qkv[source + i];
        }
        squares[h * 16u + lane % 16u] = sum;
    }
    workgroupBarrier();
    var norms = array<f32, 9>();
    for (var h = 0u; h <= heads_per_kv; h += 1u) {
        var sum = 0.0;
        for (var i = 0u; i < 16u; i += 1u) {
            sum += squares[h * 16u + i];
        }
        norms[h] = 1.0 / sqrt(sum / f32(dim) + params.eps);
    }

    if (is_last) {
        if (finds_window_full(position)) {
            flush_window(head, older, lane);
        }
        let slot = exact_slot(position, quantised);
        let norm = norms[heads_per_kv];
        for (var i = lane; i < dim; i += LANES) {
            exact[exact_index(KEYS, head, slot) + i] = norm_rope(key, i, true, norm, angles);
            exact[exact_index(VALUES, head, slot) + i] = qkv[value + i];
        }
        storageBarrier();
    }
    for (var i = lane; i < dim; i += LANES) {
        var elements = array<vec4f, 2>(vec4f(0.0), vec4f(0.0));
        for (var h = 0u; h < heads_per_kv; h += 1u) {
            let source = first_query + h * params.stride;
            elements[h / 4u][h % 4u] = norm_rope(source, i, false, norms[h], angles) * params.scale;
        }
        queries[2u * i] = elements[0];
        queries[2u * i + 1u] = elements[1];
    }
    workgroupBarrier();

    if (has_sink) {
        let n = min(position + 1u, SINK);
        attend_exact(lane, head, 0u, n, vec4u(n), vec4u(n));
    }
    for (var block = first_block; block < end_block; block += 1u) {
        attend_quantised(lane, head, block * WINDOW);
    }
    if (is_last && position >= SINK) {
        let n = position + 1u - SINK - quantised;
        attend_exact(lane, head, SINK, n, vec4u(n), vec4u(n));
    }

    fold_sums(lane);
    let tops = array<vec4f, 2>(top.a, top.b);
    let totals = array<vec4f, 2>(weight_sum.a, weight_sum.b);
    let even = array<vec4f, 2>(even_sum.a, even_sum.b);
    let odd = array<vec4f, 2>(odd_sum.a, odd_sum.b);
    for (var h = 0u; h < heads_per_kv; h += 1u) {
        let at = partial_index(head * heads_per_kv + h, split);
        if (lane < dim / 2u) {
            partials[at + 2u * lane] = even[h / 4u][h % 4u];
            partials[at + 2u * lane + 1u] = odd[h / 4u][h % 4u];
        }
        if (lane == 0u) {
            partials[at + dim] = tops[h / 4u][h % 4u];
            partials[at + dim + 1u] = totals[h / 4u][h % 4u];
        }
    }
}

// First element of a row of partials.
fn partial_index(query_head: u32, split: u32) -> u32 {
    return (query_head * params.n_splits + split) * (params.cache.head_dim + 2u);
}
