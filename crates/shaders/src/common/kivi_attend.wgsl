// Attention of eight queries of one KV head over tiles of up to 128 rows, by all invocations of a
// workgroup. Queries lie along the components of two vec4s, so that a row is unpacked once for all:
// for the scores an invocation has a row, for the values a pair of neighbouring channels; where
// there are fewer than 128 pairs, the rows are shared out among several invocations per pair.

// Below every score, and still a finite distance from each of them.
const LOWEST = -1.0e38;

struct Eight {
    a: vec4f,
    b: vec4f,
}

// Element i of the eight queries at 2 i and 2 i + 1; at the end parts of the sums.
var<workgroup> queries: array<vec4f, 512>;
// Scores and then weights of the tile's rows; at the end sums of weights.
var<workgroup> row_weights: array<vec4f, 256>;
var<workgroup> fold_parts: array<vec4f, 32>;

// The largest score so far, the sum of e^(score - top) over this invocation's rows, and the weighted
// sums of its even and odd channel.
var<private> top: Eight = Eight(vec4f(LOWEST), vec4f(LOWEST));
var<private> weight_sum: Eight = Eight(vec4f(0.0), vec4f(0.0));
var<private> even_sum: Eight = Eight(vec4f(0.0), vec4f(0.0));
var<private> odd_sum: Eight = Eight(vec4f(0.0), vec4f(0.0));

// Of a group. A scale is a normal half, or zero; then all codes of the group are zero, and so is
// their product with what this makes of it, 2^-15.
fn scale_and_min(packed: u32) -> vec2f {
    let scale = bitcast<f32>(((packed & 0xffffu) << 13u) + 0x38000000u);
    return vec2f(scale, half_to_f32(packed >> 16u));
}

fn exact_scores(key: u32) -> Eight {
    var a = vec4f(0.0);
    var b = vec4f(0.0);
    for (var c = 0u; c < params.cache.head_dim; c += 1u) {
        let k = exact[key + c];
        a += k * queries[2u * c];
        b += k * queries[2u * c + 1u];
    }
    return Eight(a, b);
}

fn quantised_scores(head: u32, row: u32) -> Eight {
    let first_word = code_index(KEYS, head, row, 0u);
    let first_scale = key_scale_index(head, row, 0u);
    var a = vec4f(0.0);
    var b = vec4f(0.0);
    for (var w = 0u; w < params.cache.head_dim / 8u; w += 1u) {
        var word = codes[first_word + w];
        for (var c = 8u * w; c < 8u * w + 8u; c += 1u) {
            let scale = scale_and_min(scales[first_scale + c]);
            let k = scale.x * f32(word & 15u) + scale.y;
            word >>= 4u;
            a += k * queries[2u * c];
            b += k * queries[2u * c + 1u];
        }
    }
    return Eight(a, b);
}

// Turns the scores of the invocations' rows into weights and adds these up.
fn weigh(lane: u32, scores: Eight) {
    row_weights[2u * lane] = scores.a;
    row_weights[2u * lane + 1u] = scores.b;
    workgroupBarrier();
    if (lane < 32u) {
        var largest = vec4f(LOWEST);
        for (var i = 0u; i < 8u; i += 1u) {
            largest = max(largest, row_weights[16u * (lane / 2u) + 2u * i + lane % 2u]);
        }
        fold_parts[lane] = largest;
    }
    workgroupBarrier();
    var new_top = top;
    for (var i = 0u; i < 32u; i += 2u) {
        new_top.a = max(new_top.a, fold_parts[i]);
        new_top.b = max(new_top.b, fold_parts[i + 1u]);
    }
    let shrink = Eight(exp(top.a - new_top.a), exp(top.b - new_top.b));
    top = new_top;
    let weight = Eight(
        select(exp(scores.a - top.a), vec4f(0.0), scores.a == vec4f(LOWEST)),
        select(exp(scores.b - top.b), vec4f(0.0), scores.b == vec4f(LOWEST)),
    );
    row_weights[2u * lane] = weight.a;
    row_weights[2u * lane + 1u] = weight.b;
    weight_sum = Eight(weight_sum.a * shrink.a + weight.a, weight_sum.b * shrink.b + weight.b);
    even_sum = Eight(even_sum.a * shrink.a, even_sum.b * shrink.b);
    odd_sum = Eight(odd_sum.a * shrink.a, odd_sum.b * shrink.b);
    workgroupBarrier();
}

