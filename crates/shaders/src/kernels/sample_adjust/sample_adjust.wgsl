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

// Settings that every id needs, read once.
struct Adjustment {
    has_bias: bool,
    has_penalties: bool,
    has_dry: bool,
    has_allowed: bool,
    inverse_temperature: f32,
}

fn score(id: u32, logit: f32, adjustment: Adjustment) -> f32 {
    var value = logit;
    if (adjustment.has_bias) {
        value += bias[id];
    }
    if (adjustment.has_penalties) {
        let count = history[params.counts + id];
        let in_reply = count & ~IN_PROMPT;
        if (count != 0u) {
            value *= setting(select(REPETITION, INVERSE_REPETITION, value > 0.0));
        }
        if (in_reply > 0u) {
            value -= setting(PRESENCE) + setting(FREQUENCY) * f32(in_reply);
        }
    }
    if (adjustment.has_dry) {
        value -= setting(DRY_PENALTIES + min(repeats[id], MAX_MATCH));
        repeats[id] = 0u;
    }
    return clamp(value * adjustment.inverse_temperature, -1e37, 1e37);
}

fn combined_logits(a: vec4f, b: vec4f) -> vec4f {
    let top = max(a.x, b.x);
    return vec4f(top, min(a.y, b.y), a.z + b.z, a.w * exp(a.x - top) + b.w * exp(b.x - top));
}

fn with_logit(a: vec4f, logit: f32) -> vec4f {
    let top = max(a.x, logit);
    // One of the two is the largest, whose exponential is 1.
    let rest = exp(min(a.x, logit) - top);
    let sum = select(a.w + rest, a.w * rest + 1.0, logit > a.x);
    return vec4f(top, min(a.y, logit), a.z, sum);
}

fn combined_scores(a: vec4f, b: vec4f) -> vec4f {
    return vec4f(max(a.x, b.x), min(a.y, b.y), a.z + b.z, a.w + b.w);
}

// Adds the results at 15 places, `step` apart, to the one before them.
fn gather(first: u32, step: u32) {
    for (var i = 1u; i < 16u; i += 1u) {
        let other = first + i * step;
        of_logits[first] = combined_logits(of_logits[first], of_logits[other]);
        of_scores[first] = combined_scores(of_scores[first], of_scores[other]);
        n_scores[first] += n_scores[other];
    }
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
    let adjustment = Adjustment(
        settings[HAS_BIAS] != 0u,
        settings[HAS_PENALTIES] != 0u,
        settings[HAS_DRY] != 0u,
        settings[HAS_ALLOWED] != 0u,
        setting(INVERSE_TEMPERATURE),
    );
    var raw = vec4f(EXCLUDED, UNBOUNDED, 0.0, 0.0);
    var scores = vec4f(EXCLUDED, UNBOUNDED, 0.0, 0.0);
    var n = 0.0;
    let end = min((share + 1u) * params.share, params.n_valid);
    for (var id = share * params.share + lane; id < end; id += 256u) {
        let logit = logits[id];
        var result = EXCLUDED;
        if (is_finite(bitcast<u32>(logit))) {
            raw = with_logit(raw, logit);
            result = score(id, logit, adjustment);
            if (adjustment.has_allowed && !has_id(SETS, id)) {
                result = EXCLUDED;
            }
        } else {
            raw.z += 1.0;
        }
        logits[params.vocab + id] = result;
        if (result != EXCLUDED) {
            scores = combined_scores(scores, vec4f(result, result, result, result * result));
            n += 1.0;
        }
    }
    of_logits[lane] = raw;
    of_scores[lane] = scores;
    n_scores[lane] = n;
    workgroupBarrier();
    // Sixteen invocations take sixteen each, then one the rest: few barriers.
    if (lane < 16u) {
        gather(lane, 16u);
    }
    workgroupBarrier();
    if (lane == 0u) {
        gather(0u, 1u);
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
