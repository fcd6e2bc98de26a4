// The id with the largest perturbed score among those that are certainly kept, and a flag for every id of the bins in
// which the cuts are.
// One workgroup per share.

struct Params {
    n_valid: u32,
    vocab: u32,
    share: u32,
    shares: u32,
    winners: u32,
    undecided: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> settings: array<u32>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> stats: array<f32>;
@group(0) @binding(5) var<storage, read_write> tally: array<u32>;

var<workgroup> whole: Summary;
var<workgroup> bounds: Bounds;
var<workgroup> flags: array<atomic<u32>, 256>;
var<workgroup> best_score: array<f32, 256>;
var<workgroup> best_id: array<u32, 256>;

// Takes the best of the results at 16 places, `step` apart, to the first.
fn gather(first: u32, step: u32) {
    for (var i = 1u; i < 16u; i += 1u) {
        let other = first + i * step;
        let is_tie = best_score[other] == best_score[first];
        if (best_score[other] > best_score[first] || (is_tie && best_id[other] < best_id[first])) {
            best_score[first] = best_score[other];
            best_id[first] = best_id[other];
        }
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
    atomicStore(&flags[lane], 0u);
    load_bin(lane);
    workgroupBarrier();
    if (lane == 0u) {
        whole = summarize(params.shares);
        bounds = Bounds(BINS, BINS, BINS, 0u, vec2u(0u));
        if (settings[IS_RANDOM] != 0u && (settings[TOP_K] > 0u || setting(TOP_P) < 1.0)) {
            bounds = find_bounds();
        }
    }
    workgroupBarrier();
    let noise = noise_at(state.position + state.n_tokens);
    let scores = whole;
    let cuts = bounds;
    var best = EXCLUDED;
    var winner = 0xffffffffu;
    let start = share * params.share;
    let end = min(start + params.share, params.n_valid);
    for (var id = start + lane; id < end; id += 256u) {
        let score = logits[params.vocab + id];
        let distance = scores.top - score;
        if (score == EXCLUDED || distance > scores.reach) {
            continue;
        }
        let bin = bin_of(distance, scores.scale);
        if (is_undecided(cuts, bin)) {
            atomicOr(&flags[(id - start) / 32u], 1u << (id % 32u));
        } else if (bin < cuts.first) {
            let value = perturbed(distance, id, noise);
            // Ids ascend, so the first of equals stays.
            if (value > best) {
                best = value;
                winner = id;
            }
        }
    }
    best_score[lane] = best;
    best_id[lane] = winner;
    workgroupBarrier();
    // Sixteen invocations take sixteen each, then one the rest: few barriers.
    if (lane < 16u) {
        gather(lane, 16u);
    }
    workgroupBarrier();
    if (lane == 0u) {
        gather(0u, 1u);
        tally[params.winners + share] = best_id[0];
    }
    if (lane < params.share / 32u) {
        tally[params.undecided + share * (params.share / 32u) + lane] = atomicLoad(&flags[lane]);
    }
}
