// Number and mass of the tokens that min-p and top-n-sigma keep, by their distance from the best score.
// One workgroup per share: it counts in its own memory and adds what it found to the tally.

struct Params {
    n_valid: u32,
    vocab: u32,
    share: u32,
    shares: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> settings: array<u32>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> stats: array<f32>;
@group(0) @binding(5) var<storage, read_write> tally: array<atomic<u32>>;

var<workgroup> whole: Summary;
// Number, mass / 2^13, mass % 2^13.
var<workgroup> found: array<atomic<u32>, 768>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let share = linear_workgroup(group, count);
    let cuts = settings[IS_RANDOM] != 0u && (settings[TOP_K] > 0u || setting(TOP_P) < 1.0);
    if (state.n_tokens == 0u || !cuts) {
        return;
    }
    for (var i = lane; i < 768u; i += 256u) {
        atomicStore(&found[i], 0u);
    }
    if (lane == 0u) {
        whole = summarize(params.shares);
    }
    workgroupBarrier();
    let scores = whole;
    let end = min((share + 1u) * params.share, params.n_valid);
    for (var id = share * params.share + lane; id < end; id += 256u) {
        let score = logits[params.vocab + id];
        let distance = scores.top - score;
        if (score != EXCLUDED && distance <= scores.reach) {
            let at = bin_of(distance, scores.scale) * 3u;
            let weight = mass(distance);
            atomicAdd(&found[at], 1u);
            // Most tokens weigh little.
            if (weight >= 8192u) {
                atomicAdd(&found[at + 1u], weight >> 13u);
            }
            if (weight > 0u) {
                atomicAdd(&found[at + 2u], weight & 8191u);
            }
        }
    }
    workgroupBarrier();
    for (var i = lane; i < 768u; i += 256u) {
        let sum = atomicLoad(&found[i]);
        if (sum > 0u) {
            atomicAdd(&tally[i], sum);
        }
    }
}
