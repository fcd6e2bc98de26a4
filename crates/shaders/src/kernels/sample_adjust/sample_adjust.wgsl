// Logits to scores: bias, repetition, presence and frequency penalty, DRY, temperature; what may not be drawn is
// excluded. Leaves the statistics of its share, and an empty histogram.
// One workgroup per share of consecutive ids.

struct Params {
    n_valid: u32,
    vocab: u32,
    share: u32,
    counts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> settings: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> history: array<u32>;
@group(0) @binding(5) var<storage, read_write> logits: array<f32>;
@group(0) @binding(6) var<storage, read_write> repeats: array<u32>;
@group(0) @binding(7) var<storage, read_write> stats: array<f32>;
@group(0) @binding(8) var<storage, read_write> tally: array<u32>;

// Largest and smallest logit, how many were not finite, sum of exp(logit - largest).
var<workgroup> of_logits: array<vec4f, 256>;
// Largest and smallest score, sum, sum of squares.
var<workgroup> of_scores: array<vec4f, 256>;
var<workgroup> n_scores: array<f32, 256>;

fn score(id: u32, logit: f32) -> f32 {
    var value = logit;
    if (settings[HAS_BIAS] != 0u) {
        value += bias[id];
    }
    if (settings[HAS_PENALTIES] != 0u) {
        let count = history[params.counts + id];
        let in_reply = count & ~IN_PROMPT;
        if (count != 0u) {
            value *= setting(select(REPETITION, INVERSE_REPETITION, value > 0.0));
        }
        if (in_reply > 0u) {
            value -= setting(PRESENCE) + setting(FREQUENCY) * f32(in_reply);
        }
    }
    if (settings[HAS_DRY] != 0u) {
        value -= setting(DRY_PENALTIES + min(repeats[id], MAX_MATCH));
        repeats[id] = 0u;
    }
    return clamp(value * setting(INVERSE_TEMPERATURE), -1e37, 1e37);
}

fn combined_logits(a: vec4f, b: vec4f) -> vec4f {
    let top = max(a.x, b.x);
    return vec4f(top, min(a.y, b.y), a.z + b.z, a.w * exp(a.x - top) + b.w * exp(b.x - top));
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let share = linear_workgroup(group, count);
    if (state.n_tokens == 0u) {
        return;
    }
    if (share == 0u) {
        for (var i = lane; i < 3u * 256u; i += 256u) {
            tally[i] = 0u;
        }
    }
    var raw = vec4f(EXCLUDED, UNBOUNDED, 0.0, 0.0);
    var scores = vec4f(EXCLUDED, UNBOUNDED, 0.0, 0.0);
    var n = 0.0;
    let end = min((share + 1u) * params.share, params.n_valid);
    for (var id = share * params.share + lane; id < end; id += 256u) {
        let logit = logits[id];
        var result = EXCLUDED;
        if (is_finite(bitcast<u32>(logit))) {
            raw = combined_logits(raw, vec4f(logit, logit, 0.0, 1.0));
            result = score(id, logit);
            if (settings[HAS_ALLOWED] != 0u && !has_id(SETS, id)) {
                result = EXCLUDED;
            }
        } else {
            raw.z += 1.0;
        }
        logits[params.vocab + id] = result;
        if (result != EXCLUDED) {
            scores = vec4f(max(scores.x, result), min(scores.y, result), scores.z + result, scores.w + result * result);
            n += 1.0;
        }
    }
    of_logits[lane] = raw;
    of_scores[lane] = scores;
    n_scores[lane] = n;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
        if (lane < half) {
            of_logits[lane] = combined_logits(of_logits[lane], of_logits[lane + half]);
            let a = of_scores[lane];
            let b = of_scores[lane + half];
            of_scores[lane] = vec4f(max(a.x, b.x), min(a.y, b.y), a.z + b.z, a.w + b.w);
            n_scores[lane] += n_scores[lane + half];
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        let at = share * 9u;
        for (var i = 0u; i < 4u; i += 1u) {
            stats[at + i] = of_logits[0][i];
        }
        stats[at + 4u] = of_scores[0].x;
        stats[at + 5u] = of_scores[0].y;
        stats[at + 6u] = n_scores[0];
        stats[at + 7u] = of_scores[0].z;
        stats[at + 8u] = of_scores[0].w;
    }
}