fn add_row(u: u32, even: f32, odd: f32) {
    let a = row_weights[2u * u];
    let b = row_weights[2u * u + 1u];
    even_sum = Eight(even_sum.a + even * a, even_sum.b + even * b);
    odd_sum = Eight(odd_sum.a + odd * a, odd_sum.b + odd * b);
}

// `n` exact rows from `slot` on, of which a query sees the first so many.
fn attend_exact(lane: u32, head: u32, slot: u32, n: u32, seen_a: vec4u, seen_b: vec4u) {
    let dim = params.cache.head_dim;
    var scores = Eight(vec4f(LOWEST), vec4f(LOWEST));
    if (lane < n) {
        let all = exact_scores(exact_index(KEYS, head, slot + lane));
        scores.a = select(scores.a, all.a, vec4u(lane) < seen_a);
        scores.b = select(scores.b, all.b, vec4u(lane) < seen_b);
    }
    weigh(lane, scores);
    let n_pairs = dim / 2u;
    let n_parts = LANES / n_pairs;
    let value = exact_index(VALUES, head, slot) + lane % n_pairs * 2u;
    if (lane / n_pairs < n_parts) {
        for (var u = lane / n_pairs; u < n; u += n_parts) {
            add_row(u, exact[value + u * dim], exact[value + u * dim + 1u]);
        }
    }
    workgroupBarrier();
}

// The 128 quantised rows from `row` on, which every query sees.
fn attend_quantised(lane: u32, head: u32, row: u32) {
    weigh(lane, quantised_scores(head, row + lane));
    let n_pairs = params.cache.head_dim / 2u;
    let n_parts = LANES / n_pairs;
    let c = lane % n_pairs * 2u;
    if (lane / n_pairs < n_parts) {
        for (var u = lane / n_pairs; u < WINDOW; u += n_parts) {
            let word = codes[code_index(VALUES, head, row + u, c)] >> (4u * (c % 8u));
            let scale = scale_and_min(scales[value_scale_index(head, row + u, c)]);
            let even = scale.x * f32(word & 15u) + scale.y;
            let odd = scale.x * f32((word >> 4u) & 15u) + scale.y;
            add_row(u, even, odd);
        }
    }
    workgroupBarrier();
}

// Leaves the sums of all invocations in those that have the first part of a pair of channels, and
// the sum of all weights in every invocation.
fn fold_sums(lane: u32) {
    row_weights[2u * lane] = weight_sum.a;
    row_weights[2u * lane + 1u] = weight_sum.b;
    queries[4u * lane] = even_sum.a;
    queries[4u * lane + 1u] = even_sum.b;
    queries[4u * lane + 2u] = odd_sum.a;
    queries[4u * lane + 3u] = odd_sum.b;
    workgroupBarrier();
    if (lane < 32u) {
        var sum = vec4f(0.0);
        for (var i = 0u; i < 8u; i += 1u) {
            sum += row_weights[16u * (lane / 2u) + 2u * i + lane % 2u];
        }
        fold_parts[lane] = sum;
    }
    workgroupBarrier();
    weight_sum = Eight(vec4f(0.0), vec4f(0.0));
    for (var i = 0u; i < 32u; i += 2u) {
        weight_sum = Eight(weight_sum.a + fold_parts[i], weight_sum.b + fold_parts[i + 1u]);
    }
    let n_pairs = params.cache.head_dim / 2u;
    if (lane < n_pairs) {
        for (var i = lane + n_pairs; i / n_pairs < LANES / n_pairs; i += n_pairs) {
            even_sum = Eight(even_sum.a + queries[4u * i], even_sum.b + queries[4u * i + 1u]);
            odd_sum = Eight(odd_sum.a + queries[4u * i + 2u], odd_sum.b + queries[4u * i + 3u]);
        }
    }
}
