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
    let position = state.position + state.n_tokens;
    var best = EXCLUDED;
    var winner = 0xffffffffu;
    let start = share * params.share;
    let end = min(start + params.share, params.n_valid);
    for (var id = start + lane; id < end; id += 256u) {
        let score = logits[params.vocab + id];
        let distance = whole.top - score;
        if (score == EXCLUDED || distance > whole.reach) {
            continue;
        }
        let bin = bin_of(distance, whole.scale);
        if (is_undecided(bounds, bin)) {
            atomicOr(&flags[(id - start) / 32u], 1u << (id % 32u));
        } else if (bin < bounds.first) {
            let value = perturbed(distance, id, position);
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
    for (var half = 128u; half > 0u; half /= 2u) {
        if (lane < half) {
            let other = lane + half;
            let is_better = best_score[other] > best_score[lane]
                || (best_score[other] == best_score[lane] && best_id[other] < best_id[lane]);
            if (is_better) {
                best_score[lane] = best_score[other];
                best_id[lane] = best_id[other];
            }
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        tally[params.winners + share] = best_id[0];
    }
    if (lane < params.share / 32u) {
        tally[params.undecided + share * (params.share / 32u) + lane] = atomicLoad(&flags[lane]);
    }
}
