// The 20 largest logits of all shares' candidates, with their log-probabilities: each candidate counts those before it.
// One workgroup.

struct Params {
    shares: u32,
    n_generated: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> settings: array<u32>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> stats: array<f32>;
@group(0) @binding(5) var<storage, read> candidates: array<u32>;
@group(0) @binding(6) var<storage, read_write> top_ids: array<u32>;
@group(0) @binding(7) var<storage, read_write> logprobs: array<f32>;

var<workgroup> whole: Summary;
// Key and id; the key is 0 where there is nothing.
var<workgroup> entries: array<vec2u, 1280>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
    let n = params.shares * 20u;
    if (state.n_tokens == 0u) {
        return;
    }
    let slot = state.step % params.n_generated;
    if (lane == 0u) {
        whole = summarize(params.shares);
    }
    for (var i = lane; i < n; i += 256u) {
        let id = candidates[i];
        entries[i] = vec2u(0u, id);
        if (id != 0xffffffffu) {
            entries[i] = vec2u(order_key(bitcast<u32>(logits[id])), id);
        }
    }
    if (lane < 20u) {
        top_ids[slot * 20u + lane] = 0xffffffffu;
    }
    storageBarrier();
    workgroupBarrier();
    for (var i = lane; i < n; i += 256u) {
        let entry = entries[i];
        if (entry.x == 0u) {
            continue;
        }
        var rank = 0u;
        for (var j = 0u; j < n; j += 1u) {
            let other = entries[j];
            rank += u32(other.x > entry.x || (other.x == entry.x && other.y < entry.y));
        }
        if (rank < 20u) {
            top_ids[slot * 20u + rank] = entry.y;
            logprobs[slot * 21u + 1u + rank] = logits[entry.y] - whole.log_sum;
        }
    }
}
